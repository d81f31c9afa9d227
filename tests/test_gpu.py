"""On a CUDA device: the same numbers as on the CPU, to float tolerance. Skipped where there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cclfp
from cclfp.configuration import configurations
from cclfp.engine.job import Job, do
from cclfp.engine.replica import Replica
from cclfp.memory import Examples
from cclfp.methods import METHODS
from cclfp.nets import ResNet18
from cclfp.streams import Stream
from cclfp.testing import same, toy_psi, toy_stream
from cclfp.transforms import CropFlip, Normalise

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def trained(method: str, scenario: str, device: str, psi: nn.Module) -> Replica:
    stream = toy_stream(scenario).to(torch.device(device))
    stream = stream.joint() if METHODS[method].joint else stream
    learner = cclfp.make(
        method, psi=psi, num_classes=6, memory=20, scenario=scenario, tasks=stream.classes, device=device, lr=0.02
    )
    replica = Replica(learner, stream)
    while not replica.is_done:
        replica.advance()
    return replica


@pytest.mark.parametrize(("method", "scenario"), [(m, s) for m, method in METHODS.items() for s in method.scenarios()])
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
    job = Job(configuration, 0, tmp_path / "runs.sqlite", "auto", 1, checkpoint_every=0.0)

    def stop(event: dict[str, Any]) -> None:
        if event["event"] == "step" and event["step"] >= 90:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        do(job, stop)
    notes: list[str] = []
    record = do(job, lambda event: notes.append(event.get("text", "")))
    assert any("going on from the checkpoint" in note for note in notes)
    assert record["environment"]["device"] == "cuda"
    here = do(Job(configuration, 0, tmp_path / "cpu.sqlite", "cpu", 1), lambda event: None)
    assert record["average_accuracy"] == pytest.approx(here["average_accuracy"], abs=5)


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
            replica.advance()
        return replica

    here, there = trained_on("cpu"), trained_on("cuda")
    x = here.stream.test[0].x
    torch.testing.assert_close(there.learner.logits(x).cpu(), here.learner.logits(x), rtol=1e-4, atol=1e-4)
    for ours, theirs in zip(here.learner.psi.buffers(), there.learner.psi.buffers(), strict=True):
        torch.testing.assert_close(theirs.cpu(), ours, rtol=1e-4, atol=1e-4)
