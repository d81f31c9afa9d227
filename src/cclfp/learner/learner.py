"""The learner: takes batches as they come, predicts at any time, is saved and loaded. The benchmarks run this code."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_leaves, tree_map

from cclfp._version import __version__
from cclfp.core.checks import as_tensor, check_device, check_tasks, check_whole
from cclfp.core.finite import not_finite
from cclfp.core.layouts import check_layout, check_value
from cclfp.core.memory import Examples, Memory, Replayed
from cclfp.core.randomness import generator, seeded
from cclfp.core.scenarios import ClassMask
from cclfp.core.schedules import is_shipped
from cclfp.core.tensorfiles import write_tensors
from cclfp.errors import DamagedError, DivergenceError, InputError
from cclfp.methods import METHODS, Batch, Method, TaskContext, get_method
from cclfp.methods.base import Hyperparameters, State
from cclfp.nets import describe_backbone, linear
from cclfp.nets.network import (
    Network,
    Tensors,
    check_mode,
    check_psi,
    check_psi_tensors,
    chunks,
    copy_all,
    device_of,
    load_psi_tensors,
    psi_mode,
    psi_tensors,
    twin,
)
from cclfp.transforms import Augmentation, Transform, describe

Task = int | Sequence[int] | Tensor

FORMAT = "cclfp learner 2"
MAX_TASKS = 10_000  # the table of each task's classes has a row for every id up to the largest
MAX_NUMBERS = 2**28  # in one example of a file
STATISTICS = ("running_mean", "running_var")  # as the buffers of BatchNorm are called
PROBE = 10  # examples that show how many features psi gives


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
        num_tasks: int | None,
        transform: Transform | None,
        predict_transform: Transform | None,
        augment: Augmentation | None,
        replay: int,
        device: str | torch.device | None,
        hyper: Mapping[str, float],
    ) -> None:
        num_classes = check_whole("num_classes", num_classes, at_least=1)
        seed = check_whole("seed", seed, at_least=0)
        method.check_scenario(scenario)
        declared = check_tasks(tasks, num_classes)
        mask = ClassMask(scenario, num_classes, declared)
        if num_tasks is not None:
            num_tasks = check_whole("num_tasks", num_tasks, at_least=1)
            if declared is not None and num_tasks != len(declared):
                raise InputError(f"num_tasks={num_tasks}, but tasks declares {len(declared)}")
        elif declared is not None:
            num_tasks = len(declared)
        check_psi(psi)
        for name, function in (("transform", transform), ("predict_transform", predict_transform)):
            if function is not None and not callable(function):
                raise InputError(f"{name} must be a function of a batch of raw inputs, not {function!r}")
        if augment is not None and not (callable(augment) and callable(getattr(augment, "draw", None))):
            raise InputError(f"augment must have draw(n, generator) and take (x, table), not {augment!r}")
        self.hyper = method.hyper(scenario, **hyper)
        self.psi = psi
        self._mode = psi_mode(psi)  # as it was given, whatever the user does with psi later
        self.f: nn.Linear | None = None  # made at the first batch, which tells how many features psi gives
        self.num_classes, self.num_tasks, self.scenario, self.seed = num_classes, num_tasks, scenario, seed
        self.replay = 0
        self.transform = transform
        self.predict_transform = transform if predict_transform is None else predict_transform
        self.augment = augment
        self.autocast: torch.dtype | None = None  # what psi computes in, where that is not its weights' precision
        self.steps = 0
        self.tasks_done = 0
        self._in_task = False
        self._state: State = {}
        self._kind = method
        self._like: tuple[torch.Size, torch.dtype] | None = None  # the shape and dtype of one raw example
        self._classes = mask.after_all() if method.joint else mask
        self.device = check_device(device) if device is not None else device_of(psi)
        self.memory = None
        if method.schedule is not None:
            replay = check_whole("replay", replay, at_least=1) if method.replays else 0
            self.replay = method.replay_size(self.hyper, replay)
            schedule = method.schedule(check_whole("memory", memory, at_least=1), seed, num_tasks)
            self.memory = Memory(schedule, self.device, keeps_task=method.keeps_task)
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
        refused (``ValueError``) leaves the learner as it was. So does a step whose new weights are not finite
        (``DivergenceError``, a ``ValueError``).
        """
        new = self._check_batch(x, y, task)
        before = (self.f, self._like, self._state, self._in_task, self._classes)
        held = self.memory.position() if self.memory is not None else None
        try:
            self.prepare_for(new)
            mask = self._see(new.y, new.task)
            batch, tasks, slots = new, new.task.tolist(), list[int]()
            settled: list[bool] = []
            if self.memory is not None:
                self.memory.make_room(new)
                slots = self.memory.schedule.draw(self.replay, tasks)
                settled = [self.memory.schedule.is_settled(slot) for slot in slots]
            if slots:
                assert self.memory is not None
                old = self.memory.read(slots)
                batch = Examples(*(torch.cat(pair) for pair in zip(new, old, strict=True)))
            self.begin_task()
            replayed = Replayed(
                torch.tensor(slots, dtype=torch.int64, device=self.device),
                torch.tensor(settled, dtype=torch.bool, device=self.device),
            )
            table = self.draw_augmentation(self.steps, len(batch.y))
            self.train_step(batch, mask.train(batch.task), len(new.y), replayed, table, check=True)
        except BaseException:
            self.f, self._like, self._state, self._in_task, self._classes = before
            if self.memory is not None and held is not None:
                self.memory.rewind(held)
            raise
        if self.memory is not None:
            self.memory.write(new, self.memory.schedule.place(tasks))
            self.memory.hold(new)

    def end_task(self, *, check: bool = True) -> None:
        """Say that a task is over: what a method does then (CCL-FP copies psi to psi_old) it does here.

        A method's state that becomes NaN or infinite here is refused (``DivergenceError``), and the learner is as it
        was. With ``check=False`` it is not checked.
        """
        if not self._in_task:
            raise InputError("end_task() without an observe() since the last task ended: there is no task to end")
        held = self.memory.position() if self.memory is not None else None
        try:
            if self.memory is not None and check:
                self.memory.schedule = copy.deepcopy(self.memory.schedule)  # which the method may change
            with torch.no_grad(), seeded(self.seed, "end of task", self.tasks_done, self.device):
                state = self._method.end_task(*self._model, self._state, self._hyper, self._context())
            if check:
                self._refuse_not_finite("the end of the task", {}, {}, state)
        except BaseException:
            if self.memory is not None and held is not None:
                self.memory.rewind(held)
            raise
        self._state = state
        if self.memory is not None:
            self.memory.end_task()
        self._in_task = False
        self.tasks_done += 1

    # -- predicting -----------------------------------------------------------------------------------------------

    def predict(self, x: Any, task: Task | None = None) -> Tensor:
        """The most likely class of each example, among those the scenario allows; with ``task``, that task's."""
        return self.logits(x, task).argmax(-1)

    def logits(self, x: Any, task: Task | None = None) -> Tensor:
        """f(psi(x)): one number a class, -inf for the classes a prediction may not choose. No gradient, eval mode."""
        x = self._check_finite(self._check_like(as_tensor("x", x))).to(self.device)
        mask = self.allowed(task, len(x))
        untrained = self.f is None
        self._make_f(x[:PROBE])
        try:
            with torch.no_grad(), seeded(self.seed, "predict", 0, self.device):
                inputs = map(self.prepare_testing, chunks(x))
                scores = torch.cat([self._method.scores(*self._model, self._state, chunk) for chunk in inputs])
        finally:
            if untrained:  # only observing changes a learner
                self.f = None
        return scores.masked_fill(~mask, -torch.inf)

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

        Where it cannot be written (OSError) an older file of that name stays as it was.

        psi's weights are in it, its code is not: :func:`cclfp.load` takes the module again (backbones of this package
        are rebuilt by themselves), and likewise the transform.
        """
        write_tensors(Path(path), {"format": FORMAT, "cclfp": __version__, **self.state_dict()})

    def state_dict(self, *, copies: bool = True) -> dict[str, Any]:
        """What :meth:`save` writes; with ``copies=False`` the memory as rows of its stream, where it has one."""
        same = self.predict_transform is self.transform
        return {
            "method": self.method_name,
            "hyper": dataclasses.asdict(self.hyper),
            "num_classes": self.num_classes,
            "num_tasks": self.num_tasks,
            "scenario": self.scenario,
            "seed": self.seed,
            "replay": self.replay,
            "memory_size": self.memory.size if self.memory is not None else 0,
            "backbone": describe_backbone(self.psi),
            "transform": describe(self.transform),
            "predict_transform": "same" if same else describe(self.predict_transform),
            "augment": describe(self.augment),
            "psi": psi_tensors(self.psi),
            "psi_mode": self._mode,
            "f": None if self.f is None else self.f.state_dict(),
            "state": self._state,
            "memory": None if self.memory is None else self.memory.state_dict(copies=copies),
            "classes": self._classes.state_dict(),
            "like": None if self._like is None else [list(self._like[0]), self._like[1]],
            "steps": self.steps,
            "tasks_done": self.tasks_done,
            "in_task": self._in_task,
        }

    def load_state_dict(self, state: dict[str, Any], pool: Examples | None = None) -> None:
        """Take over what :meth:`state_dict` gave; ``pool`` is the stream's examples where the memory is rows of it.

        All is checked, so that what is taken over can be trained. Where it is refused (DamagedError; InputError where
        psi is another) psi is as it was, and the learner is of no use.
        """
        for name in ("psi", "psi_mode", "state", "classes"):
            check_value(name, state[name], dict)
        check_psi_tensors(self.psi, state["psi"])
        self._mode = check_mode(self.psi, state["psi_mode"])
        self._load_progress(state)
        self._load_memory(state, pool)
        self._load_method(state, pool)
        load_psi_tensors(self.psi, state["psi"])

    def _load_progress(self, state: dict[str, Any]) -> None:
        """Take over how far the learner is, and which classes and inputs it has seen."""
        for name, kind in (("steps", int), ("tasks_done", int), ("in_task", bool)):
            check_value(name, state[name], kind, 0, 2**53)
        self.steps, self.tasks_done, self._in_task = state["steps"], state["tasks_done"], state["in_task"]
        if self.tasks_done + self._in_task > self.steps:
            raise DamagedError(f"{self.steps} steps are too few for {self.tasks_done} tasks")
        self._classes.load_state_dict(state["classes"])
        if self._classes.declared and len(self._classes.classes_of) != self.num_tasks:
            raise DamagedError(f"{len(self._classes.classes_of)} tasks are declared, expected {self.num_tasks}")
        self._like = None
        if state["like"] is not None:
            shape, dtype = state["like"]
            check_value("the dtype of like", dtype, torch.dtype)
            for length in shape:
                check_value("the shape of like", length, int, 0)
            check_value("the size of like", math.prod(shape), int, 0, MAX_NUMBERS)
            self._like = torch.Size(shape), dtype
        if (state["f"] is None) != (self._like is None) or (self.steps and self._like is None):
            raise DamagedError(f"f or like is missing after {self.steps} steps")

    def _load_memory(self, state: dict[str, Any], pool: Examples | None) -> None:
        """Take over the memory, whose examples must be of classes that were seen."""
        if (self.memory is None) != (state["memory"] is None):
            raise DamagedError(f"memory is there or missing, unlike that of {self.method_name}")
        if self.memory is None:
            return
        check_value("memory", state["memory"], dict)
        self.memory.load_state_dict(state["memory"], pool)
        schedule, current = self.memory.schedule, self.memory.current()
        if is_shipped(schedule) and self._in_task != (schedule.settled < schedule.seen):
            raise DamagedError(f"{schedule.seen - schedule.settled} examples passed, but in_task is {self._in_task}")
        if self.memory.keeps_task and self._in_task != bool(len(current.y)):
            raise DamagedError(f"memory.current has {len(current.y)} examples, but in_task is {self._in_task}")
        classes_of = self._classes.classes_of
        for held in (self.memory.examples(), current):
            if not len(held.y):
                continue
            if (held.x.shape[1:], held.x.dtype) != self._like:
                raise DamagedError(
                    f"memory has examples of {held.x.dtype} {tuple(held.x.shape[1:])}, unlike {self._like}"
                )
            if int(held.y.max()) >= self.num_classes or int(held.task.max()) >= len(classes_of):
                raise DamagedError("memory has labels or tasks out of range")
            if not classes_of[held.task, held.y].all():
                raise DamagedError("memory has labels that are not of their tasks")

    def _load_method(self, state: dict[str, Any], pool: Examples | None) -> None:
        """Take over f and the method's state, which must fit psi's features and what the method does."""
        self._state = tree_map(lambda t: t.detach().to(self.device), state["state"])
        if self._like is None:
            if self._state:
                raise DamagedError("state is not empty before the first step")
            self.f = None
            return
        x = self._examples_like(pool)
        table = self.draw_augmentation(0, len(x))
        self._features(x, lambda: self.prepare_training(x, table))
        z = self._features(x, lambda: self.prepare_testing(x))
        f = nn.utils.skip_init(nn.Linear, z.shape[1], self.num_classes, dtype=z.dtype)
        check_layout("f", state["f"], dict(f.named_parameters()))
        f.load_state_dict(state["f"])
        self._bind(f.to(self.device))
        with torch.no_grad(), seeded(self.seed, "probe", 0, self.device):
            layout = self._method.layout(*self._model, self._context(), self._in_task)
        if layout is not None:
            check_layout("state", self._state, layout)

    def check_finite(self) -> None:
        """Refuse a learner whose weights, features, memory or state (of a method that ships) are not finite."""
        if self._like is None:
            return
        (params, buffers), x = self._model, self._examples_like(None)
        state = dict(self._state) if self._kind in METHODS.values() else {}  # what others keep is not known
        # A psi may well have buffers that are not finite, such as masks; its features and statistics are.
        networks = [buffers, state.pop("buffers_old", buffers)]
        parts: dict[str, Any] = {"weights": params, "values in its state": state}
        parts["statistics"] = [b for own in networks for name, b in own.items() if name.endswith(STATISTICS)]
        with torch.no_grad(), seeded(self.seed, "probe", 0, self.device):
            prepared = self.prepare_testing(x)
            if prepared.isfinite().all():
                parts["features"] = [self._network.frozen_features(params, own, prepared) for own in networks]
        if self.memory is not None:
            parts["examples in memory"] = [self.memory.examples().x, self.memory.current().x]
        for name, part in parts.items():
            if not all(bool(tensor.isfinite().all()) for tensor in tree_leaves(part)):
                raise InputError(
                    f"this learner has {name} that are not finite: its training diverged, or it was changed"
                )

    def _examples_like(self, pool: Examples | None) -> Tensor:
        """A few examples like those observed: real ones where there are any, else made up."""
        assert self._like is not None
        shape, dtype = self._like
        if pool is not None:
            x = pool.x[:PROBE]
        elif self.memory is not None and len(self.memory):
            x = self.memory.examples().x[:PROBE]
        else:
            g = generator(self.seed, "probe")
            made_up = torch.rand(2, *shape, generator=g) if dtype.is_floating_point else torch.ones(2, *shape)
            x = made_up.to(self.device, dtype)
        if (x.shape[1:], x.dtype) != self._like:
            raise DamagedError(f"like is {dtype} {tuple(shape)}, expected {x.dtype} {tuple(x.shape[1:])}")
        return x

    # -- what the engines share with observe ----------------------------------------------------------------------

    def expect(self, tasks: Tensor) -> ClassMask:
        """Count these (declared) tasks as seen, and give the mask to train them with."""
        self._classes = self._classes.after_tasks(tasks)
        return self._classes

    def begin_task(self) -> None:
        """Called before the first step of a task; later calls do nothing until the task is ended."""
        if not self._in_task:
            with torch.no_grad(), seeded(self.seed, "beginning of task", self.tasks_done, self.device):
                self._state = self._method.begin_task(*self._model, self._state, self._hyper, self._context())
            self._in_task = True

    def draw_augmentation(self, step: int, n: int, reuse: torch.Generator | None = None) -> Tensor | None:
        """How the n examples of a step are augmented; the same whether drawn ahead or when the step comes.

        ``reuse`` is a generator to draw with, where many steps are drawn: it is seeded for each.
        """
        if self.augment is None:
            return None
        table = self.augment.draw(n, generator(self.seed, "augmentation", step, reuse=reuse))
        if not isinstance(table, Tensor) or len(table) != n:
            raise InputError(f"augment.draw must give a tensor with a row for each of the {n} examples")
        return table

    def train_step(
        self,
        raw: Examples,
        mask: Tensor,
        n_current: int,
        replayed: Replayed,
        table: Tensor | None,
        *,
        check: bool = False,
    ) -> None:
        """One step on raw examples, the first ``n_current`` of them new, the others ``replayed``.

        Nothing changes if it raises.

        ``table`` says how they are augmented, as :meth:`draw_augmentation` gave it for this step. ``check`` looks
        whether the transformed examples, and what the step makes, are finite, which costs waits for the device.
        """
        with seeded(self.seed, "step", self.steps, self.device):
            x = self.prepare_training(raw.x, table)
            if check and not torch.isfinite(x).all():
                raise InputError("x has NaN or infinite values once it is transformed and of psi's dtype")
            batch = Batch(x, raw.y, raw.task, mask, n_current, *replayed)
            stepped = self._method.step(*self.model, batch, self._hyper)
        if check:
            self._refuse_not_finite("the step", *stepped)
        self.take(*stepped, steps=1)

    def prepare_training(self, x: Tensor, table: Tensor | None) -> Tensor:
        """From raw examples to what psi takes in training, augmented as ``table`` says."""
        return self._prepare(x if self.augment is None else self._augmented(self.augment, x, table), self.transform)

    def prepare_testing(self, x: Tensor) -> Tensor:
        """From raw examples to what psi takes when predicting."""
        return self._prepare(x, self.predict_transform)

    def allowed(self, task: Task | None, n: int = 1) -> Tensor:
        """Which classes predictions for n examples may choose from: n rows, or one for all alike."""
        return self._classes.predict(None if task is None else self._check_task(task, n))

    @property
    def method(self) -> Method:
        """The method on this learner's network, once there is a classifier."""
        return self._method

    @property
    def model(self) -> tuple[Tensors, Tensors, State]:
        """What a step takes and gives: parameters, buffers, the method's state."""
        return *self._model, self._state

    @property
    def hyper_tensors(self) -> Hyperparameters:
        """The hyperparameters as a step sees them: 0-d tensors."""
        return self._hyper

    def take(self, params: Tensors, buffers: Tensors, state: State, steps: int) -> None:
        """Go on from what ``steps`` steps made of :attr:`model`."""
        with torch.no_grad():
            for ours, new in ((self._network.params, params), (self._network.buffers, buffers)):
                copy_all(list(ours.values()), [new[name] for name in ours])
        self._state = state
        self.steps += steps

    def prepare_for(self, raw: Examples) -> None:
        """Make f for raw examples like these, where there is none yet."""
        self._make_f(raw.x[:PROBE])
        self._like = (raw.x.shape[1:], raw.x.dtype)

    def _see(self, y: Tensor, task: Tensor) -> ClassMask:
        self._classes = self._classes.after(y, task)
        return self._classes

    def _refuse_not_finite(self, what: str, params: Tensors, buffers: Tensors, state: State) -> None:
        """Raise DivergenceError where parameters are NaN or infinite, or buffers or state have become so.

        Buffers of a user's psi and the state of a user's method may hold such numbers on purpose: a mask of -inf.
        """
        new = [*params.values(), *buffers.values()]
        if state is not self._state:
            known = set(map(id, tree_leaves(self._state)))
            new += [t for t in tree_leaves(state) if id(t) not in known]
        if not not_finite(new):
            return
        before, after = _named(*self.model), _named(params, buffers, state)
        names = list(after)
        for name in (names[i] for i in not_finite(list(after.values()))):
            if name in params and not_finite([before[name]]):
                raise DivergenceError(f"the weights of this learner were not finite before ({name}): it has diverged")
            if name in params or not _is_on_purpose(after[name], before.get(name), self._network.buffers):
                kind = "weights that are" if name in params else "a state that is"
                text = f"{what} made {kind} not finite (lr={self.hyper.lr:g}), in {name}: the learner is as it was"
                raise DivergenceError(f"{text}; use a smaller lr or check the inputs")

    def _context(self) -> TaskContext:
        return TaskContext(self.tasks_done, self.memory, self._classes, self.prepare_testing, self.seed)

    @property
    def _model(self) -> tuple[Tensors, Tensors]:
        return self._network.params, self._network.buffers

    def _augmented(self, augment: Augmentation, x: Tensor, table: Tensor | None) -> Tensor:
        assert table is not None, "an augmentation needs its table"
        changed = augment(x, table.to(self.device))
        if not isinstance(changed, Tensor) or len(changed) != len(x):
            got = f"shape {tuple(changed.shape)}" if isinstance(changed, Tensor) else type(changed).__name__
            raise InputError(f"augment must give a tensor of as many examples as it takes ({len(x)}), not {got}")
        return changed

    def _prepare(self, x: Tensor, transform: Transform | None) -> Tensor:
        n = len(x)
        if transform is not None:
            x = transform(x)
            if not isinstance(x, Tensor) or x.ndim == 0 or len(x) != n:
                got = f"a tensor of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
                raise InputError(f"transform must give a tensor of as many examples as it takes ({n}), not {got}")
        return x.to(self._dtype) if x.is_floating_point() else x

    @property
    def _dtype(self) -> torch.dtype:
        floating = (t.dtype for t in self.psi.parameters() if t.is_floating_point())
        return next(floating, torch.get_default_dtype())

    def _make_f(self, x: Tensor) -> None:
        """Run psi once before anything changes: it tells how many features f takes, and whether x fits."""
        if self.f is None:
            z = self._features(x, lambda: self.prepare_testing(x))
            f = linear(z.shape[1], self.num_classes, generator(self.seed, "classifier"), z.dtype)
            self._bind(f.to(self.device))

    def _features(self, x: Tensor, prepare: Callable[[], Tensor]) -> Tensor:
        """psi of raw examples, once they are prepared; InputError where psi does not take them or gives no features."""
        with torch.no_grad(), seeded(self.seed, "probe", 0, self.device):
            prepared = prepare()
        try:
            with torch.no_grad():
                z = twin(self.psi).eval()(prepared)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            raise InputError(f"psi does not take x of shape {tuple(x.shape)} and {x.dtype}: {error}") from error
        dtypes = (torch.float32, torch.float64)
        if not isinstance(z, Tensor) or z.ndim != 2 or len(z) != len(x) or z.dtype not in dtypes:
            got = f"a {z.dtype} tensor of shape {tuple(z.shape)}" if isinstance(z, Tensor) else type(z).__name__
            raise InputError(
                f"psi must map {len(x)} examples to float32 or float64 of shape ({len(x)}, features), not {got}"
            )
        return z

    def _bind(self, f: nn.Linear) -> None:
        self.f = f
        self._network = Network(self.psi, f, self._mode, self.autocast)
        self._method = self._kind(self._network)
        numbers = {
            name: torch.tensor(value, dtype=f.weight.dtype, device=self.device)
            for name, value in dataclasses.asdict(self.hyper).items()
        }
        self._hyper = type(self.hyper)(**numbers)  # type: ignore[arg-type]  # 0-d tensors: the contract of a step

    # -- checks ---------------------------------------------------------------------------------------------------

    def _check_batch(self, x: Any, y: Any, task: Task | None) -> Examples:
        x, y = self._check_like(as_tensor("x", x)), as_tensor("y", y)
        if len(x) == 0:
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
        self._check_finite(x)
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

    def _check_finite(self, x: Tensor) -> Tensor:
        if x.is_floating_point() and not torch.isfinite(x).all():
            bad = int((~torch.isfinite(x.flatten(1) if x.ndim > 1 else x[:, None])).any(1).nonzero()[0])
            raise InputError(f"x has NaN or infinite values (the first in example {bad} of the batch)")
        return x

    def _check_task(self, task: Task, n: int) -> Tensor:
        ids = as_tensor("task", task)
        if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool or ids.shape not in ((), (n,)):
            raise InputError(f"task must be one whole number or one for each of the {n} examples, not {task!r}")
        ids = ids.long().to(self.device).expand(n)
        if n and not 0 <= int(ids.min()) <= int(ids.max()) < MAX_TASKS:
            wrong = int(ids.min()) if int(ids.min()) < 0 else int(ids.max())
            raise InputError(f"task {wrong} is out of range: tasks are counted from 0 to {MAX_TASKS - 1:,}")
        known = len(self._classes.classes_of)
        if self._classes.declared and n and int(ids.max()) >= known:
            raise InputError(f"task {int(ids.max())} is not one of the {known} declared tasks (counted from 0)")
        return ids

    def _check_like(self, x: Tensor) -> Tensor:
        """Examples must be like the first ones observed; floats of another precision become so."""
        if x.ndim == 0:
            raise InputError("x must be a batch of examples, not a single number")
        if self._like is None:
            return x
        shape, dtype = self._like
        if x.shape[1:] != shape:
            raise InputError(
                f"examples must have the shape {tuple(shape)} of the first batch, not {tuple(x.shape[1:])}"
            )
        if x.dtype != dtype and not (x.is_floating_point() and dtype.is_floating_point):
            raise InputError(f"examples must be {dtype} like the first batch, not {x.dtype}")
        return x.to(dtype)


def _named(params: Tensors, buffers: Tensors, state: State) -> Tensors:
    """All that a step changes, by names for messages."""
    of_psi = {f"buffer {name}": b for name, b in buffers.items()}
    return params | of_psi | {f"state{keystr(path)}": t for path, t in tree_flatten_with_path(state)[0]}


def _is_on_purpose(new: Tensor, old: Tensor | None, buffers: Tensors) -> bool:
    """Whether a tensor is not finite only where it was so before, or is a copy of a buffer of psi."""
    if old is None:
        return any(torch.equal(new, buffer) for buffer in buffers.values())
    return old.shape == new.shape and not (old.isfinite() & ~new.isfinite()).any()


def make(
    method: str | type[Method],
    *,
    psi: nn.Module,
    num_classes: int,
    memory: int = 200,
    seed: int = 0,
    scenario: str = "class",
    tasks: Sequence[Sequence[int]] | None = None,
    num_tasks: int | None = None,
    transform: Transform | None = None,
    predict_transform: Transform | None = None,
    augment: Augmentation | None = None,
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
        ``requires_grad``, and its BatchNorm statistics. Which parameters and which mode (``psi.training``) is looked
        at now; freezing layers or calling ``psi.eval()`` later changes nothing.
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
    num_tasks
        How many tasks there will be, for methods that split their memory evenly over them; as many as ``tasks`` has by
        default. Where neither is given, the shares of past tasks shrink as tasks come.
    transform
        Applied to raw inputs, in training and when predicting: normalise here. Where it is random it draws from the
        seed.
    predict_transform
        Applied instead when predicting, where that must be another.
    augment
        A random change of raw inputs, made at every training step to current and replayed examples alike and never
        when predicting, such as ``cclfp.transforms.CropFlip(4)``. The memory holds raw inputs, so a replayed example
        is augmented afresh each time.
    replay
        How many remembered examples join each batch; for A-GEM the hyperparameter ``reference`` says it.
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
    return Learner(
        get_method(method),
        psi,
        num_classes,
        memory=memory,
        seed=seed,
        scenario=scenario,
        tasks=tasks,
        num_tasks=num_tasks,
        transform=transform,
        predict_transform=predict_transform,
        augment=augment,
        replay=replay,
        device=device,
        hyper=hyper,
    )
