"""The checks of the contract. Each raises an AssertionError that says what a method does wrong."""

from __future__ import annotations

import copy
import dataclasses
import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cclfp.core import trees
from cclfp.core.randomness import generator
from cclfp.engine.groups import common_structure, stack_leaves
from cclfp.engine.replica import Replica
from cclfp.errors import first_line
from cclfp.learner import Learner, load
from cclfp.methods.base import Batch, State
from cclfp.nets.network import Tensors
from cclfp.schedules import Exemplars, PastRing, Reservoir, Ring
from cclfp.testing.case import MEMORY, Case, halve, same, stackable_psi, toy_psi, train_replicas


def learns(case: Case) -> None:
    """After the first task it knows that task, with the labels as they are and swapped.

    An untrained network may know one of the two by luck.
    """
    for swap in (0, 1):
        stream = case.stream()
        train = stream.train._replace(y=stream.train.y ^ swap)
        test = [part._replace(y=part.y ^ swap) for part in stream.test]
        replica = Replica(case.learner(), dataclasses.replace(stream, train=train, test=test))
        train_replicas([replica], tasks=1)
        accuracy = replica.accuracy or 0.0
        assert accuracy > 60, f"only {accuracy:.0f} % on the task just learned"


def keeps_to_the_mask(case: Case) -> None:
    """Predictions stay among the classes the scenario allows."""
    learner, seen = case.learner(), set()
    x = 20 * torch.randn(200, 8, generator=generator(0, "anywhere"))
    for task, batches in enumerate(case.batches()):
        for batch in batches:
            learner.observe(*batch)
        learner.end_task()
        seen |= {int(y) for batch in batches for y in batch[1]}
        if case.scenario != "task":
            outside = set(learner.predict(x).tolist()) - seen
            assert not outside, f"predicts {outside} when it has seen {seen}"
        allowed = set(case.stream().classes[task])
        outside = set(learner.predict(x, task=task).tolist()) - allowed
        assert not outside, f"predicts {outside} in a task of {allowed}"


def trains_inside_the_mask(case: Case) -> None:
    """In the first task, the classifier's rows of the classes that no example may choose do not move.

    Where they do, a loss most often lacks its mask. They may where the method says ``moves_every_row``.
    """
    if case.method.moves_every_row:
        return
    learner = case.learner()
    batches, classes = case.batches()[0], case.stream().classes
    learner.make_classifier(batches[0][0])
    assert learner.f is not None
    before = learner.f.weight.detach().clone()
    for batch in batches:
        learner.observe(*batch)
    allowed = range(6) if case.method.joint else classes[0]
    outside = [c for c in range(6) if c not in allowed]
    moved = [c for c in outside if not torch.equal(before[c], learner.f.weight.detach()[c])]
    assert not moved, (
        f"the classifier's rows of classes {moved} moved, which no example may choose yet: give every cross_entropy "
        "its rows of batch.mask; if the loss is about all logits on purpose, as when they are distilled, say "
        "moves_every_row = True in the class"
    )


def updates_batchnorm_once_a_step(case: Case) -> None:
    """Only the forward pass on the training minibatch updates BatchNorm's statistics."""
    learner = case.online()
    counted = int(learner.psi[1].num_batches_tracked)  # type: ignore[index]
    assert counted == learner.steps, f"BatchNorm was updated {counted} times in {learner.steps} steps"


def keeps_the_memory_small(case: Case) -> None:
    """The memory never holds more than it may. A reservoir or a ring is full once enough examples came by."""

    def look(learner: Learner) -> None:
        if learner.memory is not None:
            held = len(learner.memory.examples().y)
            assert held == len(learner.memory) <= MEMORY, f"{held} examples in a memory of {MEMORY}"

    memory, schedule = case.online(after_step=look).memory, case.method.schedule
    least = MEMORY if schedule in (Reservoir, Ring, PastRing) else int(schedule is Exemplars)
    assert memory is None or len(memory) >= least, (
        f"the memory holds {len(memory)} of {MEMORY} examples after all tasks, expected {least} or more: with the "
        "schedule Exemplars, end_task chooses what it holds, context.memory.keep(...)"
    )


def repeats(case: Case) -> None:
    """The same seed gives the same learner, also if it predicts and another learner trains between its steps.

    Another seed gives another learner. The global generators are left alone.
    """
    x, other = torch.randn(50, 8, generator=generator(0, "anywhere")), case.learner(seed=7)
    strangers = iter([batch for task in case.batches(seed=7) for batch in task])

    def disturb(learner: Learner) -> None:
        torch.rand(1)
        learner.predict(x, task=0)
        other.observe(*next(strangers))

    before = torch.get_rng_state()
    first = case.online()
    assert torch.equal(before, torch.get_rng_state()), "training changed the state of torch's global generator"
    assert same(first, case.online(after_step=disturb)), (
        "the same seed gave another result, while the learner predicted and another one trained between its steps"
    )
    assert not same(first, case.online(seed=1)), "another seed gave the same result"


def survives_saving(case: Case) -> None:
    """Saved and loaded after every third step, it ends as if never stopped."""
    with tempfile.TemporaryDirectory() as folder:

        def reload(learner: Learner) -> Learner | None:
            if learner.steps % 3:
                return None
            learner.save(Path(folder) / "learner")
            return load(Path(folder) / "learner", psi=toy_psi(), transform=halve, method=case.method)

        assert same(case.online(), case.online(after_step=reload)), "what was loaded went on differently"


def returns_the_loss(case: Case) -> None:
    """``observe`` returns a finite number at every step of a task, or None at every step."""
    learner = case.learner()
    for batches in case.batches():
        losses = [learner.observe(*batch) for batch in batches]
        learner.end_task()
        known = [loss for loss in losses if loss is not None]
        assert len(known) in (0, len(losses)), "some steps of a task return a loss, and others do not"
        for loss in known:
            assert math.isfinite(loss), f"a step returned the loss {loss}"


def trains_as_planned(case: Case) -> None:
    """Training as ``cclfp run`` plans it equals ``observe``, also if it continues from a checkpoint after each task."""
    whole, stopped = case.replica(), case.replica()
    train_replicas([whole])
    assert same(whole.learner, case.online()), "planned and online training differ"
    while not stopped.is_done:
        train_replicas([stopped], tasks=stopped.position + 1)
        again = case.replica()
        again.load_state_dict(copy.deepcopy(stopped.state_dict()))
        stopped = again
    assert whole.matrix == stopped.matrix, "the accuracies after each checkpoint differ from those without checkpoints"
    assert same(whole.learner, stopped.learner), "what was loaded from checkpoints went on differently"


def trains_stacked(case: Case) -> None:
    """Replicas that train as one stacked network end near where each of them does alone.

    Not exactly there: rounding differs, and a method whose gradient starts at zero, such as FDR's, amplifies it.
    """
    replicas = [case.replica(seed, stackable_psi()) for seed in (0, 1)]
    notes = train_replicas(replicas, "traced")
    assert not notes, f"replicas are not stacked: {'; '.join(notes)}"
    for seed, replica in enumerate(replicas):
        alone = case.replica(seed, stackable_psi())
        train_replicas([alone])
        for ours, theirs in zip(trees.leaves(replica.learner.model), trees.leaves(alone.learner.model), strict=True):
            is_close = torch.allclose(ours, theirs, rtol=1e-2, atol=1e-2, equal_nan=True)
            assert is_close, "stacked replicas end with other numbers than each alone"
        difference = (replica.accuracy or 0.0) - (alone.accuracy or 0.0)
        assert abs(difference) < 5, "stacked replicas have other accuracies than each alone"


def steps_purely(case: Case) -> None:
    """A step leaves its arguments as they are, and runs under vmap: two stacked replicas equal each alone."""
    arguments, learner = [], case.learner()
    for seed in (0, 1):
        learner, batch = in_second_task(case, seed)
        tensors = {name: value for name, value in vars(batch).items() if isinstance(value, Tensor)}
        given = (*learner.model, tensors, dict(vars(learner.hyper_tensors)))
        arguments.append(trees.map_tree(lambda t: t.detach().clone(), given))

    def step(params: Tensors, buffers: Tensors, state: State, tensors: Any, hyper: dict[str, Tensor]) -> Any:
        numbers = type(learner.hyper)(**hyper)  # type: ignore[arg-type]
        return learner.algorithm.step(params, buffers, state, dataclasses.replace(batch, **tensors), numbers)

    try:
        stacked = trees.unflatten(stack_leaves(arguments), common_structure(arguments))
    except ValueError as error:
        raise AssertionError("the states of two replicas differ in structure") from error
    try:
        together = torch.func.vmap(step)(*stacked)
    except RuntimeError as error:
        raise AssertionError(f"step does not run under vmap: {why_not_vmapped(error)}") from error
    for number, given in enumerate(arguments):
        before = trees.map_tree(torch.clone, given)
        alone = step(*given)
        unchanged = all(map(torch.equal, trees.leaves(before), trees.leaves(given)))
        assert unchanged, "step changed its arguments"
        for a, b in zip(trees.leaves(alone), trees.leaves(together), strict=True):
            difference = (a.double() - b[number].double()).abs().max()
            assert difference <= 1e-5, f"under vmap a result differs by {difference:.1e}"


def in_second_task(case: Case, seed: int = 0) -> tuple[Learner, Batch]:
    """A learner whose method has the state of later tasks, and a batch for its step."""
    stream = case.stream()
    replica = Replica(case.learner(seed, psi=toy_psi(random=False)), stream)
    train_replicas([replica], tasks=1)
    learner = replica.learner
    learner.begin_task()
    replayed = 10 * case.method.draws
    raw = stream.train.rows(torch.arange(10 + replayed) + 20 * seed)
    learner.mask = learner.mask.after_tasks(torch.tensor(stream.task_ids(0)))
    mask = learner.mask.train(raw.task)
    slots = torch.arange(replayed) + 10 * seed
    placed = torch.where(torch.arange(10) % 3 == seed, -1, 5 * torch.arange(10))
    return learner, Batch(halve(raw.x), raw.y, raw.task, mask, 10, slots, slots % 2 == 0, placed)


def why_not_vmapped(error: Exception) -> str:
    """Why a step does not run under vmap, in our words where torch's message is known."""
    if "data-dependent control flow" in str(error):
        return "it needs the value of a tensor (.item(), if tensor, F.one_hot): use torch.where and comparisons"
    if "dynamic shape" in str(error):
        return "a shape depends on data (tensor[mask], nonzero, unique): use torch.where"
    return first_line(error)


CHECKS: tuple[Callable[[Case], None], ...] = (
    learns,
    keeps_to_the_mask,
    trains_inside_the_mask,
    updates_batchnorm_once_a_step,
    keeps_the_memory_small,
    repeats,
    survives_saving,
    returns_the_loss,
    trains_as_planned,
    steps_purely,
    trains_stacked,
)

# Those that find most mistakes, for quick answers.
QUICK = (steps_purely, learns, trains_inside_the_mask, repeats, survives_saving, trains_as_planned, trains_stacked)
