"""A small convex quadratic programme with lower bounds, solved on the device it lives on: GEM's dual.

Everything here is a fixed sequence of tensor operations (it depends on the number of variables alone), so it runs under
``torch.func.vmap``, under ``torch.compile`` and in a CUDA graph. Factorisations are the ``_ex`` ones, which do not ask
the host whether they succeeded.

Which variables are free at the optimum decides everything: the others are at their bounds, and the free ones solve a
linear system. So some sets of free variables are tried, all at once, and the point with the least objective wins. Each
point is clamped to the bounds, so a set that is wrong, or whose system is singular, can only lose. Of few variables all
sets are tried. Where there are more, an interior-point method ranks them, and the sets tried are the first 0, 1, 2, ...
"""

from __future__ import annotations

import torch
from torch import Tensor

TRY_ALL = 9  # up to so many variables (ten tasks) all sets of free ones are tried
STEPS = 18  # of the interior-point method; of 70,000 hard problems the worst was off by 2e-9, with 16 steps by 2e-6
LARGEST = {"cuda": 16}  # variables: many larger systems go to a library whose work no graph can record
ROUNDING = 2.0**-49  # relative: how far an objective, a sum of at most 20 x 20 products, may be off in float64
RIDGE = 1e-13  # added to the (unit) diagonal: the sets of variables ranked first may hold gradients that are repeated


def solve(P: Tensor, q: Tensor, low: Tensor) -> Tensor:
    """The v that minimises 1/2 v'Pv + q'v subject to v >= low, for a symmetric positive definite P, in float64.

    P may be singular to machine precision, and its diagonal of any sizes. The bounds hold exactly.

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
    # In units in which P has a unit diagonal.
    scale = P.diagonal().rsqrt()
    q = scale * q
    P = scale * P * scale.unsqueeze(1) + RIDGE * torch.eye(len(q), dtype=q.dtype, device=q.device)
    preference = _interior_point(P, q)
    rank = (preference > preference.unsqueeze(1)).sum(-1)
    free = rank < torch.arange(len(q) + 1, device=q.device).unsqueeze(1)
    return low + scale * _best(P, q, free)


def _best(P: Tensor, q: Tensor, free: Tensor) -> Tensor:
    """Of the points that minimise over each set (row) of free variables, the one with the least objective.

    The system of a set that is nearly singular can give a huge point, whose objective is a small difference of huge
    terms: what rounding makes of it may look like the least. So each objective is taken at the upper end of its error.
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
    """How much each variable is in favour of being free: w / y near the optimum, where y is its multiplier.

    Each step is Newton's towards Pw + q = y, w_i y_i = 0, with Mehrotra's second-order term, and goes almost as far as
    w and y stay positive. In proportion to w and y, Newton's step is -u and u - 1; their product is what it leaves of
    w_i y_i, so that the step taken adds up to u^2 - u - 1 instead of -1. (Mehrotra also aims at w_i y_i = mu > 0 first.
    Here that only costs steps.)
    """
    q = q / q.abs().amax()  # NaN where q is 0, where any ranking will do
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
    """A^-1 b for positive definite matrices A, of which large ones are taken apart (block elimination)."""
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
