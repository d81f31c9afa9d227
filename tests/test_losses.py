"""The paper's equations against brute-force loops in float64."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import grad, vmap

from cclfp.losses import (
    contrastive_rehearsal,
    cross_entropy,
    distances,
    propagate,
    propagation_weights,
    supervised_contrastive,
)

Rows = list[list[float]]


# -- the equations, as loops over plain numbers -------------------------------------------------------------------


def log_sum_exp(values: list[float]) -> float:
    top = max(values)
    return top + math.log(math.fsum(math.exp(v - top) for v in values))


def brute_weights(z: Rows, z_old: Rows, eta: float) -> Rows:
    weights = []
    for a in z:
        logits = [-eta * math.dist(a, b) for b in z_old]
        normaliser = log_sum_exp(logits)
        weights.append([math.exp(v - normaliser) for v in logits])
    return weights


def brute_propagate(z: Rows, z_old: Rows, w: float, eta: float) -> Rows:
    fused = []
    for a, weights in zip(z, brute_weights(z, z_old, eta), strict=True):
        mixed = [math.fsum(A * b[k] for A, b in zip(weights, z_old, strict=True)) for k in range(len(a))]
        fused.append([(1 - w) * a[k] + w * mixed[k] for k in range(len(a))])
    return fused


def brute_rehearsal(z: Rows, z_old: Rows, tau: float) -> float:
    terms = []
    for i, a in enumerate(z):
        logits = [-tau * math.dist(a, b) for b in z_old]
        terms.append(log_sum_exp(logits) - logits[i])
    return math.fsum(terms) / len(terms)


def brute_supervised(z: Rows, y: list[int], tau: float) -> float:
    per_example = []
    for i in range(len(z)):
        others = [j for j in range(len(z)) if j != i]
        partners = [k for k in others if y[k] == y[i]]
        if partners:
            normaliser = log_sum_exp([-tau * math.dist(z[i], z[j]) for j in others])
            terms = [normaliser + tau * math.dist(z[i], z[k]) for k in partners]
            per_example.append(math.fsum(terms) / len(terms))
    return math.fsum(per_example) / len(per_example) if per_example else 0.0


# -- minibatches that are hard ------------------------------------------------------------------------------------


@st.composite
def minibatches(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor]:
    """z, z_old and labels: 1 to 60 rows, some of them twice, z = z_old, one class only, every class once, far apart."""
    n, width = draw(st.integers(1, 60)), draw(st.integers(1, 8))
    g = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    scale = draw(st.sampled_from([1e-2, 1.0, 30.0, 1e4]))

    def rows() -> Tensor:
        z = scale * torch.randn(n, width, dtype=torch.float64, generator=g)
        if draw(st.booleans()):  # duplicate rows
            z = z[torch.randint(0, max(1, n // 2), (n,), generator=g)]
        return z

    z = rows()
    z_old = z.clone() if draw(st.booleans()) else rows()
    labels = draw(st.sampled_from(["few", "one", "each once"]))
    y = {
        "few": torch.randint(0, 5, (n,), generator=g),
        "one": torch.zeros(n, dtype=torch.int64),
        "each once": torch.arange(n),
    }[labels]
    return z, z_old, y


temperatures = st.sampled_from([0.0, 0.1, 1.0])


def close(ours: Tensor, brute: Rows | float) -> None:
    expected = torch.tensor(brute, dtype=torch.float64)
    scale = expected.abs().max().clamp(min=1)  # relative where the numbers are large
    assert ((ours - expected).abs() <= 1e-9 * scale).all()


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(minibatches(), st.floats(0, 1), temperatures, temperatures)
def test_equal_to_brute_force(batch: tuple[Tensor, Tensor, Tensor], w: float, eta: float, tau: float) -> None:
    z, z_old, y = batch
    close(propagation_weights(z, z_old, eta), brute_weights(z.tolist(), z_old.tolist(), eta))
    close(propagate(z, z_old, w, eta), brute_propagate(z.tolist(), z_old.tolist(), w, eta))
    close(contrastive_rehearsal(z, z_old, tau), brute_rehearsal(z.tolist(), z_old.tolist(), tau))
    close(supervised_contrastive(z, y, tau), brute_supervised(z.tolist(), y.tolist(), tau))


@settings(max_examples=100, deadline=None)
@given(minibatches(), st.sampled_from([torch.float32, torch.float64]), temperatures)
def test_gradients_are_finite(batch: tuple[Tensor, Tensor, Tensor], dtype: torch.dtype, tau: float) -> None:
    z, z_old, y = batch[0].to(dtype).requires_grad_(), batch[1].to(dtype), batch[2]
    for loss in (
        propagate(z, z_old, 0.5, tau).square().sum(),
        contrastive_rehearsal(z, z_old, tau),
        supervised_contrastive(z, y, tau),
    ):
        assert torch.isfinite(loss)
        (g,) = torch.autograd.grad(loss, z)
        assert torch.isfinite(g).all()


@pytest.mark.parametrize("rows", [20, 60])  # above 25 rows torch may use another formula
def test_the_distance_to_itself_and_its_gradient_are_exactly_zero(rows: int) -> None:
    z = (100 * torch.randn(rows, 7)).requires_grad_()
    d = distances(z, z.detach()).diagonal()
    assert (d == 0).all()
    assert (torch.autograd.grad(d.sum(), z)[0] == 0).all()


def every_loss(z: Tensor, z_old: Tensor, y: Tensor) -> Tensor:
    d = distances(z, z_old)
    return (
        propagate(z, z_old, 0.5, 0.1, d=d).sum()
        + contrastive_rehearsal(z, z_old, 0.1, d=d)
        + supervised_contrastive(z, y, 0.1)
        + cross_entropy(z, y, torch.ones_like(z, dtype=torch.bool))
    )


@pytest.mark.slow
def test_vmap_equals_a_loop() -> None:
    z, z_old, y = torch.randn(4, 20, 6), torch.randn(4, 20, 6), torch.randint(0, 6, (4, 20))
    z_old[:, 0] = z[:, 0]
    together = vmap(grad(every_loss))(z, z_old, y)
    alone = torch.stack([grad(every_loss)(*one) for one in zip(z, z_old, y, strict=True)])
    torch.testing.assert_close(together, alone)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_compiles_without_a_break(dtype: torch.dtype) -> None:
    z, z_old, y = torch.randn(20, 6, dtype=dtype), torch.randn(20, 6, dtype=dtype), torch.randint(0, 6, (20,))
    z_old[0] = z[0]
    compiled = torch.compile(grad(every_loss), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(z, z_old, y), grad(every_loss)(z, z_old, y))


def test_cross_entropy_ignores_what_may_not_be_chosen() -> None:
    logits = torch.tensor([[1.0, 2.0, 99.0]], requires_grad=True)
    mask = torch.tensor([[True, True, False]])
    loss = cross_entropy(logits, torch.tensor([0]), mask)
    assert torch.isclose(loss, math.log(1 + math.e) * torch.ones(()))
    assert torch.autograd.grad(loss, logits)[0][0, 2] == 0
