"""A solver for a small convex quadratic programme with lower bounds (GEM's dual), on the device of its tensors.

Everything here is a fixed sequence of tensor operations (it depends only on the number of variables), so it runs under
``torch.func.vmap``, under ``torch.compile`` and in a CUDA graph. Factorisations are the ``_ex`` variants, which do not
synchronise with the host to report success.

The set of variables that are free at the optimum determines the solution: the others are at their bounds, and the free
ones solve a linear system. So several sets of free variables are tried, all at once, and the point with the smallest
objective is returned. Each point is clamped to the bounds, so that a wrong set, or one with a singular system, is still
a feasible point and only has a larger objective. With few variables all sets are tried. With more, an interior-point
method ranks the variables, and the sets tried are the first 0, 1, 2, ... of them.
"""

from __future__ import annotations

import torch
from torch import Tensor

TRY_ALL = 9  # with at most this many variables (ten tasks) all sets of free variables are tried
STEPS = 18  # of the interior-point method; the largest error on 70,000 hard problems was 2e-9 (2e-6 with 16 steps)
LARGEST = {"cuda": 16}  # variables: batches of larger systems go to a library that CUDA graphs cannot capture
ROUNDING = 2.0**-49  # relative rounding error of an objective, a sum of at most 20 x 20 products, in float64
RIDGE = 1e-13  # added to the (unit) diagonal, because the variables ranked first may have equal gradients


def solve(P: Tensor, q: Tensor, low: Tensor) -> Tensor:
    """The v that minimises 1/2 v'Pv + q'v subject to v >= low, for a symmetric positive definite P, in float64.

    P may be singular to machine precision, and its diagonal may have entries of any size. The bounds hold exactly.

    >>> P, q = torch.tensor([[2.0, 0.0], [0.0, 2.0]]), torch.tensor([-2.0, 2.0])
    >>> solve(P, q, low=torch.tensor(0.5))
    tensor([1.0000, 0.5000], dtype=torch.float64)
    """
    P, q, low = P.double(), q.double(), low.double().expand_as(q)
    if len(q) == 1:
        return torch.maximum(low, -q / P[0])
    # v = low + w, where w >= 0.
    q = torch.addmv(q, P, low)
    if len(q) <= TRY_ALL:
        free = torch.arange(2 ** len(q), device=q.device).unsqueeze(1) & 2 ** torch.arange(len(q), device=q.device) != 0
        return low + _best(P, q, free)
    # Scale the variables so that P has a unit diagonal.
    scale = P.diagonal().rsqrt()
    q = scale * q
    P = scale * P * scale.unsqueeze(1) + RIDGE * torch.eye(len(q), dtype=q.dtype, device=q.device)
    preference = _interior_point(P, q)
    rank = (preference > preference.unsqueeze(1)).sum(-1)
    free = rank < torch.arange(len(q) + 1, device=q.device).unsqueeze(1)
    return low + scale * _best(P, q, free)


def _best(P: Tensor, q: Tensor, free: Tensor) -> Tensor:
    """The point with the smallest objective among the minimisers for each set (row) of free variables.

    A nearly singular system can give a huge point, whose objective is a small difference of huge terms and may look
    smallest only because of rounding. So the bound of the rounding error is added to each objective.
    """
    unit = torch.eye(len(q), dtype=q.dtype, device=q.device)
    system = torch.where(free.unsqueeze(2) & free.unsqueeze(1), P, unit)
    solution = _solve(system, torch.where(free, -q, 0).unsqueeze(2))
    w = solution.squeeze(2).clamp(min=0)
    objective = (w * torch.addmm(q, w, P, alpha=0.5)).sum(-1)
    error = ROUNDING * (w * torch.addmm(q.abs(), w, P.abs(), alpha=0.5)).sum(-1)
    objective = (objective + error).nan_to_num(nan=torch.inf, posinf=torch.inf)
    return w.index_select(0, objective.argmin().reshape(1)).squeeze(0)


def _interior_point(P: Tensor, q: Tensor) -> Tensor:
    """A preference of each variable for being free: w / y near the optimum, where y is its multiplier.

    Each iteration takes a Newton step towards Pw + q = y, w_i y_i = 0, with Mehrotra's second-order term, and goes
    almost as far as w and y stay positive. Relative to w and y, Newton's step is -u and u - 1. Their product is the
    remainder of w_i y_i, so the two parts of the corrected step add up to u^2 - u - 1 instead of -1. (Mehrotra first
    aims at w_i y_i = mu > 0. Here that only costs iterations.)
    """
    q = q / q.abs().amax()  # NaN if q is 0; any ranking is right then
    point = torch.ones(2, len(q), dtype=q.dtype, device=q.device)
    unit = torch.eye(len(q), dtype=q.dtype, device=q.device)
    for _ in range(STEPS):
        w, y = point.unbind()
        inverse = _solve(P + (y / w).diag_embed(), unit)
        u = inverse @ torch.addmv(q, P, w) / w
        second = u * u - u
        change = inverse @ (y * second) / w - u
        step = torch.stack([change, second - 1 - change])
        point = point * (1 - 0.995 * step / step.amin().clamp(max=-1))
    return point[0] / point[1]


def _solve(A: Tensor, b: Tensor) -> Tensor:
    """A^-1 b for positive definite matrices A; block elimination splits those that are too large."""
    n = LARGEST.get(A.device.type, A.shape[-1])
    if A.shape[-1] <= n:
        solution: Tensor = torch.linalg.solve_ex(A, b).result
        return solution
    corner, below = A[..., :n, :n], A[..., n:, :n]
    right, top = _solve(corner, torch.cat([A[..., :n, n:], b[..., :n, :]], -1)).split(
        [A.shape[-1] - n, b.shape[-1]], -1
    )
    bottom = _solve(A[..., n:, n:] - below @ right, b[..., n:, :] - below @ top)
    return torch.cat([top - right @ bottom, bottom], -2)
