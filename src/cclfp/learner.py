"""The learner: takes batches as they come, predicts at any time, is saved and loaded. The benchmarks run this code."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from cclfp._version import __version__
from cclfp.checks import as_tensor, check_device, check_tasks, check_whole, device_of
from cclfp.errors import InputError
from cclfp.files import write_atomic
from cclfp.memory import Examples, Memory
from cclfp.methods import Batch, Method, get_method
from cclfp.methods.base import State
from cclfp.nets import Network, Tensors, linear, twin
from cclfp.randomness import generator, seeded
from cclfp.scenarios import ClassMask
from cclfp.transforms import Transform, describe

Task = int | Sequence[int] | Tensor

FORMAT = "cclfp learner 1"
MAX_TASKS = 10_000  # the table of each task's classes has a row for every id up to the largest
CHUNK = 2000  # examples a forward pass takes at once when predicting


class Learner:
    """A classifier f(psi(x)) that learns from a stream of batches. Made by :func:`make` or :func:`cclfp.load`.

    >>> import cclfp
    >>> learner = cclfp.make("er", psi=nn.Flatten(), num_classes=2, memory=4)
    >>> x, y = torch.tensor([[-1.0], [1.0]]), torch.tensor([0, 1])
    >>> for _ in range(20):
    ...     learner.observe(x, y)
    >>> learner.predict(torch.tensor([[-3.0], [2.0]]))
    tensor([0, 1])
    """

    def __init__(
        self,
        method: type[Method],
        psi: nn.Module,
        num_classes: int,
        *,
        memory: int,
        seed: int,
        scenario: str,
        tasks: Sequence[Sequence[int]] | None,
        transform: Transform | None,
        predict_transform: Transform | None,
        replay: int,
        device: str | torch.device | None,
        hyper: Mapping[str, float],
    ) -> None:
        check_whole("num_classes", num_classes, at_least=1)
        check_whole("seed", seed, at_least=0)
        mask = ClassMask(scenario, num_classes, check_tasks(tasks, num_classes))
        if scenario not in method.scenarios:
            raise InputError(
                f"{method.name} is defined for the scenarios {', '.join(method.scenarios)}, not {scenario}"
            )
        if method.uses_memory:
            check_whole("memory", memory, at_least=1)
            check_whole("replay", replay, at_least=1)
        if not isinstance(psi, nn.Module):
            raise InputError(f"psi must be a torch.nn.Module that maps a batch to features, not {type(psi).__name__}")
        self.hyper = method.hyper(scenario, **hyper)
        self.psi = psi
        self.f: nn.Linear | None = None  # made at the first batch, which tells how many features psi gives
        self.num_classes, self.scenario, self.seed = num_classes, scenario, seed
        self.replay = replay if method.uses_memory else 0
        self.transform = transform
        self.predict_transform = transform if predict_transform is None else predict_transform
        self.steps = 0
        self.tasks_done = 0
        self._in_task = False
        self._state: State = {}
        self._kind = method
        self._shape: torch.Size | None = None  # of one raw example
        self._classes = mask.after_all() if method.joint else mask
        self.device = check_device(device) if device is not None else device_of(psi)
        self.memory = Memory(memory, seed, self.device) if method.uses_memory else None
        self.to(self.device)

    def __repr__(self) -> str:
        hyper = ", ".join(f"{name}={value:g}" for name, value in dataclasses.asdict(self.hyper).items())
        held = f", memory {len(self.memory)}/{self.memory.size}" if self.memory is not None else ""
        return f"Learner({self.method_name}: {hyper}; {self.scenario} scenario, {self.steps} steps{held})"

    @property
    def method_name(self) -> str:
        return self._kind.name

    # -- learning -------------------------------------------------------------------------------------------------

    def observe(self, x: Any, y: Any, task: Task | None = None) -> None:
        """Learn from one batch of any size: inputs ``x``, labels ``y``, and the task (one id, or one an example).

        Without ``task`` the id is the number of tasks ended so far; the task scenario needs it said. A batch that is
        refused (``ValueError``) leaves the learner as it was.
        """
        new = self._check_batch(x, y, task)
        before = (self.f, self._shape, self._state, self._in_task)
        schedule = self.memory.schedule.state_dict() if self.memory is not None else {}
        try:
            self._ready(new.x)
            classes = self._classes.after(new.y, new.task)
            batch = new
            if self.memory is not None and len(self.memory):
                old = self.memory.read(torch.tensor(self.memory.schedule.draw(self.replay), device=self.device))
                batch = Examples(torch.cat([new.x, old.x]), torch.cat([new.y, old.y]), torch.cat([new.task, old.task]))
            self.begin_task()
            self.train_step(batch, classes.train(batch.task), len(new.y))
        except BaseException:
            self.f, self._shape, self._state, self._in_task = before
            if self.memory is not None:
                self.memory.schedule.load_state_dict(schedule)
            raise
        self._classes = classes
        if self.memory is not None:
            self.memory.write(new, self.memory.schedule.place(len(new.y)))

    def end_task(self) -> None:
        """Say that a task is over: what a method does then (CCL-FP copies psi to psi_old) it does here."""
        if not self._in_task:
            raise InputError("end_task() without an observe() since the last task ended: there is no task to end")
        with torch.no_grad():
            self._state = self._method.end_task(*self._model, self._state, self.memory, self._hyper)
        self._in_task = False
        self.tasks_done += 1

    # -- predicting -----------------------------------------------------------------------------------------------

    def predict(self, x: Any, task: Task | None = None) -> Tensor:
        """The most likely class of each example, among those the scenario allows; with ``task``, that task's."""
        return self.logits(x, task).argmax(-1)

    def logits(self, x: Any, task: Task | None = None) -> Tensor:
        """f(psi(x)): one number a class, -inf for the classes a prediction may not choose. No gradient, eval mode."""
        x = as_tensor("x", x).to(self.device)
        if x.ndim == 0:
            raise InputError("x must be a batch of examples, not a single number")
        self._check_shape(x)
        mask = self._classes.predict(None if task is None else self._check_task(task, len(x)))
        self._ready(x)
        with torch.no_grad():
            chunks = [self._predict_chunk(chunk) for chunk in x.split(CHUNK)]
        return torch.cat(chunks).masked_fill(~mask, -torch.inf)

    def _predict_chunk(self, x: Tensor) -> Tensor:
        params, buffers = self._model
        z = self._network.frozen_features(params, buffers, self._prepare(x, self.predict_transform))
        return self._network.classify(params, z)

    # -- moving, saving, loading ----------------------------------------------------------------------------------

    def to(self, device: str | torch.device) -> Learner:
        """Move psi, f, the memory and the method's state to a device."""
        self.device = check_device(device)
        self.psi.to(self.device)
        self._classes = self._classes.to(self.device)
        if self.memory is not None:
            self.memory.to(self.device)
        self._state = tree_map(lambda t: t.to(self.device), self._state)
        if self.f is not None:
            self._bind(self.f.to(self.device))
        return self

    def save(self, path: str | Path) -> None:
        """Write everything needed to go on as if never stopped, in one file, atomically.

        psi's weights are in it, its code is not: :func:`cclfp.load` takes the module again (backbones of this package
        are rebuilt by themselves), and likewise the transform.
        """
        state = {"format": FORMAT, "cclfp": __version__, **self.state_dict()}
        write_atomic(Path(path), lambda file: torch.save(state, file))

    def state_dict(self, *, copies: bool = True) -> dict[str, Any]:
        """What :meth:`save` writes; with ``copies=False`` the memory as rows of its stream, where it has one."""
        return {
            "method": self.method_name,
            "hyper": dataclasses.asdict(self.hyper),
            "num_classes": self.num_classes,
            "scenario": self.scenario,
            "seed": self.seed,
            "replay": self.replay,
            "memory_size": self.memory.size if self.memory is not None else 0,
            "backbone": getattr(self.psi, "backbone", None),
            "transform": describe(self.transform),
            "predict_transform": "same"
            if self.predict_transform is self.transform
            else describe(self.predict_transform),
            "psi": self.psi.state_dict(),
            "f": None if self.f is None else self.f.state_dict(),
            "state": self._state,
            "memory": None if self.memory is None else self.memory.state_dict(copies=copies),
            "classes": self._classes.state_dict(),
            "shape": None if self._shape is None else list(self._shape),
            "steps": self.steps,
            "tasks_done": self.tasks_done,
            "in_task": self._in_task,
        }

    def load_state_dict(self, state: dict[str, Any], pool: Examples | None = None) -> None:
        """Take over what :meth:`state_dict` gave; ``pool`` is the stream's examples where the memory is rows of it."""
        try:
            self.psi.load_state_dict(state["psi"])
        except RuntimeError as error:
            raise InputError(f"this psi is not the one that was saved: {error}") from error
        self.psi.to(self.device)
        if state["f"] is not None:
            weight = state["f"]["weight"]
            f = nn.utils.skip_init(nn.Linear, weight.shape[1], weight.shape[0], dtype=weight.dtype)
            f.load_state_dict(state["f"])
            self._bind(f.to(self.device))
        self._state = tree_map(lambda t: t.to(self.device), state["state"])
        if self.memory is not None:
            self.memory.load_state_dict(state["memory"], pool)
        self._classes.load_state_dict(state["classes"])
        self._shape = None if state["shape"] is None else torch.Size(state["shape"])
        self.steps, self.tasks_done, self._in_task = state["steps"], state["tasks_done"], state["in_task"]

    # -- what the engines share with observe ----------------------------------------------------------------------

    def expect(self, tasks: Tensor) -> ClassMask:
        """Count these (declared) tasks as seen, and give the mask to train them with."""
        self._classes = self._classes.after(torch.zeros_like(tasks), tasks)
        return self._classes

    def begin_task(self) -> None:
        """Called before the first step of a task; later calls do nothing until the task is ended."""
        if not self._in_task:
            with torch.no_grad():
                self._state = self._method.begin_task(*self._model, self._state, self.memory, self._hyper)
            self._in_task = True

    def train_step(self, raw: Examples, mask: Tensor, n_current: int) -> None:
        """One step on raw examples, the first ``n_current`` of them new. Nothing changes if it raises."""
        with seeded(self.seed, "step", self.steps, self.device):
            x = self._prepare(raw.x, self.transform)
            batch = Batch(x, raw.y, raw.task, mask, n_current)
            params, buffers, state = self._method.step(*self._model, self._state, batch, self._hyper)
        with torch.no_grad():
            for ours, new in ((self._network.params, params), (self._network.buffers, buffers)):
                if ours:
                    torch._foreach_copy_(list(ours.values()), [new[name] for name in ours])
        self._state = state
        self.steps += 1

    def prepare_for(self, x: Tensor) -> None:
        """Make f for raw examples like these, where there is none yet."""
        self._ready(x[:1])

    @property
    def _model(self) -> tuple[Tensors, Tensors]:
        return self._network.params, self._network.buffers

    def _prepare(self, x: Tensor, transform: Transform | None) -> Tensor:
        if transform is not None:
            x = transform(x)
        return x.to(self._dtype) if x.is_floating_point() else x

    @property
    def _dtype(self) -> torch.dtype:
        floating = (t.dtype for t in self.psi.parameters() if t.is_floating_point())
        return next(floating, torch.get_default_dtype())

    def _ready(self, x: Tensor) -> None:
        """Run psi on the input once before anything changes: it tells how many features f takes, and whether x fits."""
        if self.f is not None:
            return
        try:
            with torch.no_grad(), seeded(self.seed, "probe", 0, self.device):
                z = twin(self.psi).eval()(self._prepare(x, self.predict_transform))
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            raise InputError(f"psi does not take x of shape {tuple(x.shape)} and {x.dtype}: {error}") from error
        if not isinstance(z, Tensor) or z.ndim != 2 or len(z) != len(x) or not z.is_floating_point():
            got = f"a {z.dtype} tensor of shape {tuple(z.shape)}" if isinstance(z, Tensor) else type(z).__name__
            raise InputError(
                f"psi must map a batch of {len(x)} examples to floats of shape ({len(x)}, features), not {got}"
            )
        f = linear(z.shape[1], self.num_classes, generator(self.seed, "classifier"), z.dtype)
        self._bind(f.to(self.device))
        self._shape = x.shape[1:]

    def _bind(self, f: nn.Linear) -> None:
        self.f = f
        self._network = Network(self.psi, f)
        self._method = self._kind(self._network)
        numbers = {
            name: torch.tensor(value, dtype=f.weight.dtype, device=self.device)
            for name, value in dataclasses.asdict(self.hyper).items()
        }
        self._hyper = type(self.hyper)(**numbers)  # type: ignore[arg-type]  # 0-d tensors: the contract of a step

    # -- checks ---------------------------------------------------------------------------------------------------

    def _check_batch(self, x: Any, y: Any, task: Task | None) -> Examples:
        x, y = as_tensor("x", x), as_tensor("y", y)
        if x.ndim == 0 or len(x) == 0:
            raise InputError(f"x is empty (shape {tuple(x.shape)}): a batch has at least one example")
        if y.shape != (len(x),):
            raise InputError(
                f"y must hold one label for each of the {len(x)} examples, but its shape is {tuple(y.shape)}"
            )
        if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
            raise InputError(f"y must hold whole numbers (class ids), not {y.dtype}")
        y = y.long()
        low, high = int(y.min()), int(y.max())
        if low < 0 or high >= self.num_classes:
            wrong = low if low < 0 else high
            raise InputError(f"label {wrong} is out of range: this learner has classes 0 to {self.num_classes - 1}")
        self._check_shape(x)
        if x.is_floating_point() and not torch.isfinite(x).all():
            bad = int((~torch.isfinite(x.flatten(1))).any(1).nonzero()[0])
            raise InputError(f"x has NaN or infinite values (the first in example {bad} of the batch)")
        if task is None:
            if self.scenario == "task":
                raise InputError("the task scenario needs the task of each batch: observe(x, y, task=...)")
            task = self.tasks_done
            if self._classes.declared and task >= len(self._classes.classes_of):
                raise InputError(f"all {task} declared tasks are ended: say which task this batch is of, task=...")
        ids = self._check_task(task, len(x))
        x, y = x.to(self.device), y.to(self.device)
        if self._classes.declared:
            foreign = ~self._classes.classes_of[ids, y]
            if foreign.any():
                i = int(foreign.nonzero()[0])
                raise InputError(f"label {int(y[i])} is not among the classes declared for task {int(ids[i])}")
        return Examples(x, y, ids)

    def _check_task(self, task: Task, n: int) -> Tensor:
        ids = as_tensor("task", task)
        if ids.is_floating_point() or ids.dtype == torch.bool or ids.shape not in ((), (n,)):
            raise InputError(f"task must be one whole number or one for each of the {n} examples, not {task!r}")
        ids = ids.long().to(self.device).expand(n)
        if n and not 0 <= int(ids.min()) <= int(ids.max()) < MAX_TASKS:
            wrong = int(ids.min()) if int(ids.min()) < 0 else int(ids.max())
            raise InputError(f"task {wrong} is out of range: tasks are counted from 0, up to {MAX_TASKS:,}")
        known = len(self._classes.classes_of)
        if self._classes.declared and n and int(ids.max()) >= known:
            raise InputError(f"task {int(ids.max())} is not one of the {known} declared tasks (counted from 0)")
        return ids

    def _check_shape(self, x: Tensor) -> None:
        if self._shape is not None and x.shape[1:] != self._shape:
            raise InputError(
                f"examples must have the shape {tuple(self._shape)} of the first batch, not {tuple(x.shape[1:])}"
            )


def make(
    method: str | type[Method],
    *,
    psi: nn.Module,
    num_classes: int,
    memory: int = 200,
    seed: int = 0,
    scenario: str = "class",
    tasks: Sequence[Sequence[int]] | None = None,
    transform: Transform | None = None,
    predict_transform: Transform | None = None,
    replay: int = 10,
    device: str | torch.device | None = None,
    **hyper: float,
) -> Learner:
    """A learner for your own loop.

    Parameters
    ----------
    method
        A name (``cclfp list methods``) or a :class:`cclfp.Method` subclass of your own.
    psi
        Any module that maps a batch to features, one row an example. **It is trained in place**: its parameters with
        ``requires_grad``, and its BatchNorm statistics. It trains in the mode (``psi.training``) it is given in.
    num_classes
        How many classes there can ever be; the classifier f has a row for each.
    memory
        How many examples the replay memory holds, for methods that have one.
    seed
        All randomness comes from it (f's initial weights, what is remembered and replayed, random layers of psi).
    scenario
        Which classes a prediction may choose from: ``"class"``, those seen so far; ``"task"``, those of the example's
        own task; ``"domain"``, all.
    tasks
        The classes of each task. A task's classes all count as seen from its first batch on. Without it, a class
        counts once an example of it was observed.
    transform
        Applied to raw inputs, current and replayed alike, at every step: normalise and augment here. The memory holds
        raw inputs, so replayed examples are augmented afresh. Random transforms draw from the seed.
    predict_transform
        Applied instead when predicting; needed where ``transform`` augments.
    replay
        How many remembered examples join each batch.
    device
        Where to train; psi's own device by default.
    **hyper
        The method's hyperparameters (``cclfp show METHOD``), such as ``lr``.

    Examples
    --------
    >>> learner = make("ccl-fp+", psi=nn.Sequential(nn.Linear(2, 8), nn.ReLU()), num_classes=4, lr=0.05, w=0.3)
    >>> learner.observe(torch.randn(10, 2), torch.randint(0, 2, (10,)), task=0)
    >>> learner.end_task()
    >>> learner.observe(torch.randn(5, 2), torch.randint(2, 4, (5,)), task=1)
    >>> set(learner.predict(torch.randn(20, 2), task=1).tolist()) <= {2, 3}
    True
    """
    kind = get_method(method) if isinstance(method, str) else method
    return Learner(
        kind,
        psi,
        num_classes,
        memory=memory,
        seed=seed,
        scenario=scenario,
        tasks=tasks,
        transform=transform,
        predict_transform=predict_transform,
        replay=replay,
        device=device,
        hyper=hyper,
    )
