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

TRY_ALL = 7  # up to so many variables all sets of free ones are tried
STEPS = 18  # of the interior-point method; of 7,200 hard problems the worst was off by 1e-11, with 14 steps by 1e-7
PATH = 1e-7  # added to the (unit) diagonal there: where gradients are opposite the central path would have no end
RIDGE = 1e-13  # added to it afterwards: a set of those ranked first may hold gradients that are repeated
ROUNDS = 2  # of solving for each such set: one of two repeated gradients can come out negative, and is then left out


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
    # v = low + scale w, where w >= 0 and P has a unit diagonal.
    scale = P.diagonal().rsqrt()
    q = scale * (q + P @ low)
    P = scale * P * scale.unsqueeze(1)
    if len(q) <= TRY_ALL:
        free = torch.arange(2 ** len(q), device=q.device).unsqueeze(1) & 2 ** torch.arange(len(q), device=q.device) != 0
    else:
        P = P + RIDGE * torch.eye(len(q), dtype=q.dtype, device=q.device)
        preference = _interior_point(P, q)
        rank = (preference > preference.unsqueeze(1)).sum(-1)
        free = rank < torch.arange(len(q) + 1, device=q.device).unsqueeze(1)
    return low + scale * _best(P, q, free, rounds=1 if len(q) <= TRY_ALL else ROUNDS)


def _best(P: Tensor, q: Tensor, free: Tensor, rounds: int) -> Tensor:
    """Of the points that minimise over each set (row) of free variables, the one with the least objective.

    In every further round the variables that came out negative are no longer free.
    """
    unit = torch.eye(len(q), dtype=q.dtype, device=q.device)
    for _ in range(rounds):
        system = torch.where(free.unsqueeze(2) & free.unsqueeze(1), P, unit)
        solution: Tensor = torch.linalg.solve_ex(system, torch.where(free, -q, 0).unsqueeze(2)).result
        w = solution.squeeze(2).clamp(min=0)
        free = w > 0
    objective = (w * torch.addmm(q, w, P, alpha=0.5)).sum(-1).nan_to_num(nan=torch.inf, posinf=torch.inf)
    return w.index_select(0, objective.argmin().reshape(1)).squeeze(0)


def _interior_point(P: Tensor, q: Tensor) -> Tensor:
    """How much each variable is in favour of being free: w / y near the optimum, where y is its multiplier.

    Mehrotra's predictor-corrector method for Pw + q = y, w_i y_i = 0, w >= 0, y >= 0.
    """
    P = P + PATH * torch.eye(len(q), dtype=q.dtype, device=q.device)
    q = q / q.abs().amax().clamp(min=1e-300)
    point = torch.ones(2, len(q), dtype=q.dtype, device=q.device)
    for _ in range(STEPS):
        w, y = point.unbind()
        ratio, slope = y / w, torch.addmv(q, P, w)
        inverse = torch.linalg.inv_ex(P + ratio.diag_embed()).inverse
        # The Newton step towards Pw + q = y and w_i y_i = 0, and how much of it leaves w and y positive.
        dw = -inverse @ slope
        dy = -y - ratio * dw
        reached = _length(point, torch.stack([dw, dy]))
        # Towards w_i y_i = centre, the nearer to 0 the farther that step could go, and with its second-order term.
        centre = (1 - reached) ** 3 * w.dot(y) / len(q)
        target = (centre - dw * dy) / w
        dw = inverse @ (target - slope)
        step = torch.stack([dw, target - y - ratio * dw])
        point = point + 0.995 * _length(point, step) * step
    return point[0] / point[1]


def _length(point: Tensor, step: Tensor) -> Tensor:
    """How much of the step, at most all of it, leaves the point positive."""
    return -1 / (step / point).amin().clamp(max=-1)
