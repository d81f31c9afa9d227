"""What is trained: the network, the method and its state, the memory, the classes seen so far and the counters.

:class:`cclfp.Learner` and the engines both work on a :class:`Trainer`. The learner checks what users give it first, and
undoes a step that fails. The engines plan their steps ahead and check nothing at each step.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from cclfp.core.arguments import check_device
from cclfp.core.memory import Examples, Memory, MemorySlots
from cclfp.core.randomness import generator, seeded
from cclfp.core.scenarios import ClassMask
from cclfp.errors import InputError
from cclfp.learner.divergence import Model, refuse_not_finite
from cclfp.learner.inputs import Inputs
from cclfp.learner.settings import Settings
from cclfp.methods import Batch, Method, TaskContext
from cclfp.methods.base import Hyperparameters, State, unpack_step
from cclfp.nets import linear
from cclfp.nets.network import Network, Tensors, check_psi, chunks, copy_all, device_of, psi_mode

PROBE = 10  # examples that show how many features psi gives


@dataclasses.dataclass(frozen=True)
class Bound:
    """The classifier f, and the method on the network of psi and f. It exists from the first batch on."""

    f: nn.Linear
    method: Method
    hyper: Hyperparameters  # as a step takes them: 0-d tensors


class Trainer:
    """The trainable part of a learner, as engines use it."""

    def __init__(self, settings: Settings, psi: nn.Module, device: str | torch.device | None = None) -> None:
        check_psi(psi)
        self.settings = settings
        self.psi = psi
        self.inputs = Inputs(settings, psi)
        self.psi_mode = psi_mode(psi)  # as it was given, whatever the user does with psi later
        self.autocast: torch.dtype | None = None  # what psi computes in, where that is not its weights' dtype
        self.bound: Bound | None = None
        self.example: tuple[torch.Size, torch.dtype] | None = None  # shape and dtype of one raw example
        self.class_names: tuple[str, ...] | None = None  # of the first rows of f; the rows after them are free
        self.classes = settings.class_mask()  # which classes have been seen
        self.state: State = {}
        self.steps = 0
        self.tasks_done = 0
        self.in_task = False
        self.device = check_device(device) if device is not None else device_of(psi)
        self.memory: Memory | None = None
        method = settings.method
        if method.schedule is not None:
            schedule = method.schedule(settings.memory, settings.seed, settings.num_tasks)
            self.memory = Memory(schedule, self.device, keeps_task=method.keeps_task)
        self.to(self.device)

    # -- the model ------------------------------------------------------------------------------------------------

    @property
    def f(self) -> nn.Linear | None:
        """The classifier; None before the first batch, which shows how many features psi gives."""
        return None if self.bound is None else self.bound.f

    @property
    def method(self) -> Method:
        """The method on this network. Call :meth:`make_classifier` first."""
        return self._bound.method

    @property
    def hyper_tensors(self) -> Hyperparameters:
        """The hyperparameters as a step takes them: 0-d tensors."""
        return self._bound.hyper

    @property
    def params(self) -> Tensors:
        """The trained parameters of psi and f, by name."""
        return self._bound.method.net.params

    @property
    def buffers(self) -> Tensors:
        """The buffers of psi, by name."""
        return self._bound.method.net.buffers

    @property
    def model(self) -> Model:
        """What a step takes and gives: parameters, buffers, the method's state."""
        return self.params, self.buffers, self.state

    @property
    def _bound(self) -> Bound:
        assert self.bound is not None, "there is no classifier yet: call make_classifier"
        return self.bound

    def make_classifier(self, x: Tensor) -> None:
        """Make f for raw inputs like these, where there is none yet. InputError where psi does not take them."""
        if self.bound is None:
            z = self.inputs.probe(x[:PROBE])
            f = linear(z.shape[1], self.settings.num_classes, generator(self.settings.seed, "classifier"), z.dtype)
            self.bind(f.to(self.device))
        self.example = (x.shape[1:], x.dtype)

    def bind(self, f: nn.Linear) -> None:
        """Use ``f`` as the classifier."""
        method = self.settings.method(Network(self.psi, f, self.psi_mode, self.autocast))
        numbers = {
            name: torch.tensor(value, dtype=f.weight.dtype, device=self.device)
            for name, value in dataclasses.asdict(self.settings.hyper).items()
        }
        hyper = type(self.settings.hyper)(**numbers)  # type: ignore[arg-type]  # 0-d tensors: the contract of a step
        self.bound = Bound(f, method, hyper)

    def update(self, params: Tensors, buffers: Tensors, state: State, steps: int) -> None:
        """Replace :attr:`model` by what ``steps`` steps made of it."""
        with torch.no_grad():
            for ours, new in ((self.params, params), (self.buffers, buffers)):
                copy_all(list(ours.values()), [new[name] for name in ours])
        self.state = state
        self.steps += steps

    def to(self, device: str | torch.device) -> None:
        """Move psi, f, the memory and the method's state to a device."""
        self.device = check_device(device)
        self.psi.to(self.device)
        self.classes = self.classes.to(self.device)
        if self.memory is not None:
            self.memory.to(self.device)
        self.state = tree_map(lambda t: t.to(self.device), self.state)
        if self.f is not None:
            self.bind(self.f.to(self.device))

    # -- training -------------------------------------------------------------------------------------------------

    def expect_tasks(self, tasks: Tensor) -> ClassMask:
        """Count these declared tasks as seen, and return the mask to train them with."""
        self.classes = self.classes.after_tasks(tasks)
        return self.classes

    def begin_task(self) -> None:
        """Let the method prepare for a task. Calls before the task's end do nothing."""
        if self.in_task:
            return
        params, buffers, state = self.model
        stored = {**self.method.storage(params, self.memory), **state}
        with torch.no_grad(), seeded(self.settings.seed, "beginning of task", self.tasks_done, self.device):
            new = self.method.begin_task(params, buffers, stored, self.hyper_tensors, self.task_context())
        self.state = self._keep_storage(stored, new)
        self.in_task = True

    def train_step(
        self,
        raw: Examples,
        mask: Tensor,
        n_current: int,
        slots: MemorySlots,
        table: Tensor | None,
        *,
        check: bool = False,
    ) -> Tensor | None:
        """One step on raw examples, the first ``n_current`` of them new and the others replayed.

        Returns the loss, where the method gives one. Nothing changes if it raises. ``table`` says how the examples are
        augmented, as ``inputs.draw_augmentation`` gave it for this step. With ``check``, transformed examples and
        results of the step that are not finite are refused, which makes a GPU wait.
        """
        with seeded(self.settings.seed, "step", self.steps, self.device):
            x = self.inputs.for_training(raw.x, table)
            if check and not torch.isfinite(x).all():
                raise InputError("x has NaN or infinite values once it is transformed and of psi's dtype")
            batch = Batch(x, raw.y, raw.task, mask, n_current, *slots)
            stepped = self.method.step(*self.model, batch, self.hyper_tensors)
        params, buffers, state, loss = unpack_step(self.method, stepped)
        if check:
            refuse_not_finite("the step", self.model, (params, buffers, state), self.settings.hyper.lr)
        self.update(params, buffers, state, steps=1)
        return loss

    def end_task(self, *, check: bool = False) -> None:
        """Let the method, and the memory, finish a task. With ``check``, a state that is not finite is refused."""
        with torch.no_grad(), seeded(self.settings.seed, "end of task", self.tasks_done, self.device):
            state = self.method.end_task(*self.model, self.hyper_tensors, self.task_context())
        state = self._keep_storage(self.state, state)
        if check:
            refuse_not_finite("the end of the task", self.model, ({}, {}, state), self.settings.hyper.lr)
        self.state = state
        if self.memory is not None:
            self.memory.end_task()
        self.in_task = False
        self.tasks_done += 1

    def _keep_storage(self, before: State, after: State) -> State:
        """The state after a task began or ended, with what is stored beside the examples in the memory."""
        names = self.method.remembers(self.settings.num_classes)
        return {**{name: before[name] for name in names}, **after} if names else after

    def task_context(self) -> TaskContext:
        """What the method may look at when a task begins or ends."""
        prepare = self.inputs.for_testing
        return TaskContext(self.tasks_done, self.memory, self.classes, prepare, self.settings.seed)

    def snapshot(self) -> dict[str, Any]:
        """What a step or the end of a task may change before it fails; :meth:`restore` brings it back."""
        names = ("bound", "example", "state", "in_task", "classes")
        held = None if self.memory is None else self.memory.position()
        return {name: getattr(self, name) for name in names} | {"memory": held}

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Go back to a :meth:`snapshot`."""
        vars(self).update({name: value for name, value in snapshot.items() if name != "memory"})
        if self.memory is not None:
            self.memory.rewind(snapshot["memory"])

    # -- predicting -----------------------------------------------------------------------------------------------

    def allowed_classes(self, task: int | None) -> Tensor:
        """Which classes a prediction may choose from, for an example of this task or (None) of an unknown one."""
        return self.classes.predict(None if task is None else torch.tensor([task], device=self.device))[0]

    def scores(self, x: Tensor) -> Tensor:
        """One score per raw example and class, computed in eval mode and without gradients."""
        with torch.no_grad(), seeded(self.settings.seed, "predict", 0, self.device):
            inputs = map(self.inputs.for_testing, chunks(x))
            return torch.cat([self.method.scores(*self.model, chunk) for chunk in inputs])

    def features(self, x: Tensor) -> Tensor:
        """psi of raw examples, computed as for :meth:`scores`."""
        with torch.no_grad(), seeded(self.settings.seed, "predict", 0, self.device):
            inputs = map(self.inputs.for_testing, chunks(x))
            return torch.cat([self.method.net.frozen_features(self.params, self.buffers, chunk) for chunk in inputs])
