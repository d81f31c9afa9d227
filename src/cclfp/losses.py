"""The equations of the paper as pure functions of tensors.

They take one minibatch (current and replayed examples together) in float32 or float64, and run the same eagerly, under
``torch.func.vmap`` and under ``torch.compile``. Equation numbers are those of Han & Guo (2021): d is the Euclidean
distance (not squared) and eta and tau multiply it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

# Stands for -inf where a class may not be chosen: finite, so that no arithmetic on it gives NaN.
MASKED = -1e30


def distances(a: Tensor, b: Tensor) -> Tensor:
    """d(a_i, b_j) for all rows, by explicit differences; its gradient is 0, not NaN, where the distance is 0.

    >>> distances(torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[5., 0.]])
    """
    if a.is_cuda and is_transformed():  # many replicas at once: there cdist processes one pair of rows at a time
        d: Tensor = torch.linalg.vector_norm(a.unsqueeze(-2) - b.unsqueeze(-3), dim=-1)
        return d
    # By default cdist uses a matmul above 25 rows, which loses half of the digits near 0.
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")


def propagation_weights(z: Tensor, z_old: Tensor, eta: Tensor | float, *, d: Tensor | None = None) -> Tensor:
    """Eq. 4: A_ij = exp(-eta d(z_i, z_old_j)) / sum_j' exp(-eta d(z_i, z_old_j')).

    ``d`` is ``distances(z, z_old)`` where the caller has it already.

    >>> z = torch.tensor([[0.0], [1.0]])
    >>> propagation_weights(z, z, eta=0.0)
    tensor([[0.5000, 0.5000],
            [0.5000, 0.5000]])
    """
    d = distances(z, z_old) if d is None else d
    return torch.softmax(-eta * d, dim=-1)


def propagate(z: Tensor, z_old: Tensor, w: Tensor | float, eta: Tensor | float, *, d: Tensor | None = None) -> Tensor:
    """Eq. 3: the fused features (1 - w) z_i + w sum_j A_ij z_old_j.

    >>> z, z_old = torch.tensor([[1.0], [3.0]]), torch.tensor([[5.0], [5.0]])
    >>> propagate(z, z_old, w=0.5, eta=0.1)
    tensor([[3.],
            [4.]])
    """
    return (1 - w) * z + w * (propagation_weights(z, z_old, eta, d=d) @ z_old)


def contrastive_rehearsal(z: Tensor, z_old: Tensor, tau: Tensor | float, *, d: Tensor | None = None) -> Tensor:
    """Eq. 6: L_cl = -mean_i log( exp(-tau d(z_i, z_old_i)) / sum_j exp(-tau d(z_i, z_old_j)) ).

    ``d`` is ``distances(z, z_old)`` where the caller has it already.

    >>> z = torch.zeros(2, 3)
    >>> contrastive_rehearsal(z, z, tau=0.1)  # the two examples are indistinguishable: log 2
    tensor(0.6931)
    """
    d = distances(z, z_old) if d is None else d
    return -torch.log_softmax(-tau * d, dim=-1).diagonal(dim1=-2, dim2=-1).mean(-1)


def supervised_contrastive(z: Tensor, y: Tensor, tau: Tensor | float) -> Tensor:
    """Eq. 8: L_scl = -mean_i mean_{k in S_i} log( exp(-tau d(z_i, z_k)) / sum_{j != i} exp(-tau d(z_i, z_j)) ).

    S_i holds the other examples of i's class. An example without any is left out of the mean over i. If no
    example has a partner, the loss is 0.

    >>> z = torch.tensor([[0.0], [0.0], [9.0], [9.0]])
    >>> supervised_contrastive(z, torch.tensor([0, 0, 1, 1]), tau=1.0)  # classes far apart
    tensor(0.0002)
    >>> supervised_contrastive(z[:1], torch.tensor([0]), tau=1.0)
    tensor(0.)
    """
    itself = torch.eye(len(z), dtype=torch.bool, device=z.device)
    log_p = torch.log_softmax((-tau * distances(z, z)).masked_fill(itself, MASKED), dim=-1)
    partner = (y[:, None] == y[None, :]) & ~itself
    partners = partner.sum(-1)
    per_example = torch.where(partner, -log_p, 0).sum(-1) / partners.clamp(min=1)
    return per_example.sum() / (partners > 0).sum().clamp(min=1)


def cross_entropy(logits: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """Mean cross-entropy over the classes that ``mask`` (examples x classes, boolean) lets each example choose from.

    >>> cross_entropy(torch.zeros(1, 4), torch.tensor([0]), torch.tensor([[True, True, False, False]]))
    tensor(0.6931)
    """
    logits = logits.masked_fill(~mask, MASKED)
    if logits.is_cuda and is_transformed():  # vmap would split the usual operation into thirty
        return -torch.log_softmax(logits, dim=-1).gather(-1, y.unsqueeze(-1)).mean()
    return F.cross_entropy(logits, y)


def is_transformed() -> bool:
    """Whether this runs under vmap, torch.func.grad or torch.compile; or torch does not tell."""
    level = getattr(getattr(torch._C, "_functorch", None), "maybe_current_level", None)  # not promised by torch
    return level is None or torch.compiler.is_compiling() or level() is not None
