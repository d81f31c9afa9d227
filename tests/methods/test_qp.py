"""The solver against quadprog, on problems as GEM has them: random, degenerate, badly scaled, 1 to 19 constraints.

The objective must be within 1e-6 of the least, relative to its own size or, where that is smaller because terms cancel,
to how far it is below that of v = low. The constraints v >= low must hold exactly.

On badly scaled problems quadprog itself gives up ("constraints are inconsistent"). It is therefore given the problem in
units in which P has a unit diagonal, and where P is singular to machine precision 1e-14 more on it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cclfp.methods import qp
from cclfp.methods.qp import solve

Array = np.ndarray[Any, np.dtype[np.float64]]

KINDS = (
    "random",
    "all violated",
    "repeated",
    "zero",
    "in a plane",
    "of low rank",
    "opposite",
    "nearly opposite",
    "tiny",
    "huge",
    "of all sizes",
    "repeated, of all sizes",
    "opposite, of all sizes",
)


def problems(kind: str, n: int, k: int, seed: int) -> tuple[Tensor, Tensor]:
    """k dual programmes of GEM with n past gradients of 40 numbers each."""
    g = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float64, generator=g)

    def of_all_sizes(*shape: int) -> Tensor:
        return 10 ** (16 * torch.rand(shape, dtype=torch.float64, generator=g) - 8)

    M, current, half = normal(k, n, 40), normal(k, 40), n // 2
    if kind == "all violated":
        M = 0.1 * M - current[:, None]
    if kind.startswith("repeated"):
        M = M[:, torch.randint(0, max(1, half), (n,), generator=g)]
    if kind == "zero":
        M = M * (torch.rand(k, n, 1, generator=g) < 0.5)
    if kind in ("in a plane", "of low rank"):
        rank = 2 if kind == "in a plane" else max(1, half)
        M = normal(k, n, rank) @ normal(k, rank, 40)
    if kind.startswith("opposite"):
        M[:, half : 2 * half] = -M[:, :half]
    if kind == "nearly opposite":
        M[:, half : 2 * half] = 1e-4 * M[:, half : 2 * half] - M[:, :half]
    if kind in ("tiny", "huge"):
        M, current = ((1e-8 if kind == "tiny" else 1e8) * t for t in (M, current))
    if kind.endswith("of all sizes"):
        M, current = of_all_sizes(k, n, 1) * M, of_all_sizes(k, 1) * current
    return M @ M.mT + 1e-3 * torch.eye(n, dtype=torch.float64), (M @ current[..., None]).squeeze(-1)


def quadprog(P: Array, q: Array, low: Array) -> Array:
    import quadprog  # here: the GPU tests below also run where it cannot be installed

    return np.asarray(quadprog.solve_qp(P, -q, np.eye(len(q)), low)[0])


def by_quadprog(P: Array, q: Array, low: float) -> Array:
    scale = 1 / np.sqrt(np.diag(P))
    shifted = scale * (q + P @ np.full(len(q), low))
    size = max(float(np.abs(shifted).max()), 1e-300)
    for more in (0.0, 1e-14, 1e-12):
        try:
            unit = scale[:, None] * P * scale + more * np.eye(len(q))
            w = quadprog(unit, shifted / size, np.zeros(len(q)))
        except ValueError:
            continue
        return np.asarray(low + size * scale * np.maximum(w, 0))
    raise AssertionError("quadprog gave up")


def objective(P: Array, q: Array, v: Array) -> float:
    """In long double, so that the comparison loses nothing."""
    exact = [a.astype(np.longdouble) for a in (P, q, v)]
    return exact[2] @ exact[0] @ exact[2] / 2 + exact[1] @ exact[2]  # type: ignore[return-value]


def check(P: Tensor, q: Tensor, low: float, v: Tensor) -> None:
    assert v.dtype == torch.float64
    assert (v >= low).all()
    Pn, qn = P.numpy(), q.numpy()
    ours, best, at_low = (
        objective(Pn, qn, point) for point in (v.numpy(), by_quadprog(Pn, qn, low), np.full(len(q), low))
    )
    scale = max(abs(best), at_low - best)
    assert ours - best <= 1e-6 * scale, f"{float(ours)} instead of {float(best)}"


@pytest.mark.parametrize("ranked", [False, True], ids=["as usual", "ranked"])
@pytest.mark.parametrize("kind", KINDS)
def test_as_good_as_quadprog(kind: str, ranked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the interior-point method ranks so few variables that all sets would be tried."""
    sizes = range(2, qp.TRY_ALL + 1) if ranked else range(1, 20)
    monkeypatch.setattr(qp, "TRY_ALL", 0 if ranked else qp.TRY_ALL)
    for n in sizes:
        for low in (0.0, 1e-3, 0.5, 30.0):
            P, q = problems(kind, n, k=10, seed=n)
            several = torch.vmap(solve, in_dims=(0, 0, None))(P, q, torch.tensor(low))
            for one in zip(P, q, several, strict=True):
                check(one[0], one[1], low, one[2])


@pytest.mark.parametrize(
    ("kind", "n", "low", "seed", "k", "which"),
    [
        # By rounding P is not positive definite: off by 95 % without ridge.
        ("opposite, of all sizes", 16, 0.5, 0, 10, 8),
        ("of low rank", 18, 0.0, 2, 10, 0),  # off by 6e-5 with 12 steps
        ("repeated, of all sizes", 18, 0.5, 923424, 1, 0),  # off by 1.7e-6 where Mehrotra's method was used as it is
    ],
)
def test_the_hardest_of_many(kind: str, n: int, low: float, seed: int, k: int, which: int) -> None:
    P, q = (t[which] for t in problems(kind, n, k=k, seed=seed))
    check(P, q, low, solve(P, q, torch.tensor(low)))


@pytest.mark.parametrize("n", [1, 3, 9, 10, 19])
def test_the_point_itself_where_it_is_unique(n: int) -> None:
    P, q = problems("random", n, k=20, seed=0)
    for one in range(20):
        expected = quadprog(P[one].numpy(), q[one].numpy(), np.full(n, 0.1))
        v = solve(P[one], q[one], torch.tensor(0.1, dtype=torch.float64))
        torch.testing.assert_close(v, torch.as_tensor(expected), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("n", [1, 2, 5, 9, 11, 12])
def test_degenerate_problems(n: int) -> None:
    """Nothing to do; one gradient repeated, so that most of the sets' systems are singular; no numbers at all."""
    ones = torch.ones(n, n, dtype=torch.float64)
    for low in (0.0, 0.5):
        assert (solve(1e-3 * torch.eye(n, dtype=torch.float64), 0 * ones[0], torch.tensor(low)) == low).all()
    torch.testing.assert_close(solve(ones, -ones[0], torch.tensor(0.0)).sum(), ones[0, 0])
    for broken in (torch.nan, torch.inf):  # a training that diverges must not stop inside the solver, as in others
        solve(broken * ones, torch.nan * ones[0], torch.tensor(0.5))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("n", [1, 4, 9, 12, 19])
@pytest.mark.parametrize("replicas", [1, 5])
def test_in_a_cuda_graph(n: int, replicas: int) -> None:
    """So nothing in it waits for the host."""
    several = torch.vmap(solve, in_dims=(0, 0, None))
    P, q = problems("random", n, k=replicas, seed=2)
    low = torch.tensor(0.5)
    given = P.cuda(), q.cuda(), low.cuda()
    for _ in range(3):
        several(*given)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        v = several(*given)
    graph.replay()
    torch.testing.assert_close(v.cpu(), several(P, q, low), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("n", [12, 19, 40])
def test_large_systems_taken_apart(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a graphics card, where only systems of up to 16 variables can be recorded in a graph."""
    g = torch.Generator().manual_seed(n)
    rows = torch.randn(n, 2 * n, dtype=torch.float64, generator=g)
    P, q, low = rows @ rows.mT, torch.randn(n, dtype=torch.float64, generator=g), torch.tensor(0.1)
    whole = solve(P, q, low)
    monkeypatch.setattr(qp, "LARGEST", {"cpu": 5})
    torch.testing.assert_close(solve(P, q, low), whole, rtol=1e-9, atol=1e-9)
