"""FDR: the network keeps its outputs on stored examples close to those at the end of their task."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from cclfp.losses import MASKED, cross_entropy
from cclfp.methods.base import Batch, Hyperparameters, Method, State, TaskContext, setting
from cclfp.nets.network import Tensors, chunks
from cclfp.schedules import Reservoir


@dataclasses.dataclass(frozen=True)
class FDRHyper(Hyperparameters):
    alpha: float = setting(1.0, "weight of the distance in function space", low=0)


def outputs(logits: Tensor, mask: Tensor) -> Tensor:
    """The network as a function: a probability for every class, 0 for classes that may not be chosen."""
    return torch.softmax(logits.masked_fill(~mask, MASKED), dim=-1)


def function_distance(p: Tensor, q: Tensor, counts: Tensor) -> Tensor:
    """The L2 distance of two functions over the examples that count: sqrt( mean_i |p_i - q_i|^2 ).

    It is 0, with a gradient of 0, if the two are equal or if no example counts.

    >>> p, q = torch.tensor([[1.0, 0.0], [0.5, 0.5]]), torch.tensor([[0.4, 0.8], [9.0, 9.0]])
    >>> function_distance(p, q, torch.tensor([True, False]))
    tensor(1.)
    """
    difference = torch.where(counts[:, None], p - q, 0)
    norm: Tensor = torch.linalg.vector_norm(difference)  # unlike that of sqrt, its gradient at 0 is 0
    return norm / counts.sum().clamp(min=1).to(norm.dtype).sqrt()


class FDR(Method):
    """Function distance regularisation: the cross-entropy on the current examples + alpha ||f - f_old||.

    The distance is the L2 distance over the distribution of the past tasks' inputs, which the replayed examples sample:
    ||f - f_old||^2 is their mean of |f(x) - f_old(x)|^2, where f(x) are the probabilities after the softmax. This is
    the definition in the README of the authors' code (the code, an optimiser of the same paper, uses the mean of the
    |f(x) - f_old(x)| instead). The loss is the distance and not its square, so its gradient does not vanish as the two
    functions approach each other; if they are equal, it is 0.

    f_old(x) is stored with x at the end of the task of x, for inputs as in testing (eval mode, no augmentation), and
    does not change afterwards. If it were updated at the end of every task, it would drift with the function that it
    should preserve (Permuted MNIST 65.6 instead of 68.9, two seeds; Rotated MNIST 81.1 instead of 82.3, three seeds; on
    the five tasks of Split MNIST 83.8 instead of 83.3, three seeds, within the noise). A replayed example of the
    current task has no stored output yet and does not count. The labels of the memory are not used: with a
    cross-entropy on them, FDR would be ER with a regulariser.

    If new classes have been added since, f has all classes seen by now. f_old could not choose the new classes, so it
    is 0 there, and an old example is kept away from them. (This does not occur in the task scenario, where the classes
    are those of the example's task, nor in the domain scenario, where they are all classes.)
    """

    name = "fdr"
    reference = "Benjamin, Rolnick & Körding 2019, Measuring and Regularizing Networks in Function Space"
    Hyper = FDRHyper
    schedule = Reservoir

    def loss(self, params: Tensors, buffers: Tensors, state: State, batch: Batch, hyper: Any) -> tuple[Tensor, Tensors]:
        n = batch.n_current
        has_stored = "outputs" in state and n < len(batch.y)
        # In the first task no replayed example counts: leave them out of the forward pass and BatchNorm's statistics.
        z, buffers = self.net.features(params, buffers, batch.x if has_stored else batch.x[:n])
        logits = self.net.classify(params, z)
        loss = cross_entropy(logits[:n], batch.y[:n], batch.mask[:n])
        if has_stored:
            p, p_old = outputs(logits[n:], batch.mask[n:]), state["outputs"][batch.slots]
            loss = loss + hyper.alpha * function_distance(p, p_old, batch.from_past_task)
        return loss, buffers

    def end_task(self, params: Tensors, buffers: Tensors, state: State, hyper: Any, context: TaskContext) -> State:
        memory = context.memory
        held = memory.examples()
        masks = context.classes.train(held.task)
        logits = [self.scores(params, buffers, state, context.prepare(x)) for x in chunks(held.x)]
        new = outputs(torch.cat(logits), masks)
        stored = state.get("outputs", new.new_zeros(memory.size, new.shape[1])).clone()
        new_slots = [slot for slot in range(len(memory)) if not memory.schedule.is_from_past_task(slot)]
        stored[new_slots] = new[new_slots]
        return {"outputs": stored}
