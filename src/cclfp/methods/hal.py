"""HAL: experience replay that keeps the predictions at a learned anchor point for each class of each past task."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from cclfp.core.memory import Examples
from cclfp.errors import InputError
from cclfp.losses import cross_entropy
from cclfp.methods.base import Batch, Hyperparameters, Method, State, TaskContext, gradient, setting
from cclfp.nets.network import Tensors
from cclfp.schedules import Ring, Schedule

BATCH = 10  # of the fine-tuning on the memory


@dataclasses.dataclass(frozen=True)
class HALHyper(Hyperparameters):
    lam: float = setting(0.03, "weight of the anchors' loss (lambda); may diverge above 1e-4 / lr^3", low=0)
    gamma: float = setting(0.1, "how strongly an anchor is drawn to its class's mean embedding", low=0)
    beta: float = setting(0.5, "decay of the mean embeddings from batch to batch", low=0, high=1)
    steps: float = setting(100.0, "gradient-ascent steps that learn an anchor (k)", low=0, whole=True)
    anchor_lr: float = setting(1.0, "step size of the gradient ascent that learns an anchor", low=0)


class HAL(Method):
    """Hindsight anchor learning. L is the cross-entropy on the current and the replayed examples, phi(x) is psi(x).

    An anchor e is an input that is learned at the end of each task, one for each class of the task. Later steps keep
    f(e). A step first tries a plain update, theta~ = theta - lr grad L(theta), and then goes along the gradient of

        L(theta) + lam mean_e ||f_theta(e) - f_theta~(e)||^2

    The gradient goes through theta~(theta) too (bilevel optimisation), as in the authors' code. With a constant theta~
    the second term would draw f_theta(e) towards f_theta~(e), the very change that it is to prevent. The norm is over
    the classes that e may be predicted as. The mean is over all anchors (there ten at random), so that lam keeps its
    meaning. The term's step grows as lam lr^3 ||phi||^4: on the MNIST streams it overshoots when a task begins, feeds
    itself and may diverge above lam lr^3 = 1e-4, whether anchors are learned or plain examples.

    At a task's end theta_M is theta after one epoch of SGD on the memory of earlier tasks. For each class y of the task
    k steps of gradient ascent on e, from an example of the class, maximise

        L(f_theta_M(e), y) - L(f_theta(e), y) - gamma ||phi(e) - phi_y||^2

    phi_y is the mean embedding of the class: at first the mean of phi over the class in a minibatch, then after each
    minibatch with the class phi_y <- beta phi_y + (1 - beta) (that mean).

    Choices: the ascent starts at a random example of the class in the ring (else of the task) and keeps to the range of
    the ring's values. The first task has theta_M = theta, so only the last term is at work. BatchNorm normalises
    anchors and theta_M's minibatches with their own statistics, as in the authors' code: in eval mode ResNet18
    diverges. Dropout and the like are in eval mode there. The authors' code has a ring per class, replays earlier tasks
    only, makes theta_M in 50 minibatches, and learns anchors by Adam from mean images under a cosine distance.
    """

    name = "hal"
    reference = "Chaudhry et al. 2021, Using Hindsight to Anchor Past Knowledge in Continual Learning"
    Hyper = HALHyper
    schedule: ClassVar[type[Schedule] | None] = Ring

    def begin_task(self, params: Tensors, buffers: Tensors, state: State, hyper: Any, context: TaskContext) -> State:
        """No mean embeddings yet; the anchors of past tasks may be predicted as the classes that are now known."""
        embedding = torch.zeros_like(params["f.weight"])
        task = torch.full_like(embedding[:, 0], -1, dtype=torch.int64)  # of each class's examples; -1: none yet
        new: State = {"embedding": embedding, "task": task}
        if "anchors" in state:
            new["anchors"] = {**state["anchors"], "mask": context.classes.train(state["anchors"]["task"])}
        return new

    def loss(self, params: Tensors, buffers: Tensors, state: State, batch: Batch, hyper: Any) -> tuple[Any, ...]:
        """L and, where there are anchors, what the tentative update theta~ changes at them."""
        if not batch.x.is_floating_point():
            raise InputError(f"hal learns anchors in psi's inputs, which must be floating-point, not {batch.x.dtype}")

        def task_loss(p: Tensors) -> tuple[Tensor, tuple[Tensor, Tensors]]:
            z, after = self.net.features(p, buffers, batch.x)
            return cross_entropy(self.net.classify(p, z), batch.y, batch.mask), (z, after)

        if "anchors" not in state:
            loss, (z, after) = task_loss(params)
        else:
            e, mask = state["anchors"]["x"], state["anchors"]["mask"]
            grads, (loss, (z, after)) = torch.func.grad_and_value(task_loss, has_aux=True)(params)
            tentative = {name: params[name] - hyper.lr * grads[name] for name in params}
            change = self._logits(params, buffers, e) - self._logits(tentative, buffers, e)
            loss = loss + hyper.lam * torch.where(mask, change, 0).square().sum(-1).mean()
        return loss, after, self._means(state, z[: batch.n_current], batch, hyper.beta)

    def remember(self, state: State, batch: Batch, values: Mapping[str, Tensor]) -> State:
        return {**state, **values}  # the new mean embeddings

    def _means(self, state: State, z: Tensor, batch: Batch, beta: Tensor) -> State:
        """The mean embedding phi_y and the task of each class after the current examples, with features z."""
        n = batch.n_current
        of_class = batch.y[None, :n] == torch.arange(batch.mask.shape[-1], device=z.device)[:, None]
        count = of_class.sum(-1)
        mean = of_class.to(z.dtype) @ z / count.clamp(min=1)[:, None]
        decayed = beta * state["embedding"] + (1 - beta) * mean
        embedding = torch.where((state["task"] < 0)[:, None], mean, decayed)
        embedding = torch.where((count > 0)[:, None], embedding, state["embedding"])
        task = torch.where(of_class, batch.task[:n], -1).amax(-1)
        return {"embedding": embedding, "task": torch.where(count > 0, task, state["task"])}

    def end_task(self, params: Tensors, buffers: Tensors, state: State, hyper: Any, context: TaskContext) -> State:
        """Learn an anchor e for each class of the task, by gradient ascent from an example.

        The memory still holds this task's examples as a ring beside those of earlier tasks, on which theta_M is tuned.
        """
        memory, g = context.memory, context.generator("anchors")
        held, slots = memory.examples(), range(len(memory))
        is_past = torch.tensor([memory.schedule.is_from_past_task(slot) for slot in slots], device=held.y.device)
        past, ring = held.rows(is_past), held.rows(~is_past)
        theta_m = self._tuned(past, params, buffers, hyper, context, g) if len(past.y) else params

        y = (state["task"] >= 0).nonzero()[:, 0]  # the classes of the task
        task, phi, examples = state["task"][y], state["embedding"][y], context.prepare(ring.x)
        mask, low, high = context.classes.train(task), examples.min(), examples.max()

        def hindsight(anchors: Tensors) -> tuple[Tensor, Tensors]:
            e = anchors["e"]
            forgetting = self._loss(theta_m, buffers, e, y, mask) - self._loss(params, buffers, e, y, mask)
            away = (self.net.normalised_features(params, buffers, e) - phi).square().sum()
            return len(y) * forgetting - hyper.gamma * away, {}  # the losses are means over y: here each anchor's own

        e = examples[[_start(ring.y, ring.task, int(c), int(t), g) for c, t in zip(y, task, strict=True)]]
        for _ in range(int(hyper.steps)):
            ascent, _ = gradient(hindsight, {"e": e})
            e = (e + hyper.anchor_lr * ascent["e"]).clamp(low, high)
        anchors = {"x": e, "y": y, "task": task, "mask": mask}
        if "anchors" in state:
            anchors = {name: torch.cat([state["anchors"][name], new]) for name, new in anchors.items()}
        return {**state, "anchors": anchors}

    def _tuned(
        self, past: Examples, params: Tensors, buffers: Tensors, hyper: Any, context: TaskContext, g: torch.Generator
    ) -> Tensors:
        """theta_M: the parameters after one epoch of SGD on examples of earlier tasks, in minibatches of ``BATCH``."""
        x, mask = context.prepare(past.x), context.classes.train(past.task)

        def loss(p: Tensors, rows: Tensor) -> tuple[Tensor, Tensors]:
            return self._loss(p, buffers, x[rows], past.y[rows], mask[rows]), {}

        for rows in torch.randperm(len(past.y), generator=g).to(past.y.device).split(BATCH):
            grads, _ = gradient(functools.partial(loss, rows=rows), params)
            params = self.net.sgd(params, grads, hyper.lr)
        return params

    def _logits(self, params: Tensors, buffers: Tensors, x: Tensor) -> Tensor:
        """f_theta(x), where BatchNorm normalises x with its own statistics."""
        return self.net.classify(params, self.net.normalised_features(params, buffers, x))

    def _loss(self, params: Tensors, buffers: Tensors, x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        return cross_entropy(self._logits(params, buffers, x), y, mask)


def _start(y: Tensor, task: Tensor, label: int, of: int, g: torch.Generator) -> int:
    """A random example of a class and task; of the task, or any, where there is none."""
    choices = next(r for r in ((y == label) & (task == of), task == of, torch.ones_like(y)) if r.any()).nonzero()[:, 0]
    return int(choices[int(torch.rand((), generator=g, dtype=torch.float64) * len(choices))])
