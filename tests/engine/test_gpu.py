"""On a CUDA device: the same numbers as on the CPU, to float tolerance. Skipped where there is none."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from training import Stop, make_job, stop_at, texts, train, train_all

import cclfp
from cclfp.core.memory import Examples
from cclfp.core.randomness import generator
from cclfp.engine import graph
from cclfp.engine.cohort import Cohort, autocast_of
from cclfp.engine.replica import Replica
from cclfp.errors import DivergenceError
from cclfp.learner.checks import not_finite
from cclfp.methods import METHODS
from cclfp.methods.er import ER
from cclfp.nets import ResNet18, linear
from cclfp.runs.events import Event
from cclfp.runs.settings import configurations
from cclfp.streams import Stream
from cclfp.testing import same, toy_psi, toy_stream
from cclfp.transforms import CropFlip, Normalise

CASES = [(m, s) for m, method in METHODS.items() for s in method.scenarios()]

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def trained(method: str, scenario: str, device: str, psi: nn.Module) -> Replica:
    stream = toy_stream(scenario).to(torch.device(device))
    stream = stream.joint() if METHODS[method].joint else stream
    learner = cclfp.make(
        method, psi=psi, num_classes=6, memory=20, scenario=scenario, tasks=stream.classes, device=device, lr=0.02
    )
    replica = Replica(learner, stream)
    while not replica.is_done:
        Cohort([replica]).advance()
    return replica


@pytest.mark.parametrize(("method", "scenario"), CASES)
def test_as_on_the_cpu(method: str, scenario: str) -> None:
    here = trained(method, scenario, "cpu", toy_psi(random=False))
    there = trained(method, scenario, "cuda", toy_psi(random=False))
    x = torch.cat([test.x for test in here.stream.test])
    torch.testing.assert_close(
        there.learner.logits(x, task=0).cpu(), here.learner.logits(x, task=0), rtol=1e-2, atol=1e-2
    )


def test_random_layers_repeat() -> None:
    torch.cuda.manual_seed(1)
    first = trained("ccl-fp+", "class", "cuda", toy_psi())
    torch.rand(5, device="cuda")
    assert same(first.learner, trained("ccl-fp+", "class", "cuda", toy_psi()).learner)


def test_moves_there_and_back(tmp_path: Path) -> None:
    def start() -> cclfp.Learner:
        learner = cclfp.make("ccl-fp+", psi=toy_psi(random=False), num_classes=6, memory=12)
        learner.observe(*batch(0), task=0)
        learner.end_task()
        return learner

    def batch(seed: int) -> tuple[Tensor, Tensor]:
        g = torch.Generator().manual_seed(seed)
        return torch.randn(8, 8, generator=g), torch.randint(0, 6, (8,), generator=g)

    stayed, moved = start(), start().to("cuda")
    for learner in (stayed, moved):
        learner.observe(*batch(1), task=1)
    assert next(moved.psi.parameters()).is_cuda
    x = batch(2)[0]
    torch.testing.assert_close(moved.logits(x).cpu(), stayed.logits(x), rtol=1e-3, atol=1e-3)
    moved.save(tmp_path / "learner.ckpt")
    loaded = cclfp.load(tmp_path / "learner.ckpt", psi=toy_psi(random=False))
    assert loaded.device.type == "cpu"
    assert torch.equal(loaded.predict(x), moved.to("cpu").predict(x))


@pytest.mark.usefixtures("small_mnist")
def test_a_job_stopped_and_resumed(tmp_path: Path) -> None:
    (configuration,) = configurations(["ccl-fp+"], "split-mnist")
    job = make_job(configuration, 0, tmp_path / "runs.sqlite", device="auto")
    with pytest.raises(Stop):
        train(job, stop_at(90))
    events: list[Event] = []
    record = train(job, events.append)
    assert any("continuing from the checkpoint" in text for text in texts(events))
    assert record["environment"]["device"] == "cuda"
    whole = train(make_job(configuration, 0, tmp_path / "whole.sqlite", device="auto"))
    assert record["accuracy_matrix"] == whole["accuracy_matrix"]


def test_a_convolutional_net_with_augmentation_as_on_the_cpu() -> None:
    def trained_on(device: str) -> Replica:
        g = torch.Generator().manual_seed(0)
        x = torch.randint(0, 256, (120, 3, 16, 16), dtype=torch.uint8, generator=g)
        y = torch.arange(120) % 4
        rows = [(y // 2 == t).nonzero().flatten() for t in (0, 1)]
        train = Examples(x, y, y // 2)
        normalise = Normalise([0.5] * 3, [0.25] * 3)
        stream = Stream("class", 4, [[0, 1], [2, 3]], train, rows, [train.rows(r) for r in rows], normalise)
        learner = cclfp.make(
            "ccl-fp+",
            psi=ResNet18(width=4).double(),
            num_classes=4,
            memory=20,
            tasks=stream.classes,
            transform=normalise,
            augment=CropFlip(4),
            device=device,
            lr=0.01,
        )
        replica = Replica(learner, stream.to(torch.device(device)))
        while not replica.is_done:
            Cohort([replica]).advance()
        return replica

    here, there = trained_on("cpu"), trained_on("cuda")
    x = here.stream.test[0].x
    torch.testing.assert_close(there.learner.logits(x).cpu(), here.learner.logits(x), rtol=1e-4, atol=1e-4)
    for ours, theirs in zip(here.learner.psi.buffers(), there.learner.psi.buffers(), strict=True):
        torch.testing.assert_close(theirs.cpu(), ours, rtol=1e-4, atol=1e-4)


@pytest.fixture
def short_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "SHORTEST", 2)


def on_cuda(method: str, scenario: str, seed: int = 0, *, stream: Stream | None = None, **settings: Any) -> Replica:
    stream = toy_stream(scenario).to(torch.device("cuda")) if stream is None else stream
    stream = stream.joint() if METHODS[method].joint else stream
    psi = settings.pop("psi", None) or plain_psi()
    learner = cclfp.make(
        method,
        psi=psi,
        num_classes=6,
        memory=20,
        scenario=scenario,
        tasks=stream.classes,
        seed=seed,
        device="cuda",
        **{"lr": 0.02, **settings},
    )
    return Replica(learner, stream)


def in_a_cohort(replicas: list[Replica], engine: str, precision: str = "float32") -> tuple[list[Replica], list[str]]:
    notes: list[str] = []
    cohort = Cohort(replicas, engine, notes.append, precision)
    while not cohort.is_done:
        cohort.advance()
    return replicas, notes


def assert_alike(ours: Replica, theirs: Replica) -> None:
    # Where a task begins FDR's outputs are those it has stored, and its gradient what rounding makes of their distance.
    tolerance = 0.05 if ours.learner.method.name == "fdr" else 1e-8
    for a, b in zip(ours.learner.model, theirs.learner.model, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
    assert ours.matrix == theirs.matrix or ours.learner.method.name == "fdr"
    assert ours.learner.steps == theirs.learner.steps


def plain_psi(seed: int = 0) -> nn.Module:
    """In float64, so that rounding cannot hide what is not the same."""
    return nn.Sequential(linear(8, 16, generator(seed, "psi")), nn.Tanh()).double()


def batch_norm_psi(seed: int) -> nn.Module:
    g = generator(seed, "psi")
    return nn.Sequential(linear(8, 16, g), nn.BatchNorm1d(16), nn.ReLU(), linear(16, 8, g)).double()


@pytest.mark.usefixtures("short_graphs")
@pytest.mark.parametrize(("method", "scenario"), CASES)
def test_stacked_in_a_graph_as_each_alone(method: str, scenario: str) -> None:
    kinds = [(0, 0.02), (1, 0.02), (1, 0.01)]
    ours, notes = in_a_cohort([on_cuda(method, scenario, seed, lr=lr) for seed, lr in kinds], "graph")
    assert notes == []
    for (seed, lr), mine in zip(kinds, ours, strict=True):
        (alone,), _ = in_a_cohort([on_cuda(method, scenario, seed, lr=lr)], "eager")
        assert_alike(mine, alone)


@pytest.mark.usefixtures("short_graphs")
@pytest.mark.parametrize("method", METHODS)
def test_side_by_side_in_a_graph_as_each_alone(method: str) -> None:
    scenario = METHODS[method].scenarios()[-1]
    ours, notes = in_a_cohort([on_cuda(method, scenario, s, psi=batch_norm_psi(s)) for s in range(3)], "graph")
    assert notes == []
    for seed, mine in enumerate(ours):
        (alone,), _ = in_a_cohort([on_cuda(method, scenario, seed, psi=batch_norm_psi(seed))], "eager")
        assert_alike(mine, alone)


@pytest.mark.usefixtures("short_graphs")
def test_one_in_a_graph_as_among_twenty() -> None:
    many, _ = in_a_cohort([on_cuda("ccl-fp+", "class", seed) for seed in range(20)], "graph")
    (one,), _ = in_a_cohort([on_cuda("ccl-fp+", "class", 7)], "graph")
    assert_alike(one, many[7])
    assert one.matrix == many[7].matrix


@pytest.mark.usefixtures("short_graphs")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("normalised", [False, True])
def test_nothing_waits_for_the_device_inside_a_task(normalised: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    original, watched = graph._Recorded.run, list[int]()

    def run(self: Any, *arguments: Any) -> None:
        torch.cuda.set_sync_debug_mode("error")
        try:
            original(self, *arguments)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        watched.append(1)

    monkeypatch.setattr(graph._Recorded, "run", run)
    psi = batch_norm_psi if normalised else plain_psi
    _, notes = in_a_cohort([on_cuda("ccl-fp+", "domain", seed, psi=psi(seed)) for seed in range(3)], "graph", "tf32")
    assert notes == []
    assert len(watched) >= 3


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_the_watch_for_waiting_sees_it() -> None:
    torch.cuda.set_sync_debug_mode("error")
    try:
        with pytest.raises(RuntimeError, match="synchronizing"):
            torch.ones(1, device="cuda").item()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.usefixtures("short_graphs")
def test_runs_take_turns_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cclfp.engine.cohort.SHARE", 1e-6)
    ours, notes = in_a_cohort([on_cuda("ccl-fp+", "class", seed) for seed in range(3)], "graph")
    assert len(notes) == 1
    assert "they take turns" in notes[0]
    (alone,), _ = in_a_cohort([on_cuda("ccl-fp+", "class", 2)], "eager")
    assert_alike(ours[2], alone)


@pytest.mark.usefixtures("short_graphs")
def test_what_cannot_be_recorded_is_said_and_trained_eagerly() -> None:
    class Peeks(ER):
        name = "peeks"

        def step(self, params: Any, buffers: Any, state: Any, batch: Any, hyper: Any) -> Any:
            if batch.x.device.type == "cuda" and float(next(iter(buffers.values())).sum()) < -1e9:
                raise AssertionError
            return super().step(params, buffers, state, batch, hyper)

    stream = toy_stream("class").to(torch.device("cuda"))

    def make(seed: int, method: Any) -> Replica:
        learner = cclfp.make(
            method, psi=batch_norm_psi(seed), num_classes=6, memory=20, tasks=stream.classes, seed=seed, device="cuda"
        )
        return Replica(learner, stream)

    ours, notes = in_a_cohort([make(seed, Peeks) for seed in range(2)], "graph")
    assert len(notes) == 1
    assert "continuing eagerly" in notes[0]
    # Nothing is left of the capture that failed: not its stream, nor its hold on the generator and the memory.
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    torch.rand(3, device="cuda")
    torch.cuda.empty_cache()
    others, notes = in_a_cohort([make(seed, "er") for seed in range(2)], "graph")
    assert notes == []
    assert_alike(others[1], ours[1])
    (alone,), _ = in_a_cohort([make(1, "er")], "eager")
    assert_alike(ours[1], alone)


@pytest.mark.usefixtures("short_graphs")
@pytest.mark.parametrize("psi", [plain_psi, batch_norm_psi])
@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_precisions_stay_near(precision: str, psi: Callable[[int], nn.Module]) -> None:
    def make() -> list[Replica]:
        replicas = [on_cuda("ccl-fp+", "class", seed, psi=psi(seed).float()) for seed in range(2)]
        for replica in replicas:
            replica.learner.autocast = autocast_of(precision)
        return replicas

    ours, notes = in_a_cohort(make(), "graph", precision)
    assert notes == []
    alone, _ = in_a_cohort(make(), "eager", precision)
    exact, _ = in_a_cohort(make(), "eager", "float32") if precision == "tf32" else (alone, [])
    for mine, theirs, start in zip(ours, exact, make(), strict=True):
        start.begin_task()
        for name, p in mine.learner.model[0].items():
            before, after = start.learner.model[0][name], theirs.learner.model[0][name]
            assert p.dtype == torch.float32
            assert (p - after).norm() <= 0.3 * (after - before).norm() + 1e-3, name


@pytest.mark.usefixtures("short_graphs")
@pytest.mark.parametrize("psi", [plain_psi, batch_norm_psi])
def test_compiled_in_a_graph(psi: Callable[[int], nn.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "WORTH", 1)
    ours, notes = in_a_cohort([on_cuda("er", "domain", seed, psi=psi(seed)) for seed in range(2)], "graph")
    assert notes == []
    (alone,), _ = in_a_cohort([on_cuda("er", "domain", 1, psi=psi(1))], "eager")
    assert_alike(ours[1], alone)


@pytest.mark.usefixtures("small_mnist")
def test_a_cohort_stopped_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "MARK_EVERY", 1)
    monkeypatch.setattr("cclfp.runs.training.STEP_EVERY", 0.0)
    (configuration,) = configurations(["ccl-fp+"], "split-mnist")
    store = tmp_path / "runs.sqlite"
    jobs = [make_job(configuration, s, store, device="auto", engine="graph") for s in range(2)]
    with pytest.raises(Stop):
        train_all(jobs, stop_at(90))
    events: list[Event] = []
    records = train_all(jobs, events.append)
    assert sum("continuing from the checkpoint" in text for text in texts(events)) == 2
    assert {record["environment"]["engine"] for record in records} == {"graph"}
    assert {record["environment"]["precision"] for record in records} == {"tf32"}


@pytest.mark.parametrize("norm", [False, True], ids=["stacked", "forked"])
@pytest.mark.parametrize("engine", ["eager", "graph"])
def test_divergence_is_found_beside_replicas_that_are_well(engine: str, norm: bool) -> None:
    stream = toy_stream("class").to(torch.device("cuda"))
    torch.manual_seed(0)
    start = toy_psi(random=False) if norm else nn.Sequential(nn.Linear(8, 16), nn.ReLU())
    replicas, notes = [], list[str]()
    for seed, lr in ((0, 0.02), (1, 1e30), (2, 0.02)):
        learner = cclfp.make(
            "ccl-fp+",
            psi=copy.deepcopy(start),
            num_classes=6,
            memory=20,
            seed=seed,
            tasks=stream.classes,
            device="cuda",
            lr=lr,
        )
        replicas.append(Replica(learner, stream))
    cohort = Cohort(replicas, engine, notes.append)
    while not cohort.is_done:
        cohort.advance()
    assert [replica.diverged for replica in replicas] == [None, 1, None]
    assert cohort.engine == engine
    assert not notes


def test_not_finite_is_exact_there() -> None:
    huge = torch.full((1000,), 3e38, device="cuda")
    tensors = [huge, huge * torch.nan, -huge * 10, huge.double(), torch.arange(3, device="cuda"), huge[:0]]
    assert not_finite(tensors) == [1, 2]
    assert not_finite([huge.bfloat16(), huge, torch.tensor([1.0, torch.nan], device="cuda").half()]) == [2]


def test_a_step_that_diverges_leaves_the_learner_as_it_was_there() -> None:
    def start() -> cclfp.Learner:
        learner = cclfp.make("ccl-fp+", psi=toy_psi(), num_classes=6, memory=12, device="cuda")
        learner.observe(x, y, task=0)
        learner.end_task()
        return learner

    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(8, 8, generator=g), torch.randint(0, 6, (8,), generator=g)
    ours, theirs = start(), start()
    with pytest.raises(DivergenceError, match="the learner is as it was"):
        ours.observe(1e37 * x, y, task=1)
    assert same(ours, theirs)
    for learner in (ours, theirs):
        learner.observe(x, y, task=1)
    assert same(ours, theirs)
