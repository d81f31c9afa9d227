"""Replicas that take their steps together: flat lists of tensors, and one function that takes a step of all of them.

The function can be traced, or run in a CUDA graph. There are three kinds of groups:

- :class:`StackedGroup` has the replicas side by side in each tensor, so that one operation serves all of them (vmap).
- :class:`ParallelGroup` keeps their tensors apart and lets them run at the same time. It is for BatchNorm, whose
  statistics each network updates in place, and for large convolutions, which PyTorch does not make faster when it
  stacks them.
- :class:`~cclfp.engine.kernels.group.KernelGroup` is for ResNet18 in bf16 on a GPU that has our own kernels.

Before a group trains, its step is compared with the step that each of its replicas takes alone.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cclfp.core import trees
from cclfp.core.randomness import global_generators
from cclfp.core.scenarios import ClassMask
from cclfp.engine.operations import TracedStep
from cclfp.engine.plan import StepTables
from cclfp.engine.tracing import Operations, Step
from cclfp.learner import Learner
from cclfp.learner.checks import not_finite
from cclfp.methods import Batch, Method
from cclfp.nets.network import BATCH_NORMS

NORMS = (*BATCH_NORMS, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)


class Group:
    """Base of all groups. The learners' task has begun."""

    changing: list[Tensor]  # what their steps change
    fixed: list[Tensor]  # what their steps only read; the first two are the pool of inputs and the tables of masks

    def __init__(self, learners: Sequence[Learner]) -> None:
        self.learners = learners
        self.spec = common_structure([learner.model for learner in learners])
        self.hypers = [list(vars(learner.hyper_tensors).values()) for learner in learners]

    @property
    def size(self) -> int:
        """How many bytes their steps change."""
        return sum(t.nbytes for t in self.changing)

    def kind_of_step(self, tables: StepTables, segment: range) -> Hashable:
        """What all steps have in common that one function can take."""
        first, tensors = self.learners[0], [*self.changing, *self.fixed, *tables.row(segment[0])]
        shapes = ((t.shape, t.stride(), t.dtype) for t in tensors)
        names = type(self), first.algorithm.name, str(self.spec), *vars(first.hyper)
        return (*names, tables.sizes[segment[0]][0], *shapes)

    def make_step(self, tables: StepTables, like: int) -> Step:
        """A function that takes steps of the same sizes as step ``like``, for all replicas.

        An error here means that such a step cannot be taken together.
        """
        raise NotImplementedError

    def part_of(self, tensors: list[Tensor], replica: int) -> list[Tensor]:
        """A replica's part of the tensors that change."""
        raise NotImplementedError

    def join(self, parts: Sequence[list[Tensor]]) -> list[Tensor]:
        """The tensors that change, from all replicas' parts of them. Groups that are never traced need none."""
        raise NotImplementedError

    def perturbed(self) -> list[Tensor]:
        """The tensors that change, each changed a little (see :func:`perturb`)."""
        return perturb(self.changing)

    def check_step(self, step: Step, tables: StepTables, like: int) -> None:
        """ValueError where a step taken together is not the one that each replica takes alone.

        They differ where a step reads something that is not among its arguments: a frozen layer drawn from the
        learner's seed, or an attribute that another task, or another replica, has set; also where a transform makes
        something else of many examples than of few.
        """
        current, row = tables.sizes[like][0], tables.row(like)
        before = self.perturbed()
        new = step([t.clone() for t in before], self.fixed, row)
        tolerance = tolerance_of(self.learners[0], row[0].device)
        for replica in pick_replicas(self.learners):
            own = self.part_of(before, replica)
            alone = self.step_alone(replica, [t.clone() for t in own], row, current)
            params: dict[str, Tensor] = trees.unflatten(alone, self.spec)[0]
            if not_finite(list(params.values())):  # it diverges: there is nothing to compare
                continue
            compare_steps(own, self.part_of(new, replica), alone, tolerance)

    def make_steps_alone(self, tables: StepTables, like: int) -> Step:
        """A function that takes the same steps as that of :meth:`make_step`, but one replica after the other."""
        current, replicas = tables.sizes[like][0], range(len(self.learners))

        def step(changing: list[Tensor], fixed: list[Tensor], row: list[Tensor]) -> list[Tensor]:
            return self.join([self.step_alone(i, self.part_of(changing, i), row, current) for i in replicas])

        row = tables.row(like)
        refuse_randomness(lambda: step([t.clone() for t in self.changing], self.fixed, row), row[0].device)
        return step

    def step_of(self, learner: Learner, method: Method, current: int) -> Step:
        """The step of one replica: what changes, its hyperparameters and its batch -> what changes.

        The first ``current`` examples of its batches are new.
        """

        def step(changing: list[Tensor], hypers: list[Tensor], batch: list[Tensor]) -> list[Tensor]:
            hyper = type(learner.hyper)(**dict(zip(vars(learner.hyper), hypers, strict=True)))  # type: ignore[arg-type]
            params, buffers, state = trees.unflatten(changing, self.spec)
            x, y, task, mask, *slots = batch
            stepped = method.step(params, buffers, state, Batch(x, y, task, mask, current, *slots), hyper)
            new, spec = trees.flatten(stepped[:3])  # without the loss that it may return
            if spec != self.spec:
                raise TypeError(f"a step of {method.name} gave a state of another structure than it took")
            return new

        return step

    def step_alone(self, replica: int, own: list[Tensor], row: list[Tensor], current: int) -> list[Tensor]:
        """A step of one replica on its part of a row, prepared alone."""
        learner, only = self.learners[replica], slice(replica, replica + 1)
        fixed = [self.fixed[0], self.fixed[1][only]]
        prepared = prepare_batches(learner, fixed, [t[only] for t in row])
        step = self.step_of(learner, learner.algorithm, current)
        return step(own, self.hypers[replica], [t[0] for t in prepared])

    def write_back(self, changing: list[Tensor], steps: int) -> None:
        """Update the learners with what ``steps`` steps made of ``changing``: all of them or, on an error, none."""
        after = []
        for replica in range(len(self.learners)):
            params, buffers, state = trees.unflatten(self.part_of(changing, replica), self.spec)
            after.append((params, buffers, trees.map_tree(torch.clone, state)))
        for learner, model in zip(self.learners, after, strict=True):
            learner.update(model, steps)
        self.changing, self.fixed = [], []  # step functions of this task may be kept, and with them this group


def prepare_batches(learner: Learner, fixed: list[Tensor], row: list[Tensor]) -> list[Tensor]:
    """The tensors of a :class:`Batch`, replicas first. All learners of a group prepare their inputs alike."""
    pool, masks = fixed[:2]
    rows, y, task, slots, from_past_task, placed, augment = row
    x = learner.for_training(_take(pool, rows.flatten()), augment.flatten(0, 1) if augment.numel() else None)
    replicas = torch.arange(len(rows), device=rows.device)[:, None]
    return [x.unflatten(0, (len(rows), -1)), y, task, masks[replicas, task], slots, from_past_task, placed]


def _take(pool: Tensor, rows: Tensor) -> Tensor:
    """These rows of a pool; on a CPU as those of a table, which takes an eighth of the time under vmap."""
    if pool.is_cuda:
        return pool[rows]
    table: Tensor = F.embedding(rows, pool.flatten(1))
    taken: Tensor = table.unflatten(1, pool.shape[1:])
    return taken


def mask_tables(masks: Sequence[ClassMask]) -> Tensor:
    """replicas x tasks x classes: the mask of an example of each task."""
    tasks = torch.arange(len(masks[0].classes_of), device=masks[0].classes_of.device)
    return torch.stack([mask.train(tasks) for mask in masks])


def common_structure(models: Sequence[Any]) -> trees.Structure:
    """The structure that these trees have in common; ValueError where they differ."""
    first, *others = (trees.flatten(model)[1] for model in models)
    if any(other != first for other in others):
        raise ValueError("their states differ in structure")
    return first


def stack_leaves(models: Sequence[Any]) -> list[Tensor]:
    """The leaves of trees of equal structure, each stacked over the trees."""
    return [torch.stack([t.detach() for t in several]) for several in zip(*map(trees.leaves, models), strict=True)]


class StackedGroup(Group):
    """Replicas as one network with one dimension more."""

    def __init__(self, learners: Sequence[Learner], masks: Sequence[ClassMask], pool: Tensor) -> None:
        super().__init__(learners)
        self.method = learners[0].algorithm  # which takes the steps
        self.changing = stack_leaves([learner.model for learner in learners])
        self.fixed = [pool, mask_tables(masks), *map(torch.stack, zip(*self.hypers, strict=True))]

    def part_of(self, tensors: list[Tensor], replica: int) -> list[Tensor]:
        return [t[replica] for t in tensors]

    def join(self, parts: Sequence[list[Tensor]]) -> list[Tensor]:
        return [torch.stack(several) for several in zip(*parts, strict=True)]

    def make_step(self, tables: StepTables, like: int) -> Step:
        return self._stacked(self.step_of(self.learners[0], self.method, tables.sizes[like][0]))

    def operations(self, tables: StepTables, segment: range) -> Operations:
        """What the steps of a segment compute, written down for some replicas; ValueError where they differ."""
        rows = [tables.row(i) for i in (segment[0], segment[-1])]
        batches = [prepare_batches(self.learners[0], self.fixed, row) for row in rows]
        again = prepare_batches(self.learners[0], self.fixed, rows[0])
        if not all(map(torch.equal, batches[0], again)):
            raise ValueError("a transform gives something else for the same inputs")
        examples = [
            (self.changing, self.fixed[2:], batches[0]),
            (self.perturbed(), perturb(self.fixed[2:]), batches[1]),  # other values, of which nothing may depend
        ]
        written = []
        for replica in pick_replicas(self.learners):
            learner, method = self.learners[replica], self.learners[replica].algorithm
            own = [tuple([t[replica] for t in tensors] for tensors in lists) for lists in examples]
            attributes = dict(vars(method))
            written.append(Operations(self.step_of(learner, method, tables.sizes[segment[0]][0]), *own))  # type: ignore[arg-type]
            if any(attributes.get(name) is not value for name, value in vars(method).items()):
                raise ValueError("a step changes its method's attributes")
        if not all(written[0].equals(other) for other in written):
            raise ValueError("a step reads something that is not in its arguments: replicas compute different things")
        return written[0]

    def trace_step(self, operations: Operations, row: list[Tensor]) -> TracedStep:
        """The step of all replicas, traced."""
        return TracedStep(self._stacked(operations), self.changing, self.fixed, row)

    def _stacked(self, step_of_one: Step) -> Step:
        """The step of all replicas, which are prepared together."""

        def step(changing: list[Tensor], fixed: list[Tensor], row: list[Tensor]) -> list[Tensor]:
            prepared = prepare_batches(self.learners[0], fixed, row)
            new: list[Tensor] = torch.func.vmap(step_of_one)(changing, fixed[2:], prepared)
            return new

        return step


Arguments = tuple[list[Tensor], list[Tensor], list[Tensor]]  # of one replica's step: changing, hyperparameters, batch


class ParallelGroup(Group):
    """Replicas side by side, on a GPU each on a CUDA stream of its own."""

    def __init__(self, learners: Sequence[Learner], masks: Sequence[ClassMask], pool: Tensor) -> None:
        super().__init__(learners)
        leaves = [trees.flatten(learner.model)[0] for learner in learners]
        self._leaves = len(leaves[0])
        self.changing = [leaf.detach() for own in leaves for leaf in own]
        self.fixed = [pool, mask_tables(masks), *(h for own in self.hypers for h in own)]
        self._streams = [torch.cuda.Stream(pool.device) for _ in learners] if pool.is_cuda else []

    def part_of(self, tensors: list[Tensor], replica: int) -> list[Tensor]:
        return tensors[replica * self._leaves : (replica + 1) * self._leaves]

    def join(self, parts: Sequence[list[Tensor]]) -> list[Tensor]:
        return [t for own in parts for t in own]

    def make_step(self, tables: StepTables, like: int) -> Step:
        first, current, row = self.learners[0], tables.sizes[like][0], tables.row(like)
        steps = [self.step_of(learner, learner.algorithm, current) for learner in self.learners]
        changing, *others = self._arguments(0, self.changing, self.fixed, prepare_batches(first, self.fixed, row))
        refuse_randomness(lambda: steps[0]([t.clone() for t in changing], *others), row[0].device)

        def step(changing: list[Tensor], fixed: list[Tensor], row: list[Tensor]) -> list[Tensor]:
            prepared = prepare_batches(first, fixed, row)
            return self._run(steps, [self._arguments(i, changing, fixed, prepared) for i in range(len(steps))])

        return step

    def _arguments(
        self, replica: int, changing: list[Tensor], fixed: list[Tensor], prepared: list[Tensor]
    ) -> Arguments:
        """What a replica's step takes."""
        count = len(self.hypers[0])
        hypers = fixed[2 + replica * count : 2 + (replica + 1) * count]
        return self.part_of(changing, replica), hypers, [t[replica] for t in prepared]

    def _run(self, steps: Sequence[Step], arguments: Sequence[Arguments]) -> list[Tensor]:
        """Take the steps of all replicas, at the same time where there are CUDA streams."""
        new: list[Tensor] = []
        if not self._streams:
            for step, given in zip(steps, arguments, strict=True):
                new += step(*given)
            return new
        for stream, step, given in zip(self._streams, steps, arguments, strict=True):
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                new += step(*given)
        for stream in self._streams:
            torch.cuda.current_stream().wait_stream(stream)
        return new


def is_normalised(psi: nn.Module) -> bool:
    """Whether psi has BatchNorm, or another layer that keeps statistics."""
    return any(isinstance(module, NORMS) for module in psi.modules())


# -- a step together is compared with the step alone -------------------------------------------------------------------

# How much a tensor's change in a step may differ from its change where the replica steps alone, relative to the latter.
# In bf16 the changes of some of ResNet18's tensors, stacked and not, differ by a third.
TOLERANCE = {"float32": 0.02, "tf32": 0.2, "bf16": 0.6}
MAX_COMPARED = 16  # replicas that are compared with their step alone


def tolerance_of(learner: Learner, device: torch.device) -> float:
    """The tolerance for the precision that a learner computes in."""
    if learner.autocast is not None:
        return TOLERANCE["bf16"]
    is_tf32 = device.type == "cuda" and torch.backends.cuda.matmul.allow_tf32
    return TOLERANCE["tf32" if is_tf32 else "float32"]


def compare_steps(before: list[Tensor], ours: list[Tensor], theirs: list[Tensor], tolerance: float) -> None:
    """ValueError where two steps from ``before`` differ by more than ``tolerance`` of a tensor's change.

    What rounding alone can cause is allowed.
    """
    known = [~(a.isnan() & b.isnan() | a.isinf() & (a == b)) for a, b in zip(ours, theirs, strict=True)]
    sizes = [_distance(b, start, where) for start, b, where in zip(before, theirs, known, strict=True)]
    floats = [t.is_floating_point() for t in before]
    largest = max((size for size, is_float in zip(sizes, floats, strict=True) if is_float), default=0.0)
    for start, a, b, where, size, is_float in zip(before, ours, theirs, known, sizes, floats, strict=True):
        off = _distance(a, b, where)
        slack = 0.0
        if is_float:
            slack = 1e-6 * float(start.double().nan_to_num(0.0, 0.0, 0.0).norm()) + 1e-3 * tolerance * largest
        if not off <= tolerance * size * is_float + slack:
            text = f"alone it changes a tensor by {size:.1e}, together the result differs from that by {off:.1e}"
            raise ValueError(f"a step reads something that is not in its arguments: {text}")


def _distance(a: Tensor, b: Tensor, where: Tensor) -> float:
    return float((a.double() - b.double())[where].norm())


def perturb(tensors: list[Tensor]) -> list[Tensor]:
    """The tensors, each scaled by a factor of its own between 1 and 1.02.

    When a task begins, a network equals its old copy and gives the outputs that were stored. The gradient of a distance
    to these is then nothing but rounding, so that steps from there cannot be compared.
    """
    factors = (1 + 0.02 * ((number + 1) * 0.618 % 1) for number in range(len(tensors)))
    return [t * factor if t.is_floating_point() else t for t, factor in zip(tensors, factors, strict=True)]


def pick_replicas(learners: Sequence[Learner]) -> list[int]:
    """Which replicas to compare: all where they are few, else some of different seeds and hyperparameters."""
    if len(learners) <= MAX_COMPARED:
        return list(range(len(learners)))
    reverse = list(enumerate(learners))[::-1]
    seeds = {learner.seed: replica for replica, learner in reverse}
    hypers = {str(learner.hyper): replica for replica, learner in reverse}
    return sorted({*sorted(seeds.values())[: MAX_COMPARED // 2], *sorted(hypers.values())[-MAX_COMPARED // 2 :]})


def refuse_randomness(step: Callable[[], object], device: torch.device) -> None:
    """ValueError where a step draws random numbers.

    Random layers would draw from generators that all replicas share. The eager engine seeds them at every step.
    """
    generators = global_generators(device)
    before = [g.get_state() for g in generators]
    step()
    if any(not torch.equal(g.get_state(), state) for g, state in zip(generators, before, strict=True)):
        for g, state in zip(generators, before, strict=True):
            g.set_state(state)
        raise ValueError("a step draws random numbers, for example in random layers")
