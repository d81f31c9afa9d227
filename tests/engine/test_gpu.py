"""On a CUDA device: the same numbers as on the CPU, to float tolerance. Skipped where there is none."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from cohorts import CASES, assert_alike, assert_as_alone, batch_norm_psi, relu_psi, replica, trained
from torch import Tensor, nn
from training import Stop, make_job, stop_at, texts, train_all

import cclfp
from cclfp.core.memory import Examples
from cclfp.engine import graph
from cclfp.engine.cohort import autocast_of
from cclfp.engine.replica import Replica
from cclfp.errors import DivergenceError
from cclfp.learner.checks import not_finite
from cclfp.methods import METHODS
from cclfp.methods.er import ER
from cclfp.nets import ResNet18
from cclfp.runs.events import Event
from cclfp.runs.settings import configurations
from cclfp.streams import Stream
from cclfp.testing import same, stackable_psi, toy_psi
from cclfp.transforms import CropFlip, Normalise

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

on_cuda = partial(replica, device="cuda", memory=20)
bare_psi = partial(toy_psi, random=False)


@pytest.fixture(autouse=True)
def short_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "SHORTEST", 2)


# -- the eager engine and learners -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "scenario"), CASES)
def test_as_on_the_cpu(method: str, scenario: str) -> None:
    here, there = (trained([replica(method, scenario, psi=bare_psi, device=d)])[0] for d in ("cpu", "cuda"))
    x = torch.cat([test.x for test in here.stream.test])
    torch.testing.assert_close(
        there.learner.logits(x, task=0).cpu(), here.learner.logits(x, task=0), rtol=1e-2, atol=1e-2
    )


def test_random_layers_repeat() -> None:
    torch.cuda.manual_seed(1)
    (first,) = trained([on_cuda("ccl-fp+", "class", psi=toy_psi)])
    torch.rand(5, device="cuda")
    (again,) = trained([on_cuda("ccl-fp+", "class", psi=toy_psi)])
    assert same(first.learner, again.learner)


def batch(seed: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(8, 8, generator=g), torch.randint(0, 6, (8,), generator=g)


def online(psi: nn.Module, device: str) -> cclfp.Learner:
    """After a batch and the end of its task."""
    learner = cclfp.make("ccl-fp+", psi=psi, num_classes=6, memory=12, device=device)
    learner.observe(*batch(0), task=0)
    learner.end_task()
    return learner


def test_moves_there_and_back(tmp_path: Path) -> None:
    stayed, moved = online(bare_psi(), "cpu"), online(bare_psi(), "cpu").to("cuda")
    for learner in (stayed, moved):
        learner.observe(*batch(1), task=1)
    assert next(moved.psi.parameters()).is_cuda
    x = batch(2)[0]
    torch.testing.assert_close(moved.logits(x).cpu(), stayed.logits(x), rtol=1e-3, atol=1e-3)
    moved.save(tmp_path / "learner.ckpt")
    loaded = cclfp.load(tmp_path / "learner.ckpt", psi=bare_psi())
    assert loaded.device.type == "cpu"
    assert torch.equal(loaded.predict(x), moved.to("cpu").predict(x))


def test_a_step_that_diverges_leaves_the_learner_as_it_was_there() -> None:
    ours, theirs = online(toy_psi(), "cuda"), online(toy_psi(), "cuda")
    x, y = batch(0)
    with pytest.raises(DivergenceError, match="the learner is as it was"):
        ours.observe(1e37 * x, y, task=1)
    assert same(ours, theirs)
    for learner in (ours, theirs):
        learner.observe(x, y, task=1)
    assert same(ours, theirs)


def test_not_finite_is_exact_there() -> None:
    huge = torch.full((1000,), 3e38, device="cuda")
    tensors = [huge, huge * torch.nan, -huge * 10, huge.double(), torch.arange(3, device="cuda"), huge[:0]]
    assert not_finite(tensors) == [1, 2]
    assert not_finite([huge.bfloat16(), huge, torch.tensor([1.0, torch.nan], device="cuda").half()]) == [2]


def test_a_convolutional_net_with_augmentation_as_on_the_cpu() -> None:
    g = torch.Generator().manual_seed(0)
    y = torch.arange(120) % 4
    train = Examples(torch.randint(0, 256, (120, 3, 16, 16), dtype=torch.uint8, generator=g), y, y // 2)
    rows = [(y // 2 == t).nonzero().flatten() for t in (0, 1)]
    normalise = Normalise([0.5] * 3, [0.25] * 3)
    stream = Stream("class", 4, [[0, 1], [2, 3]], train, rows, [train.rows(r) for r in rows], normalise)

    def psi() -> nn.Module:
        return ResNet18(width=4).double()

    here, there = (
        trained([replica("ccl-fp+", "class", psi=psi, stream=stream, device=d, augment=CropFlip(4), lr=0.01)])[0]
        for d in ("cpu", "cuda")
    )
    x = stream.test[0].x
    torch.testing.assert_close(there.learner.logits(x).cpu(), here.learner.logits(x), rtol=1e-4, atol=1e-4)
    for ours, theirs in zip(here.learner.psi.buffers(), there.learner.psi.buffers(), strict=True):
        torch.testing.assert_close(theirs.cpu(), ours, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("small_mnist")
@pytest.mark.parametrize("engine", ["eager", "graph"])
def test_jobs_stopped_and_resumed(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "MARK_EVERY", 1)
    monkeypatch.setattr("cclfp.runs.training.STEP_EVERY", 0.0)
    (configuration,) = configurations(["ccl-fp+"], "split-mnist")

    def jobs(store: str) -> list[Any]:
        return [make_job(configuration, seed, tmp_path / store, device="auto", engine=engine) for seed in range(2)]

    with pytest.raises(Stop):
        train_all(jobs("runs.sqlite"), stop_at(90))
    events: list[Event] = []
    records = train_all(jobs("runs.sqlite"), events.append)
    assert any("continuing from the checkpoint" in text for text in texts(events))
    for record in records:
        about = record["environment"]
        assert (about["device"], about["engine"], about["precision"]) == ("cuda", engine, "tf32")
    if engine == "eager":
        whole = train_all(jobs("whole.sqlite"))
        assert [r["accuracy_matrix"] for r in records] == [r["accuracy_matrix"] for r in whole]


# -- graphs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "scenario", "psi"),
    [(*case, stackable_psi) for case in CASES] + [(method, None, batch_norm_psi) for method in METHODS],
)
def test_together_in_a_graph_as_each_alone(method: str, scenario: str, psi: Callable[[], nn.Module]) -> None:
    kinds = ((0, 0.02), (1, 0.02), (1, 0.01))
    assert_as_alone([partial(on_cuda, method, scenario, seed, psi=psi, lr=lr) for seed, lr in kinds], "graph")


def test_one_in_a_graph_as_among_twenty() -> None:
    many = trained([on_cuda("ccl-fp+", "class", seed) for seed in range(20)], "graph")
    assert_alike(trained([on_cuda("ccl-fp+", "class", 7)], "graph")[0], many[7])


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("psi", [stackable_psi, batch_norm_psi])
def test_nothing_waits_for_the_device_inside_a_task(psi: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    original, watched = graph._Recorded.run, list[int]()

    def run(self: Any, *arguments: Any) -> None:
        torch.cuda.set_sync_debug_mode("error")
        try:
            if not watched:
                with pytest.raises(RuntimeError, match="synchronizing"):  # the watch sees it
                    torch.ones(1, device="cuda").item()
            original(self, *arguments)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        watched.append(1)

    monkeypatch.setattr(graph._Recorded, "run", run)
    trained([on_cuda("ccl-fp+", "domain", seed, psi=psi) for seed in range(3)], "graph", "tf32")
    assert len(watched) >= 3


def test_runs_take_turns_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cclfp.engine.cohort.SHARE", 1e-6)
    notes: list[str] = []
    assert_as_alone([partial(on_cuda, "ccl-fp+", "class", seed) for seed in range(3)], "graph", notes)
    (note,) = notes
    assert "they take turns" in note


class Peeks(ER):
    """Waits for the device in a step."""

    name = "peeks"

    def step(self, params: Any, buffers: Any, state: Any, batch: Any, hyper: Any) -> Any:
        if float(next(iter(buffers.values())).sum()) < -1e9:
            raise AssertionError
        return super().step(params, buffers, state, batch, hyper)


def test_what_cannot_be_recorded_is_said_and_trained_eagerly() -> None:
    notes: list[str] = []
    ours = trained([on_cuda(Peeks, "class", seed, psi=batch_norm_psi) for seed in range(2)], "graph", notes=notes)
    (note,) = notes
    assert "continuing eagerly" in note
    # Nothing is left of the capture that failed: not its stream, nor its hold on the generator and the memory.
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    torch.rand(3, device="cuda")
    torch.cuda.empty_cache()
    others = assert_as_alone([partial(on_cuda, "er", "class", seed, psi=batch_norm_psi) for seed in range(2)], "graph")
    assert_alike(others[1], ours[1])


@pytest.mark.parametrize("psi", [stackable_psi, batch_norm_psi])
@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_precisions_stay_near(precision: str, psi: Callable[[], nn.Module]) -> None:
    def make() -> list[Replica]:
        replicas = [on_cuda("ccl-fp+", "class", seed, psi=lambda: psi().float()) for seed in range(2)]
        for one in replicas:
            one.learner.autocast = autocast_of(precision)
        return replicas

    ours, alone = trained(make(), "graph", precision), trained(make(), "eager", precision)
    exact = trained(make()) if precision == "tf32" else alone
    for mine, theirs, start in zip(ours, exact, make(), strict=True):
        start.begin_task()
        for name, p in mine.learner.model[0].items():
            before, after = start.learner.model[0][name], theirs.learner.model[0][name]
            assert p.dtype == torch.float32
            assert (p - after).norm() <= 0.3 * (after - before).norm() + 1e-3, name


@pytest.mark.parametrize("psi", [bare_psi, relu_psi])
@pytest.mark.parametrize("engine", ["eager", "graph"])
def test_divergence_is_found_beside_replicas_that_are_well(engine: str, psi: Any) -> None:
    runs = [(0, 0.02), (1, 1e30), (2, 0.02)]
    ours = trained([on_cuda("ccl-fp+", "class", seed, psi=psi, lr=lr) for seed, lr in runs], engine)
    assert [one.diverged for one in ours] == [None, 1, None]
