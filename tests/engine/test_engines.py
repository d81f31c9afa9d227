"""Every fast engine does what the eager one does: same plans, same steps to float tolerance, same accuracies."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from cohorts import CASES, assert_alike, batch_norm_psi, replica, trained
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from training import Stop, make_job, stop_at, texts, train, train_all

from cclfp.core.memory import Examples
from cclfp.core.randomness import generator
from cclfp.core.torch_private import NEEDED
from cclfp.engine import compiled, graph
from cclfp.engine.cohort import Cohort, make_group
from cclfp.engine.eager import seconds_per_step
from cclfp.engine.graph import overwrite
from cclfp.engine.groups import MAX_COMPARED, ParallelGroup, StackedGroup, compare_steps, perturb, pick_replicas
from cclfp.engine.plan import StepTables
from cclfp.engine.replica import Replica
from cclfp.methods import METHODS
from cclfp.methods.er import ER
from cclfp.nets import linear
from cclfp.runs.events import Event, Step
from cclfp.runs.jobs import Job
from cclfp.runs.settings import configurations
from cclfp.runs.store import Store
from cclfp.testing import stackable_psi, toy_stream

KINDS = [(0, 0.02), (1, 0.02), (1, 0.01)]  # seeds and step sizes that differ within a cohort


@pytest.fixture
def not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiled engine works however few steps there are, and its compiler gives back the step."""
    monkeypatch.setattr(compiled, "WORTH", 1)
    monkeypatch.setattr(compiled, "program", lambda step, *arguments, **options: step)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler compiles what is used often in a toy stream."""
    monkeypatch.setattr(compiled, "WORTH", 50)


# -- as each replica alone ---------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "scenario", "psi"),
    [(*case, stackable_psi) for case in CASES] + [(method, None, batch_norm_psi) for method in METHODS],
)
def test_replicas_together_are_as_each_alone(method: str, scenario: str, psi: Callable[[], nn.Module]) -> None:
    """Without the compiler, which the next test has."""
    make = [partial(replica, method, scenario, seed, psi=psi, lr=lr) for seed, lr in KINDS]
    for ours, one in zip(trained([one() for one in make], "stacked"), make, strict=True):
        assert_alike(ours, trained([one()])[0])


@pytest.mark.slow
@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize(("method", "psi"), [("ccl-fp+", stackable_psi), ("si", stackable_psi), ("er", batch_norm_psi)])
def test_compiled_replicas_are_as_each_alone(method: str, psi: Callable[[], nn.Module]) -> None:
    cohort = Cohort([replica(method, "domain", seed, psi=psi) for seed in range(2)], "compiled", pytest.fail)
    while not cohort.is_done:
        cohort.advance()
    assert cohort.engine == "compiled"
    for seed, ours in enumerate(cohort.replicas):
        assert_alike(ours, trained([replica(method, "domain", seed, psi=psi)])[0])


class Recorded(graph._Recorded):
    """In the place of a CUDA graph: a step that is taken again each time, on the same tensors."""

    def __init__(self, step: Any, stack: Any, tables: Any, segment: range, pool: object) -> None:
        self.step, self._tables, self.graph = step, tables, self  # type: ignore[assignment]
        self.changing = [t.clone() for t in stack.changing]
        self._fixed = [stack.fixed[0], *(t.clone() for t in stack.fixed[1:])]
        self._counter, self._segment = torch.full((1,), segment[0]), segment

    def replay(self) -> None:
        overwrite(self.changing, self.step(self.changing, self._fixed, self._row(self._segment)))
        self._counter.add_(1)


class DoneEvent:
    def record(self) -> None: ...

    def query(self) -> bool:
        return True


@pytest.mark.slow
@pytest.mark.parametrize("psi", [stackable_psi, batch_norm_psi])
@pytest.mark.parametrize("method", METHODS)
def test_the_graph_engine_without_a_card(method: str, psi: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the recording itself: tensors that stay in place, a counter that finds each step's row."""
    monkeypatch.setitem(NEEDED, "graph", ())  # for the recording itself
    monkeypatch.setattr(graph, "_Recorded", Recorded)
    monkeypatch.setattr(graph, "SHORTEST", 2)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(torch.cuda, "Event", DoneEvent)
    scenario = METHODS[method].scenarios()[0]  # class: masks change with the task
    ours = trained([replica(method, scenario, seed, psi=psi) for seed in range(3)], "graph")
    for seed in range(3):
        assert_alike(ours[seed], trained([replica(method, scenario, seed, psi=psi)])[0])


def test_a_cohort_of_one_is_as_one_of_many() -> None:
    many = trained([replica("er", "class", seed) for seed in range(20)], "stacked")
    assert_alike(trained([replica("er", "class", 7)], "stacked")[0], many[7])


def test_each_replica_has_the_inputs_and_tasks_of_its_own_stream() -> None:
    data = toy_stream("task")
    order = [[5, 0], [1, 4], [3, 2]]
    of = torch.tensor([next(t for t, members in enumerate(order) if y in members) for y in range(6)])
    tested = Examples(*(torch.cat(parts) for parts in zip(*data.test, strict=True)))
    other_tasks = dataclasses.replace(
        data,
        classes=order,
        train=data.train._replace(task=of[data.train.y]),
        train_rows=[(of[data.train.y] == task).nonzero().flatten() for task in range(3)],
        test=[tested._replace(task=of[tested.y]).rows(of[tested.y] == task) for task in range(3)],
    )
    other_inputs = dataclasses.replace(data, train=data.train._replace(x=data.train.x.flip(1)))
    streams = (data, other_tasks, other_inputs)
    ours = trained([replica("hal", "task", stream=stream) for stream in streams], "stacked")
    for mine, stream in zip(ours, streams, strict=True):
        assert_alike(mine, trained([replica("hal", "task", stream=stream)])[0])


def test_plans_are_made_once_a_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    made, original, stream = list[int](), Replica.plan_maker, toy_stream("class")

    def planning(self: Replica, after: Any = None) -> Any:
        made.append(self.learner.seed)
        return original(self, after)

    monkeypatch.setattr(Replica, "plan_maker", planning)
    trained([replica("er", "class", seed, stream=stream, lr=lr) for seed in range(2) for lr in (0.1, 0.05)], "stacked")
    assert made == [0, 1] * 3


@pytest.mark.parametrize("method", ["ccl-fp+", "a-gem", "hal"])
def test_a_plan_made_ahead_is_the_plan(method: str) -> None:
    mine = replica(method, "class")
    while not mine.is_done:
        ahead = mine.plan_maker(mine.plan_maker()())() if mine.can_plan_ahead else None
        Cohort([mine]).advance()
        if ahead is not None:
            then = mine.plan_maker()()
            assert ahead.sizes == then.sizes
            for name in ("rows", "current", "memory", "slots", "from_past_task"):
                assert torch.equal(getattr(ahead, name), getattr(then, name)), name
    assert not replica("icarl", "class").can_plan_ahead


# -- which steps are compiled ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("not_compiled")
@pytest.mark.parametrize(
    ("worth", "engines"), [(20, ["compiled"] * 3), (40, ["eager", "compiled", "compiled"]), (3000, ["eager"] * 3)]
)
def test_steps_of_one_kind_are_counted_from_task_to_task(
    worth: int, engines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few steps are trained eagerly. ER's 32 in a task are of one kind in all: the second task makes them enough."""
    mine = replica("er", "domain")
    monkeypatch.setattr(compiled, "WORTH", worth)
    cohort, found = Cohort([mine], "compiled"), []
    while not cohort.is_done:
        cohort.advance()
        found.append(cohort.engine)
    assert found == engines


class Counts(ER):
    """Changes its state in place."""

    name = "counts"

    def begin_task(self, params: Any, buffers: Any, state: Any, hyper: Any, context: Any) -> Any:
        return {"n": torch.zeros(())}

    def step(self, params: Any, buffers: Any, state: Any, batch: Any, hyper: Any) -> Any:
        state["n"] += 1
        return super().step(params, buffers, state, batch, hyper)


class Turns(Counts):
    """Its state is turned in memory by each step."""

    name = "turns"

    def begin_task(self, params: Any, buffers: Any, state: Any, hyper: Any, context: Any) -> Any:
        return {"n": torch.zeros(200, 100, dtype=torch.float64)}

    def step(self, params: Any, buffers: Any, state: Any, batch: Any, hyper: Any) -> Any:
        params, buffers, *_ = ER.step(self, params, buffers, state, batch, hyper)
        return params, buffers, {"n": (state["n"].contiguous() + 1).contiguous()}


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["stacked", "compiled"])
@pytest.mark.parametrize("method", [Counts, Turns])
def test_a_step_that_changes_its_state_is_taken_once(
    method: type[ER], engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "WORTH", 20)  # only the most frequent kind of steps is compiled
    (ours,) = trained([replica(method, "domain")], engine)
    assert (ours.learner.model[2]["n"] == ours.steps(2)).all()


# -- what an engine refuses --------------------------------------------------------------------------------------------


class Remembers(ER):
    """Keeps in an attribute what belongs into the state."""

    name = "remembers"
    scale = 1.0

    def begin_task(self, params: Any, buffers: Any, state: Any, hyper: Any, context: Any) -> Any:
        self.scale = 1 / (1 + context.position)
        return state

    def loss(self, params: Any, buffers: Any, state: Any, batch: Any, hyper: Any) -> tuple[Tensor, Any]:
        loss, buffers = super().loss(params, buffers, state, batch, hyper)
        return self.scale * loss, buffers


class RemembersItsHyper(Remembers):
    def begin_task(self, params: Any, buffers: Any, state: Any, hyper: Any, context: Any) -> Any:
        self.scale = 10 * float(hyper.lr)
        return state


class Grows(ER):
    """Its state gets another structure."""

    name = "grows"

    def step(self, params: Any, buffers: Any, state: Any, batch: Any, hyper: Any) -> Any:
        params, buffers, *_ = super().step(params, buffers, state, batch, hyper)
        return params, buffers, {"more": torch.zeros(())}


def frozen(seed: int) -> Replica:
    """With a layer that is not trained, drawn from the seed: a step reads it, and it is none of its arguments."""

    def psi() -> nn.Module:
        first = linear(8, 16, generator(seed, "frozen")).requires_grad_(False)
        return nn.Sequential(first, nn.ReLU(), linear(16, 16, generator(0, "free"))).double()

    return replica("er", "class", seed, psi=psi)


def with_dropout() -> nn.Module:
    return nn.Sequential(stackable_psi(), nn.Dropout())


def batch_norm_and_dropout() -> nn.Module:
    return nn.Sequential(batch_norm_psi(), nn.Dropout())


REFUSED: dict[str, tuple[list[Callable[[], Replica]], str]] = {
    "random layers": ([partial(replica, "er", "class", seed, psi=with_dropout) for seed in (0, 1)], "random operation"),
    "random layers, BatchNorm": (
        [partial(replica, "er", "class", seed, psi=batch_norm_and_dropout) for seed in (0, 1)],
        "random layers",
    ),
    "random layers, one": ([partial(replica, "finetune", "class", psi=batch_norm_and_dropout)], "random layers"),
    "frozen layers": ([partial(frozen, seed) for seed in (0, 1)], "not in its arguments"),
    "attributes that differ": (
        [partial(replica, RemembersItsHyper, "class", lr=lr) for lr in [0.1] * 10 + [0.05] * 10],
        "not in its arguments",
    ),
    "tasks of different sizes": (
        [partial(replica, "er", "class", stream=toy_stream("class", per_class=n)) for n in (30, 31)],
        "ValueError: their tasks are of different sizes",
    ),
    "a state of another structure": ([partial(replica, Grows, "class")], "state of another structure"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_trained_together_is_trained_eagerly_and_it_is_said(kind: str) -> None:
    make, reason = REFUSED[kind]
    notes: list[str] = []
    for mine, one in zip(trained([one() for one in make], "stacked", notes=notes), make, strict=True):
        assert_alike(mine, trained([one()])[0])
    (note,) = notes
    assert note.startswith("its runs cannot be trained together (")
    assert reason in note
    assert note.endswith("): continuing eagerly")


def test_equal_layers_that_are_frozen_can_be_stacked() -> None:
    trained([frozen(0), frozen(0)], "stacked")


def broken(*arguments: Any, **options: Any) -> Any:
    raise RuntimeError("no C++ compiler\nfound anywhere")


@pytest.mark.slow
@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize(
    ("method", "changed", "note"),
    [
        # CCL-FP has two kinds of steps, one before there is an old psi and one after; the compiler is asked once.
        ("ccl-fp", (torch._inductor, "aot_compile", broken), "not compiled: the compiler failed: RuntimeError: no C++"),
        ("er", (compiled, "MAX_OPERATIONS", 10), "operations, above 10"),
        (Remembers, None, "not in its arguments"),  # a program does not see that the attribute changes
    ],
)
def test_a_step_that_the_compiler_cannot_have(
    method: Any, changed: Any, note: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if changed is not None:
        monkeypatch.setattr(*changed)
    notes: list[str] = []
    for seed, ours in enumerate(
        trained([replica(method, "domain", seed) for seed in range(2)], "compiled", notes=notes)
    ):
        assert_alike(ours, trained([replica(method, "domain", seed)])[0])
    (said,) = notes
    assert note in said
    assert said.endswith(": continuing eagerly")


FAILED = "its runs cannot be trained together (OutOfMemoryError: out of memory): continuing eagerly"


@pytest.mark.parametrize(
    ("most", "runs", "wanted"),
    [
        (2, 5, ["5 runs at once need too much memory: 2 from here on"]),
        (0, 2, ["2 runs at once need too much memory: 1 from here on", FAILED]),
        (0, 1, [FAILED]),  # half of one is none, which must not mean that they are counted again, and again
    ],
)
def test_too_many_for_the_memory_are_halved(
    most: int, runs: int, wanted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = compiled.Programs.train

    def train(self: Any, group: Any, *arguments: Any) -> bool:
        if len(group.learners) > most:
            raise torch.OutOfMemoryError("out of memory")
        return original(self, group, *arguments)

    monkeypatch.setattr(compiled.Programs, "train", train)
    notes: list[str] = []
    ours = trained([replica("er", "class", seed) for seed in range(runs)], "stacked", notes=notes)
    assert notes == wanted
    assert_alike(ours[-1], trained([replica("er", "class", runs - 1)])[0])


def test_replicas_that_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as the memory has room for at once; a size that does not divide them."""
    monkeypatch.setattr(Cohort, "_count_at_once", lambda *arguments: 2)
    told: list[int] = []
    cohort = Cohort([replica("ccl-fp+", "class", seed) for seed in range(5)], "stacked")
    while not cohort.is_done:
        told.clear()
        steps = cohort.replicas[0].steps(cohort.replicas[0].position)
        cohort.advance(told.append)
        assert told == sorted(told)
        assert told[-1] == steps
    for seed, ours in enumerate(cohort.replicas):
        assert_alike(ours, trained([replica("ccl-fp+", "class", seed)])[0])


def test_memory_that_ends_while_learners_take_over_leaves_them_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    original, failed = torch.clone, list[int]()

    def clone(t: Tensor) -> Tensor:
        if not failed and t.shape == (6,) and t.dtype == torch.int64:
            failed.append(1)
            raise torch.OutOfMemoryError("out of memory")
        return original(t)

    replicas = [replica("hal", "class", seed) for seed in range(2)]
    monkeypatch.setattr(torch, "clone", clone)
    ours = trained(replicas, "stacked", notes=[])
    assert failed
    for seed in range(2):
        assert_alike(ours[seed], trained([replica("hal", "class", seed)])[0])


def test_an_error_of_who_is_told_is_theirs() -> None:
    def told(step: int) -> None:
        raise BrokenPipeError("nobody listens")

    with pytest.raises(BrokenPipeError, match="nobody listens"):
        Cohort([replica("er", "class")], "stacked", pytest.fail).advance(told)


def test_scores_that_cannot_be_stacked_are_said_and_taken_one_by_one() -> None:
    class Odd(ER):
        name = "odd"

        def scores(self, params: Any, buffers: Any, state: Any, x: Tensor) -> Tensor:
            given = super().scores(params, buffers, state, x)
            return given if float(given.sum()) < torch.inf else -given

    notes: list[str] = []
    ours = trained([replica(Odd, "domain", seed) for seed in (0, 1)], "stacked", notes=notes)
    (note,) = notes
    assert "cannot be tested together" in note
    assert ours[1].matrix == trained([replica("er", "domain", 1)])[0].matrix


# -- a step together is compared with the step alone -------------------------------------------------------------------


@pytest.mark.parametrize(("psi", "kind"), [(stackable_psi, StackedGroup), (batch_norm_psi, ParallelGroup)])
def test_a_step_gives_what_changes_and_nothing_else(psi: Any, kind: type) -> None:
    """A compiled program and a CUDA graph have the outputs of the step; the loss is none of them."""
    replicas = [replica("si", "class", seed, psi=psi) for seed in range(2)]
    plans, masks = [one.plan() for one in replicas], [one.begin_task() for one in replicas]
    train = [one.stream.train for one in replicas]
    group = make_group([one.learner for one in replicas], masks, torch.cat([one.x for one in train]))
    assert type(group) is kind
    tables = StepTables(plans, train, [0, len(train[0].y)])
    with torch.no_grad():
        traced = make_fx(group.make_step(tables, 0))(group.changing, group.fixed, tables.row(0))
    (output,) = (node for node in traced.graph.nodes if node.op == "output")
    assert [node.meta["val"].shape for node in output.args[0]] == [t.shape for t in group.changing]


def test_steps_that_differ_are_found() -> None:
    before, after = [torch.ones(4), torch.zeros(2)], [torch.full((4,), 1.1), torch.ones(2)]
    compare_steps(before, after, [t.clone() for t in after], 0.02)
    compare_steps(before, [torch.full((4,), 1.101), after[1]], after, 0.02)
    with pytest.raises(ValueError, match="a step reads something that is not in its arguments"):
        compare_steps(before, [torch.full((4,), 1.2), after[1]], after, 0.02)
    with pytest.raises(ValueError, match="off by 1"):
        compare_steps([torch.tensor([3])], [torch.tensor([5])], [torch.tensor([4])], 0.6)


def test_perturbed_tensors_are_near_and_unequal() -> None:
    near = perturb([torch.ones(3), torch.ones(3), torch.tensor([7])])
    assert all(1 < float(t[0]) < 1.02 for t in near[:2])
    assert not torch.equal(near[0], near[1])
    assert near[2].tolist() == [7]


def test_replicas_of_different_seeds_and_hyperparameters_are_compared() -> None:
    learners = [replica("er", "class", seed, lr=lr).learner for seed in range(12) for lr in (0.1, 0.2)]
    picked = pick_replicas(learners)
    assert len(picked) <= MAX_COMPARED
    assert len({learners[i].seed for i in picked}) >= 8
    assert {learners[i].hyper.lr for i in picked} == {0.1, 0.2}
    assert pick_replicas(learners[:3]) == [0, 1, 2]


# -- jobs --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def job(tmp_path: Path, small_mnist: None, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Job]:
    """Makes a job with this seed and fields of its execution; each step is an event."""
    monkeypatch.setattr("cclfp.runs.training.STEP_EVERY", 0.0)

    def make(seed: int = 0, **execution: Any) -> Job:
        (configuration,) = configurations(["er"], "split-mnist")
        return make_job(configuration, seed, **{"store": tmp_path / "runs.sqlite", "engine": "compiled", **execution})

    return make


def test_a_step_of_the_eager_engine_is_timed() -> None:
    assert 0 < seconds_per_step(replica("er", "class")) < 1


@pytest.mark.usefixtures("not_compiled")
@pytest.mark.parametrize(("seconds", "kept", "engine"), [(0.0, 0, "eager"), (9, 0, "eager"), (9, 1, "compiled")])
def test_auto_compiles_where_there_is_enough_to_train(
    seconds: float, kept: int, engine: str, job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eager takes 9 s: too few for the compiler, but not where its programs are kept."""

    def program(step: Any, *arguments: Any, keep: Callable[..., None]) -> Any:
        keep(Path(__file__), has_constants=False)
        return step

    monkeypatch.setattr(compiled, "program", program)
    monkeypatch.setattr("cclfp.engine.eager.seconds_per_step", lambda r: seconds / sum(map(r.steps, range(5))))
    for seed in range(kept):
        train(job(seed))
    events: list[Event] = []
    assert train(job(9, engine="auto"), events.append)["environment"]["engine"] == engine
    assert any(text.startswith(f"engine: {engine} (eager would take about") for text in texts(events))


@pytest.mark.usefixtures("not_compiled")
def test_events_say_when_a_run_waits_for_the_compiler(job: Callable[..., Job]) -> None:
    events: list[Event] = []
    train(job(), events.append)
    steps = [event for event in events if isinstance(event, Step)]
    waiting = [i for i, event in enumerate(steps) if event.compiling]
    assert waiting
    for i in waiting[1:]:
        assert steps[i].step == steps[i - 1].step  # those before it are taken
        assert steps[i].task in (steps[i - 1].task, steps[i - 1].task + 1)
    assert not steps[-1].compiling


@pytest.mark.usefixtures("not_compiled")
@pytest.mark.parametrize("step", [40, 75])
def test_a_stopped_cohort_goes_on_where_it_was(step: int, job: Callable[..., Job], tmp_path: Path) -> None:
    jobs = [job(seed) for seed in range(2)]
    with pytest.raises(Stop):
        train_all(jobs, stop_at(step))
    assert Store(jobs[0].execution.store).records() == []
    events: list[Event] = []
    # The engine that the checkpoints name is used again, whatever auto would choose now.
    again = train_all([one.with_execution(engine="auto") for one in jobs], events.append)
    assert sum("continuing from the checkpoint" in text for text in texts(events)) == 2
    assert {record["environment"]["engine"] for record in again} == {"compiled"}
    whole = train_all([one.with_execution(store=tmp_path / "other.sqlite") for one in jobs])
    assert [r["accuracy_matrix"] for r in again] == [r["accuracy_matrix"] for r in whole]


@pytest.mark.usefixtures("not_compiled")
def test_another_engine_asked_for_starts_again(job: Callable[..., Job]) -> None:
    with pytest.raises(Stop):
        train(job(), stop_at(40))
    events: list[Event] = []
    record = train(job(engine="eager"), events.append)
    assert any("it was made with engine compiled, not with the eager asked for" in text for text in texts(events))
    assert record["environment"]["engine"] == "eager"
