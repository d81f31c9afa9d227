"""The methods in examples/ keep the contract, and equal their papers by hand."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from by_hand import Paper, follow
from torch import Tensor

import cclfp
from cclfp.learner import Learner
from cclfp.methods import Batch, Method
from cclfp.testing import check_method

EXAMPLES = Path(__file__).parents[2] / "examples"
ERACE: type[Method] = runpy.run_path(str(EXAMPLES / "er_ace.py"))["ERACE"]
DERpp: type[Method] = runpy.run_path(str(EXAMPLES / "der_pp.py"))["DERpp"]


@pytest.mark.slow
@pytest.mark.parametrize(("method", "quick"), [(ERACE, True), (DERpp, False)])
def test_examples_keep_the_contract(method: type[Method], quick: bool) -> None:
    check_method(method, quick=quick, lr=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["er_ace.py:ERACE", "der_pp.py:DERpp"])
def test_examples_run_from_their_files(name: str, small_mnist: Path) -> None:
    (result,) = cclfp.run(f"{EXAMPLES}/{name}", "split-mnist", seeds=1, lr=0.05, store=small_mnist / "runs.sqlite")
    assert result.configuration.method in ("er-ace", "der++")
    assert result.mean is not None
    assert result.mean > 30


def test_der_is_short() -> None:
    """What a user writes: the class without its documentation and blank lines."""
    text = (EXAMPLES / "der_pp.py").read_text(encoding="utf-8")
    body = text[text.index("class DERpp") :]
    assert len([line for line in body.splitlines() if line.strip()]) <= 30


class PlainERACE(Paper):
    """Eq. 2, with cosines as logits: new examples compete with the classes of their minibatch, others with all seen."""

    def loss(self, theta: list[Tensor], batch: Batch) -> Tensor:
        n, y = batch.n_current, batch.y.tolist()
        z = self.features(theta, batch.x)
        logits = 10 * torch.stack([torch.stack([z_i @ w / z_i.norm() / w.norm() for w in theta[-2]]) for z_i in z])
        present = sorted(set(y[:n]))
        new = [torch.logsumexp(row[present], 0) - row[label] for row, label in zip(logits, y[:n], strict=False)]
        loss = torch.stack(new).mean() + 0 * theta[-1].sum()  # there is no bias
        return loss + self.nll(logits[n:], batch.y[n:], batch.task[n:]) if len(y) > n else loss


class PlainDERpp(Paper):
    """Eq. 6: logits are kept with the examples, and two draws are replayed."""

    def __init__(self, learner: Learner) -> None:
        super().__init__(learner)
        self.then: dict[int, Tensor] = {}  # the logits when the example in a slot was stored

    def step(self, batch: Batch) -> None:
        logits = self.logits(self.theta, batch.x)
        super().step(batch)
        for slot, row in zip(batch.placed.tolist(), logits[: batch.n_current], strict=True):
            if slot >= 0:
                self.then[slot] = row

    def loss(self, theta: list[Tensor], batch: Batch) -> Tensor:
        n, half, logits = batch.n_current, len(batch.slots) // 2, self.logits(theta, batch.x)
        loss = self.nll(logits[:n], batch.y[:n], batch.task[:n])
        if half:
            then = torch.stack([self.then[slot] for slot in batch.slots[:half].tolist()])
            again = self.nll(logits[n + half :], batch.y[n + half :], batch.task[n + half :])
            loss = loss + self.hyper["alpha"] * ((logits[n : n + half] - then) ** 2).mean() + self.hyper["beta"] * again
        return loss

    def check(self) -> None:
        stored = torch.stack([self.then[slot] for slot in range(7)])
        torch.testing.assert_close(self.learner.state["logits"], stored, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("method", "plain", "hyper"), [(ERACE, PlainERACE, {}), (DERpp, PlainDERpp, {"alpha": 0.3, "beta": 0.6})]
)
def test_steps_are_those_of_a_plain_loop(method: type[Method], plain: type[Paper], hyper: dict[str, Any]) -> None:
    follow(method, plain, "class", memory=7, replay=3, **hyper)
