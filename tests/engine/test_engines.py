"""Every fast engine does what the eager one does: same plans, same steps to float tolerance, same accuracies."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from training import Stop, change, stop_at, texts, train, train_all
from training import make_job as make_any_job

import cclfp
from cclfp.core.memory import Examples
from cclfp.core.randomness import generator
from cclfp.core.torch_private import NEEDED
from cclfp.engine import compiled as compiled_module
from cclfp.engine import graph
from cclfp.engine.cohort import Cohort
from cclfp.engine.graph import overwrite
from cclfp.engine.groups import Group
from cclfp.engine.replica import Replica
from cclfp.losses import cross_entropy
from cclfp.methods import METHODS
from cclfp.methods.er import ER
from cclfp.nets import linear
from cclfp.runs.events import Event, Finished, Note, Step
from cclfp.runs.jobs import Job, into_cohorts
from cclfp.runs.pool import Pool
from cclfp.runs.run import run_jobs
from cclfp.runs.settings import configurations
from cclfp.runs.store import Store
from cclfp.streams import Stream
from cclfp.testing import Case, toy_stream

PROGRAM = compiled_module.program
CASES = [(m, s) for m, method in METHODS.items() for s in method.scenarios()]


def plain_psi(*, random: bool = False) -> nn.Module:
    """Without BatchNorm, so that replicas are stacked; float64, so that rounding cannot hide what is not the same."""
    layers = [linear(8, 16, generator(0, "toy psi")), nn.Tanh()]
    return nn.Sequential(*layers, *[nn.Dropout(0.1)] * random).double()


def replica(method: str, scenario: str, seed: int = 0, *, random: bool = False, **hyper: float) -> Replica:
    case = Case(METHODS[method], scenario, hyper)
    return Replica(case.learner(seed, psi=plain_psi(random=random)), case.stream())


def with_batch_norm(method: str, seed: int = 0, *, dropout: bool = False, **hyper: float) -> Replica:
    case = Case(METHODS[method], METHODS[method].scenarios()[-1], hyper)
    g = generator(seed, "initialisation")
    psi = nn.Sequential(linear(8, 16, g), nn.BatchNorm1d(16), nn.ReLU(), linear(16, 8, g)).double()
    return Replica(case.learner(seed, psi=psi.append(nn.Dropout()) if dropout else psi), case.stream())


def trained(replicas: list[Replica], engine: str, notes: list[str] | None = None) -> list[Replica]:
    cohort = Cohort(replicas, engine, (notes if notes is not None else []).append)
    while not cohort.is_done:
        cohort.advance()
    return replicas


def assert_alike(ours: Replica, theirs: Replica, tolerance: float = 1e-9) -> None:
    for a, b in zip(ours.learner.model, theirs.learner.model, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
    assert ours.matrix == theirs.matrix
    assert ours.learner.steps == theirs.learner.steps


@pytest.mark.slow
@pytest.mark.parametrize(("method", "scenario"), CASES)
def test_stacked_replicas_are_as_each_alone(method: str, scenario: str) -> None:
    """Without the compiler, which the next tests have: seeds and hyperparameters differ within the cohort."""
    kinds = [(0, 0.1), (1, 0.1), (1, 0.05)]
    together = trained([replica(method, scenario, seed, lr=lr) for seed, lr in kinds], "compiled")
    for (seed, lr), ours in zip(kinds, together, strict=True):
        (alone,) = trained([replica(method, scenario, seed, lr=lr)], "eager")
        # At a task's first step FDR's network still gives the outputs that were stored. Which way the gradient of their
        # distance then points is decided by rounding, which on some processors differs between one and many replicas.
        assert_alike(ours, alone, tolerance=1e-2 if method == "fdr" else 1e-9)


@pytest.fixture(autouse=True)
def stacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replicas are stacked however few steps there are, and the compiler, which takes its time, gives back the step."""
    monkeypatch.setattr(compiled_module, "WORTH", 1)
    monkeypatch.setattr(compiled_module, "program", lambda step, *arguments, **options: step)


@pytest.fixture
def always(stacked: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler compiles."""
    monkeypatch.setattr(compiled_module, "WORTH", 50)
    monkeypatch.setattr(compiled_module, "program", PROGRAM)


@pytest.mark.slow
@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("method", ["ccl-fp+", "si"])
def test_compiled_replicas_are_as_each_alone(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    original = compiled_module.program

    def spy(*arguments: Any, **options: Any) -> Any:
        made.append(original(*arguments, **options))
        return made[-1]

    monkeypatch.setattr(compiled_module, "program", spy)
    together = trained([replica(method, "domain", seed) for seed in range(2)], "compiled")
    assert len(made) == 2 if method == "ccl-fp+" else made
    for seed, ours in enumerate(together):
        (alone,) = trained([replica(method, "domain", seed)], "eager")
        assert_alike(ours, alone)


def test_a_cohort_of_one_is_as_one_of_many() -> None:
    many = trained([replica("er", "class", seed) for seed in range(20)], "compiled")
    (one,) = trained([replica("er", "class", 7)], "compiled")
    assert_alike(one, many[7])


@pytest.mark.slow
def test_streams_that_share_inputs_but_not_tasks() -> None:
    data = toy_stream("task")
    order = [[5, 0], [1, 4], [3, 2]]
    of = torch.tensor([next(t for t, members in enumerate(order) if y in members) for y in range(6)])
    tested = Examples(*(torch.cat(parts) for parts in zip(*data.test, strict=True)))
    other = dataclasses.replace(
        data,
        classes=order,
        train=data.train._replace(task=of[data.train.y]),
        train_rows=[(of[data.train.y] == task).nonzero().flatten() for task in range(3)],
        test=[tested._replace(task=of[tested.y]).rows(of[tested.y] == task) for task in range(3)],
    )

    def make(stream: Stream) -> Replica:
        learner = cclfp.make("hal", psi=plain_psi(), num_classes=6, scenario="task", tasks=stream.classes, memory=30)
        return Replica(learner, stream)

    notes: list[str] = []
    ours = trained([make(data), make(other)], "compiled", notes)
    assert notes == []
    for mine, stream in zip(ours, (data, other), strict=True):
        assert_alike(mine, trained([make(stream)], "eager")[0])


def test_each_replica_has_the_inputs_of_its_own_stream() -> None:
    data = toy_stream("class")
    streams = [data, dataclasses.replace(data, train=data.train._replace(x=data.train.x.flip(1)))]
    case = Case(METHODS["er"], "class", {})
    make = [lambda s=s: Replica(case.learner(0, psi=plain_psi()), s) for s in streams]
    ours = trained([one() for one in make], "compiled")
    for mine, one in zip(ours, make, strict=True):
        assert_alike(mine, trained([one()], "eager")[0])


@pytest.mark.slow
def test_a_step_that_changes_its_state_in_place_is_not_taken_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counts(ER):
        name = "counts"

        def begin_task(self, params: Any, buffers: Any, state: Any, hyper: Any, context: Any) -> Any:
            return {"n": torch.zeros(())}

        def step(self, params: Any, buffers: Any, state: Any, batch: Any, hyper: Any) -> Any:
            state["n"] += 1
            return super().step(params, buffers, state, batch, hyper)

    case = Case(Counts, "class", {})
    for worth in (1, 10):  # not compiled, and only the most frequent kind compiled
        monkeypatch.setattr(compiled_module, "WORTH", worth)
        if worth > 1:
            monkeypatch.setattr(compiled_module, "program", PROGRAM)
        (ours,) = trained([Replica(case.learner(0, psi=nn.Linear(8, 4)), case.stream())], "compiled")
        assert ours.learner.model[2]["n"] == ours.steps(2)


@pytest.mark.slow
@pytest.mark.usefixtures("always")
def test_a_compiler_that_fails_is_said_and_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any, **options: Any) -> Any:
        raise RuntimeError("no C++ compiler\nfound anywhere")

    monkeypatch.setattr(torch._inductor, "aot_compile", broken)
    notes: list[str] = []
    # Two programs, one before there is an old psi and one after; the compiler is asked once.
    ours, _ = trained([replica("ccl-fp", "domain", seed) for seed in range(2)], "compiled", notes)
    assert notes == ["not compiled: the compiler failed: RuntimeError: no C++ compiler: continuing eagerly"]
    (alone,) = trained([replica("ccl-fp", "domain")], "eager")
    assert_alike(ours, alone)


@pytest.mark.usefixtures("always")
def test_a_step_too_long_for_the_compiler_is_said_and_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_module, "MAX_OPERATIONS", 10)
    notes: list[str] = []
    trained([replica("er", "domain")], "compiled", notes)
    assert len(notes) == 1
    assert "operations, above 10" in notes[0]


class Remembers(ER):
    """Keeps in an attribute what belongs into the state."""

    name = "remembers"
    from_hyper = False
    scale = 1.0

    def begin_task(self, params: Any, buffers: Any, state: Any, hyper: Any, context: Any) -> Any:
        self.scale = 10 * float(hyper.lr) if self.from_hyper else 1 / (1 + context.position)
        return state

    def loss(self, params: Any, buffers: Any, state: Any, batch: Any, hyper: Any) -> tuple[Tensor, Any]:
        loss, buffers = super().loss(params, buffers, state, batch, hyper)
        return self.scale * loss, buffers


class OfItsHyper(Remembers):
    """The same, of its hyperparameters."""

    from_hyper = True


def frozen(seed: int) -> Replica:
    """With a layer that is not trained, drawn from the seed: a step reads it, and it is none of its arguments."""
    psi = nn.Sequential(linear(8, 16, generator(seed, "frozen")), nn.ReLU(), linear(16, 16, generator(0, "free")))
    psi[0].requires_grad_(False)
    case = Case(METHODS["er"], "class", {})
    return Replica(case.learner(seed, psi=psi), case.stream())


def of_its_hyper(lr: float) -> Replica:
    case = Case(OfItsHyper, "class", {"lr": lr})
    return Replica(case.learner(0, psi=plain_psi()), case.stream())


def of_size(per_class: int) -> Replica:
    case = Case(METHODS["er"], "class", {})
    return Replica(case.learner(0, psi=plain_psi()), toy_stream("class", per_class=per_class))


REFUSED: dict[str, tuple[Callable[[Any], Replica], list[Any], str]] = {
    "random layers": (lambda seed: replica("er", "class", seed, random=True), [0, 1], "random operation"),
    "random layers, BatchNorm": (lambda seed: with_batch_norm("er", seed, dropout=True), [0, 1], "random layers"),
    "random layers, one": (lambda seed: with_batch_norm("finetune", seed, dropout=True, lr=0.01), [0], "random layers"),
    "frozen layers": (frozen, [0, 1], "not in its arguments"),
    "attributes that differ": (of_its_hyper, [0.1] * 10 + [0.05] * 10, "not in its arguments"),
    "tasks of different sizes": (of_size, [30, 31], "ValueError: their tasks are of different sizes"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_trained_together_is_trained_eagerly_and_it_is_said(kind: str) -> None:
    make, values, reason = REFUSED[kind]
    notes: list[str] = []
    ours = trained([make(value) for value in values], "compiled", notes)
    assert len(notes) == 1
    assert notes[0].startswith("its runs cannot be trained together (")
    assert reason in notes[0]
    assert notes[0].endswith("): continuing eagerly")
    for value, mine in dict(zip(values, ours, strict=True)).items():
        assert_alike(mine, trained([make(value)], "eager")[0], tolerance=0)


def test_equal_layers_that_are_frozen_can_be_stacked() -> None:
    notes: list[str] = []
    trained([frozen(0), frozen(0)], "compiled", notes)
    assert notes == []


@pytest.mark.slow
@pytest.mark.usefixtures("always")
def test_what_a_program_does_not_see_change_is_found() -> None:
    case = Case(Remembers, "domain", {})
    notes: list[str] = []
    (ours,) = trained([Replica(case.learner(0, psi=plain_psi()), case.stream())], "compiled", notes)
    assert "not in its arguments" in notes[0]
    assert_alike(ours, trained([Replica(case.learner(0, psi=plain_psi()), case.stream())], "eager")[0])


@pytest.mark.slow
def test_memory_that_ends_while_learners_take_over_leaves_them_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    original, failed = torch.clone, list[int]()

    def clone(t: Tensor) -> Tensor:
        if not failed and t.shape == (6,) and t.dtype == torch.int64:
            failed.append(1)
            raise torch.OutOfMemoryError("out of memory")
        return original(t)

    replicas = [replica("hal", "class", seed) for seed in range(2)]
    monkeypatch.setattr(torch, "clone", clone)
    notes: list[str] = []
    ours = trained(replicas, "compiled", notes)
    assert failed
    for seed in range(2):
        assert_alike(ours[seed], trained([replica("hal", "class", seed)], "eager")[0])


def test_an_error_of_who_is_told_is_theirs() -> None:
    def told(step: int) -> None:
        raise BrokenPipeError("nobody listens")

    notes: list[str] = []
    with pytest.raises(BrokenPipeError, match="nobody listens"):
        Cohort([replica("er", "class")], "compiled", notes.append).advance(told)
    assert notes == []


@pytest.mark.slow
@pytest.mark.usefixtures("always")
def test_a_state_that_a_step_turns_in_memory_is_compiled() -> None:
    class Turns(ER):
        name = "turns"

        def begin_task(self, params: Any, buffers: Any, state: Any, hyper: Any, context: Any) -> Any:
            return {"m": torch.zeros(200, 100, dtype=torch.float64)}

        def step(self, params: Any, buffers: Any, state: Any, batch: Any, hyper: Any) -> Any:
            params, buffers, *_ = super().step(params, buffers, state, batch, hyper)
            return params, buffers, {"m": (state["m"].contiguous() + 1).contiguous()}

    case = Case(Turns, "domain", {})
    notes: list[str] = []
    (ours,) = trained([Replica(case.learner(0, psi=plain_psi()), case.stream())], "compiled", notes)
    assert notes == []
    assert (ours.learner.model[2]["m"] == ours.steps(2)).all()


@pytest.mark.slow
@pytest.mark.usefixtures("always")
def test_side_by_side_and_compiled() -> None:
    ours = trained([with_batch_norm("er", seed) for seed in range(2)], "compiled")
    for seed in range(2):
        assert_alike(ours[seed], trained([with_batch_norm("er", seed)], "eager")[0])


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


@pytest.mark.slow
@pytest.mark.parametrize("make", [replica, with_batch_norm])
@pytest.mark.parametrize("method", METHODS)
def test_the_graph_engine_without_a_card(method: str, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the recording itself: tensors that stay in place, a counter that finds each step's row."""

    class Event:
        def record(self) -> None: ...

        def query(self) -> bool:
            return True

    monkeypatch.setitem(NEEDED, "graph", ())  # for the recording itself
    monkeypatch.setattr(graph, "_Recorded", Recorded)
    monkeypatch.setattr(graph, "SHORTEST", 2)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    arguments = (METHODS[method].scenarios()[0],) if make is replica else ()  # class: masks change with the task
    notes: list[str] = []
    ours = trained([make(method, *arguments, seed) for seed in range(3)], "graph", notes)
    assert notes == []
    for seed in range(3):
        assert_alike(ours[seed], trained([make(method, *arguments, seed)], "eager")[0])


def test_few_steps_are_trained_eagerly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_module, "WORTH", 3_000)
    monkeypatch.setattr(Group, "write_back", lambda *a: pytest.fail("stacked"))
    cohort = Cohort([replica("er", "class", seed) for seed in range(2)], "compiled")
    cohort.advance()
    assert cohort.engine == "eager"
    assert_alike(cohort.replicas[1], _after_one_task(replica("er", "class", 1)), tolerance=0)


def _after_one_task(replica: Replica) -> Replica:
    Cohort([replica]).advance()
    return replica


def test_kinds_are_counted_from_task_to_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """ER's steps are of one kind in all tasks: the second task makes them enough."""
    case = Case(METHODS["er"], "domain", {})
    mine = Replica(case.learner(0, psi=plain_psi()), case.stream())
    monkeypatch.setattr(compiled_module, "WORTH", mine.steps(0) + 1)
    cohort, engines = Cohort([mine], "compiled"), []
    while not cohort.is_done:
        cohort.advance()
        engines.append(cohort.engine)
    assert engines == ["eager", "compiled", "compiled"]


@pytest.fixture
def make_job(tmp_path: Path, small_mnist: None) -> Callable[..., Job]:
    def make(method: str = "er", seed: int = 0, **changes: Any) -> Job:
        changes = {"engine": "auto", **changes}
        settings = {name: changes.pop(name) for name in ("lr",) if name in changes}
        (configuration,) = configurations([method], "split-mnist", settings={k: [v] for k, v in settings.items()})
        return make_any_job(configuration, seed, **{"store": tmp_path / "runs.sqlite", **changes})

    return make


def test_cohorts_differ_in_seed_and_hyperparameters(make_job: Callable[..., Job]) -> None:
    jobs = [make_job(seed=s, lr=lr) for lr in (0.1, 0.05) for s in range(3)] + [make_job("finetune", s) for s in (0, 1)]

    def cohorts(jobs: list[Job], workers: int) -> list[list[int]]:
        return [[jobs.index(job) for job in cohort] for cohort in into_cohorts(jobs, workers, "cpu")]

    assert cohorts(jobs, workers=1) == [[0, 1, 2, 3, 4, 5], [6, 7]]
    assert cohorts(jobs, workers=2) == [[0, 2, 4], [1, 3, 5], [6, 7]]
    assert cohorts([make_job(seed=s) for s in range(130)], workers=1)[0] == list(range(0, 130, 3))
    eager = [change(job, engine="eager") for job in jobs]
    assert cohorts(eager, workers=1) == [[n] for n in range(8)]


@pytest.mark.slow
def test_auto_compiles_where_there_is_enough_to_train(
    make_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[Event] = []
    record = train(make_job(), events.append)
    assert record["environment"]["engine"] == "eager"
    assert any(text.startswith("engine: eager (eager would take about") for text in texts(events))
    monkeypatch.setattr("cclfp.engine.eager.seconds_per_step", lambda replica: 1.0)
    assert train(make_job(seed=1))["environment"]["engine"] == "compiled"


def test_events_say_when_a_run_waits_for_the_compiler(
    make_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[Event] = []
    monkeypatch.setattr(compiled_module, "WORTH", 1)
    monkeypatch.setattr(compiled_module, "program", lambda step, *arguments, keep: step)
    monkeypatch.setattr("cclfp.runs.training.STEP_EVERY", 0.0)
    train(make_job(engine="compiled"), events.append)
    steps = [event for event in events if isinstance(event, Step)]
    waiting = [i for i, event in enumerate(steps) if event.compiling]
    assert waiting
    for i in waiting[1:]:
        assert steps[i].step == steps[i - 1].step  # those before it are taken
        assert steps[i].task in (steps[i - 1].task, steps[i - 1].task + 1)
    assert not steps[-1].compiling


@pytest.mark.slow
def test_auto_knows_what_was_compiled_before(make_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch) -> None:
    def program(step: Any, *arguments: Any, keep: Callable[..., None]) -> Any:
        keep(Path(__file__), has_constants=False)
        return step

    monkeypatch.setattr(compiled_module, "program", program)
    # Eager would take 9 s: too few for the compiler, but not where its programs are kept.
    monkeypatch.setattr("cclfp.engine.eager.seconds_per_step", lambda r: 9 / sum(map(r.steps, range(5))))
    engines = [
        train(make_job(seed=seed, engine=engine))["environment"]["engine"]
        for seed, engine in enumerate(["auto", "compiled", "auto"])
    ]
    assert engines == ["eager", "compiled", "compiled"]


@pytest.mark.slow
def test_jobs_together_are_as_jobs_alone(make_job: Callable[..., Job], tmp_path: Path) -> None:
    jobs = [make_job(seed=seed, lr=0.02, engine="compiled") for seed in range(3)]
    together = run_jobs(jobs, executor=Pool())
    other = tmp_path / "other.sqlite"
    alone = [train(make_job(seed=seed, lr=0.02, engine="eager", store=other)) for seed in range(3)]
    assert [together[r["key"]]["accuracy_matrix"] for r in alone] == [r["accuracy_matrix"] for r in alone]


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_replicas_with_batch_norm_go_side_by_side(method: str) -> None:
    notes: list[str] = []
    kinds = [(0, 0.1), (1, 0.1), (1, 0.05)]
    together = trained([with_batch_norm(method, seed, lr=lr) for seed, lr in kinds], "compiled", notes)
    assert notes == []
    for (seed, lr), ours in zip(kinds, together, strict=True):
        (alone,) = trained([with_batch_norm(method, seed, lr=lr)], "eager")
        assert_alike(ours, alone)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["class", "task", "domain"])
def test_replicas_that_take_turns(scenario: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as the memory has room for at once; a size that does not divide them."""
    monkeypatch.setattr(Cohort, "_count_at_once", lambda *arguments: 2)
    told: list[int] = []
    cohort = Cohort([replica("ccl-fp+", scenario, seed) for seed in range(5)], "compiled")
    while not cohort.is_done:
        told.clear()
        steps = cohort.replicas[0].steps(cohort.replicas[0].position)
        cohort.advance(told.append)
        assert told == sorted(told)
        assert told[-1] == steps
    for seed, ours in enumerate(cohort.replicas):
        assert_alike(ours, trained([replica("ccl-fp+", scenario, seed)], "eager")[0])


def test_too_many_for_the_memory_are_halved_and_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    original, most = compiled_module.Programs.train, 2

    def train(self: Any, group: Any, *arguments: Any) -> bool:
        if len(group.learners) > most:
            raise torch.OutOfMemoryError("out of memory")
        return original(self, group, *arguments)

    monkeypatch.setattr(compiled_module.Programs, "train", train)
    notes: list[str] = []
    ours = trained([replica("er", "class", seed) for seed in range(5)], "compiled", notes)
    assert notes == ["5 runs at once need too much memory: 2 from here on"]
    assert_alike(ours[4], trained([replica("er", "class", 4)], "eager")[0])
    most = 0
    notes.clear()
    trained([replica("er", "class", seed) for seed in range(2)], "compiled", notes)
    assert notes[0] == "2 runs at once need too much memory: 1 from here on"
    assert "continuing eagerly" in notes[1]


def test_the_last_replica_alone_that_needs_too_much_memory_is_trained_eagerly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of one is none, which must not mean that the replicas are to be counted again, and again."""
    original, attempts = compiled_module.Programs.train, list[int]()

    def train(self: Any, group: Any, *arguments: Any) -> bool:
        attempts.append(len(group.learners))
        if len(attempts) > 20:
            pytest.fail("it tries for ever")
        if group.learners[0].seed == 2:
            raise torch.OutOfMemoryError("out of memory")
        return original(self, group, *arguments)

    monkeypatch.setattr(compiled_module.Programs, "train", train)
    monkeypatch.setattr(Cohort, "_count_at_once", lambda *arguments: 2)
    notes: list[str] = []
    ours = trained([replica("er", "class", seed) for seed in range(3)], "compiled", notes)
    assert notes == ["its runs cannot be trained together (OutOfMemoryError: out of memory): continuing eagerly"]
    assert attempts == [2, 1]
    assert_alike(ours[2], trained([replica("er", "class", 2)], "eager")[0])


def test_plans_are_made_once_a_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    original = Replica.plan_maker

    def planning(self: Replica, after: Any = None) -> Any:
        made.append(self.learner.seed)
        return original(self, after)

    monkeypatch.setattr(Replica, "plan_maker", planning)
    stream = Case(METHODS["er"], "class", {}).stream()
    replicas = [
        Replica(Case(METHODS["er"], "class", {"lr": lr}).learner(seed, psi=plain_psi()), stream)
        for seed in range(2)
        for lr in (0.1, 0.05, 0.02)
    ]
    trained(replicas, "compiled")
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


@pytest.mark.slow
def test_scores_that_cannot_be_stacked_are_said_and_taken_one_by_one() -> None:
    class Odd(ER):
        name = "odd"

        def scores(self, params: Any, buffers: Any, state: Any, x: Tensor) -> Tensor:
            given = super().scores(params, buffers, state, x)
            return given if float(given.sum()) < torch.inf else -given

    case = Case(Odd, "domain", {})
    notes: list[str] = []
    stream = case.stream()
    make = [Replica(case.learner(seed, psi=plain_psi()), stream) for seed in (0, 1)]
    ours = trained(make, "compiled", notes)
    assert len(notes) == 1
    assert "cannot be tested together" in notes[0]
    assert ours[1].matrix == trained([replica("er", "domain", 1)], "eager")[0].matrix


@pytest.mark.slow
@pytest.mark.parametrize("step", [40, 75])
def test_a_stopped_cohort_goes_on_where_it_was(
    step: int, make_job: Callable[..., Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cclfp.runs.training.STEP_EVERY", 0.0)

    jobs = [make_job("ccl-fp+", seed, engine="compiled") for seed in range(2)]
    with pytest.raises(Stop):
        train_all(jobs, stop_at(step))
    assert Store(jobs[0].execution.store).records() == []
    events: list[Event] = []
    # The engine that the checkpoints name is used again, whatever auto would choose now.
    again = train_all([change(job, engine="auto") for job in jobs], events.append)
    assert sum("continuing from the checkpoint" in text for text in texts(events)) == 2
    assert {record["environment"]["engine"] for record in again} == {"compiled"}
    other = tmp_path / "other.sqlite"
    whole = train_all([change(job, store=other) for job in jobs])
    assert [r["accuracy_matrix"] for r in again] == [r["accuracy_matrix"] for r in whole]


def test_another_engine_asked_for_starts_again(make_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cclfp.runs.training.STEP_EVERY", 0.0)
    with pytest.raises(Stop):
        train(make_job(engine="compiled"), stop_at(40))
    events: list[Event] = []
    record = train(make_job(engine="eager"), events.append)
    assert any("it was made with engine compiled, not with the eager asked for" in text for text in texts(events))
    assert record["environment"]["engine"] == "eager"


@pytest.mark.slow
def test_one_that_fails_does_not_stop_the_others(make_job: Callable[..., Job], tmp_path: Path) -> None:
    jobs = [make_job(seed=seed, save=tmp_path / "learners") for seed in range(3)]
    files = [job.learner_file for job in jobs]
    assert files[1] is not None
    files[1].mkdir(parents=True)
    events: list[Event] = []
    with pytest.raises(cclfp.InputError, match="cannot be saved"):
        run_jobs(jobs, events.append, Pool())
    assert [event.key for event in events if isinstance(event, Finished)] == [job.key for job in jobs]  # all are stored
    assert any(isinstance(event, Note) and event.key == jobs[0].key for event in events)
    assert [path.is_file() for path in files if path is not None] == [True, False, True]
    assert {record["seed"] for record in Store(jobs[0].execution.store).records()} == {0, 1, 2}


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(cclfp.InputError, match="engine 'warp'"):
        cclfp.run("er", "split-mnist", engine="warp")


def test_a_state_that_changes_its_structure_is_refused() -> None:
    class Grows(cclfp.Method):
        name = "grows"

        def loss(self, params: Any, buffers: Any, state: Any, batch: Any, hyper: Any) -> tuple[Tensor, Any]:
            z, buffers = self.net.features(params, buffers, batch.x)
            return cross_entropy(self.net.classify(params, z), batch.y, batch.mask), buffers

        def step(self, params: Any, buffers: Any, state: Any, batch: Any, hyper: Any) -> Any:
            params, buffers, *_ = super().step(params, buffers, state, batch, hyper)
            return params, buffers, {"more": torch.zeros(())}

    case = Case(Grows, "class", {})
    notes: list[str] = []
    trained([Replica(case.learner(0, psi=nn.Linear(8, 4)), case.stream())], "compiled", notes)
    assert "state of another structure" in notes[0]


def test_runs_of_which_not_even_one_can_be_tried_train_eagerly(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> int:
        raise ValueError("it reads a tensor's value")

    monkeypatch.setattr(Cohort, "_count_at_once", fail)
    notes: list[str] = []
    together = trained([with_batch_norm("er", seed) for seed in range(2)], "compiled", notes)
    assert any("reads a tensor's value" in note and note.endswith("continuing eagerly") for note in notes)
    (alone,) = trained([with_batch_norm("er", 1)], "eager")
    assert_alike(together[1], alone)
