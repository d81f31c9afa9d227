"""iCaRL: a nearest-mean-of-exemplars classifier on features trained with distillation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from cclfp.losses import distances
from cclfp.methods.base import Batch, Method, State, TaskContext
from cclfp.nets.network import Tensors, chunks
from cclfp.schedules import Exemplars, Schedule

FAR = 10.0  # farther than any distance between unit vectors


class ICaRL(Method):
    """Algorithms 1 to 5 of the paper; phi(x) is psi(x) / ||psi(x)||, and averages are normalised again (section 2.1).

    Training (Alg. 3): the mean over the minibatch, exemplars included, of the sum over classes y of
    BCE(sigmoid(f_y(psi(x))), target). The target is the output of the model at the end of the last task (frozen, eval
    mode) if y is a class of an earlier task, and the label if y is another class in the mask. Each example therefore
    distils every old head, in the task scenario too. f takes psi(x), as in the authors' code; in eq. 1 it takes phi(x).
    Prediction (Alg. 1): the nearest class mean.

    Herding (Alg. 4), at a task's end, in eval mode: p_k = argmin_x ||mu - (phi(x) + sum_{j<k} phi(p_j)) / k||, both
    averages normalised (so 1 / k cancels), for k up to m = M // (classes seen). Classes without new examples keep their
    first m exemplars (Alg. 5). No other example of the task is kept. A class's mean is that of its exemplars under the
    model at the end of the last task. It is not updated while the next task changes psi, only at the end of that task.

    Choices where the paper is not explicit: an example is picked once, however often it was seen. Before its first
    herding the mean of a class is the running mean of its features in training; a class without that ranks after all
    others, by its sigmoid. A class that appears again is trained on its new labels, keeps its mean, and is herded again
    from its exemplars and new examples together. If M < classes seen (m = 0), the mean is that of all examples at the
    end of the class's last task. Exemplars are not flipped: a flipped digit is not a digit.
    """

    name = "icarl"
    reference = "Rebuffi et al. 2017, iCaRL: Incremental Classifier and Representation Learning"
    refuses: ClassVar[dict[str, str]] = {
        "domain": "its exemplars and distillation need tasks that bring new classes, and here all tasks have the same"
    }
    schedule: ClassVar[type[Schedule] | None] = Exemplars
    keeps_task = True

    def begin_task(self, params: Tensors, buffers: Tensors, state: State, hyper: Any, context: TaskContext) -> State:
        if state:
            return state
        zeros = torch.zeros_like(params["f.weight"])
        counts = zeros[:, 0].long()
        return {"means": zeros, "known": counts > 0, "sums": zeros.clone(), "counts": counts}

    def loss(self, params: Tensors, buffers: Tensors, state: State, batch: Batch, hyper: Any) -> tuple[Any, ...]:
        z, buffers = self.net.features(params, buffers, batch.x)
        logits = self.net.classify(params, z)
        label = batch.y[:, None] == torch.arange(logits.shape[-1], device=z.device)
        target = label.to(z.dtype)
        if "params_old" in state:
            with torch.no_grad():
                z_old = self.net.frozen_features(state["params_old"], state["buffers_old"], batch.x)
                q = torch.sigmoid(self.net.classify(state["params_old"], z_old))
            is_new = torch.arange(len(batch.y), device=z.device) < batch.n_current
            taught = label & is_new[:, None]  # a class that appears again
            target = torch.where(state["known"] & ~taught, q, target)
        bce = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
        loss = torch.where(batch.mask | state["known"], bce, 0).sum(-1).mean()
        return loss, buffers, {"features": z[: batch.n_current]}

    def remember(self, state: State, batch: Batch, values: Mapping[str, Tensor]) -> State:
        """Add the features of the current examples to the running means of their classes."""
        phi = F.normalize(values["features"])
        of_class = batch.y[: batch.n_current] == torch.arange(batch.mask.shape[-1], device=phi.device)[:, None]
        sums, counts = state["sums"] + of_class.to(phi.dtype) @ phi, state["counts"] + of_class.sum(-1)
        return {**state, "sums": sums, "counts": counts}

    def end_task(self, params: Tensors, buffers: Tensors, state: State, hyper: Any, context: TaskContext) -> State:
        memory = context.memory
        held, new = memory.examples(), memory.current()
        x, y = torch.cat([held.x, new.x]) if len(held.y) else new.x, torch.cat([held.y, new.y])
        parts = (self.net.frozen_features(params, buffers, context.prepare(part)) for part in chunks(x))
        phi = F.normalize(torch.cat(list(parts)))
        means, known = state["means"].clone(), state["known"].clone()
        known[y] = True
        m = memory.size // int(known.sum())
        exemplars = []
        for label in y.unique().tolist():
            rows = (y == label).nonzero()[:, 0]
            if rows[-1] < len(held.y):
                chosen = rows[:m]
            else:
                rows = rows[_distinct(x[rows])]
                chosen = rows[herd(phi[rows], m)]
            means[label] = F.normalize(phi[chosen if m else rows].mean(0), dim=0)
            exemplars.append(chosen)
        memory.keep(torch.cat(exemplars))
        return {
            **state,
            "params_old": params,  # the learner stores copies
            "buffers_old": buffers,
            "means": means,
            "known": known,
        }

    def scores(self, params: Tensors, buffers: Tensors, state: State, x: Tensor) -> Tensor:
        z = self.net.frozen_features(params, buffers, x)
        fallback = torch.sigmoid(self.net.classify(params, z)) - FAR
        if not state:
            return fallback
        means = torch.where(state["known"][:, None], state["means"], F.normalize(state["sums"]))
        nearness = -distances(F.normalize(z), means)
        return torch.where(state["known"] | (state["counts"] > 0), nearness, fallback)


def herd(phi: Tensor, m: int) -> list[int]:
    """Alg. 4: the rows of (at most) m exemplars among the normalised features, the most important first.

    >>> herd(F.normalize(torch.tensor([[0.0, 1.0], [1.0, 1.0], [1.0, 0.0]])), 2)
    [1, 0]
    """
    mu, total, chosen = F.normalize(phi.mean(0), dim=0), torch.zeros_like(phi[0]), list[int]()
    for _ in range(min(m, len(phi))):
        distance = (mu - F.normalize(phi + total)).square().sum(-1)
        distance[chosen] = torch.inf
        chosen.append(int(distance.argmin()))
        total = total + phi[chosen[-1]]
    return chosen


def _distinct(x: Tensor) -> Tensor:
    """The first row of each distinct example, in order."""
    distinct, which = torch.unique(x.reshape(len(x), -1), dim=0, return_inverse=True)
    rows = torch.arange(len(x), device=x.device)
    first = torch.full_like(rows[: len(distinct)], len(x)).scatter_reduce(0, which, rows, "amin")
    return first.sort().values
