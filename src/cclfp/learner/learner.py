"""The learner: takes batches as they come, predicts at any time, is saved and loaded. Engines train it too."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cclfp.core import trees
from cclfp.core.arguments import check_device, check_names, check_tasks, check_whole
from cclfp.core.memory import Examples, Memory
from cclfp.core.randomness import generator, seeded
from cclfp.core.scenarios import ClassMask
from cclfp.errors import InputError
from cclfp.learner import checks
from cclfp.learner.checks import Model, Task
from cclfp.learner.classifier import Classifier
from cclfp.methods import Batch, Method, TaskContext, get_method
from cclfp.methods.base import Hyperparameters, State, unpack
from cclfp.nets import linear
from cclfp.nets.network import Network, chunks, copy_all, psi_mode
from cclfp.transforms import Augmentation, Transform


class Learner:
    """A classifier that learns from a stream of batches, in your own loop. ``cclfp.make`` is this class.

    Parameters
    ----------
    method
        A name (``cclfp list methods``) or your own subclass of :class:`cclfp.Method`.
    psi
        Any module that maps a batch to features, one row per example. **It is trained in place**: its parameters with
        ``requires_grad``, and its BatchNorm statistics. Freezing layers or ``psi.eval()`` later changes nothing.
    num_classes
        How many classes there can be; the classifier f has one row per class.
    classes
        The names of the classes, which are saved with the learner. Where they are fewer than ``num_classes``, the rows
        after them are free for classes that come later (:meth:`add_task`).
    memory
        How many examples the replay memory holds, for methods that have one.
    seed
        All randomness comes from it (f's initial weights, what is remembered and replayed, random layers of psi).
    scenario
        Which classes a prediction may choose from: ``"class"``, those seen so far; ``"task"``, those of the example's
        own task; ``"domain"``, all.
    tasks
        The classes of each task. All classes of a task count as seen from its first batch on. Without it, a class
        counts as seen once an example of it was observed.
    num_tasks
        How many tasks there will be, for methods that split their memory evenly over them; by default the length of
        ``tasks``. Where neither is given, the shares of past tasks shrink with every new task.
    transform
        Applied to raw inputs, in training and when predicting: normalise here. A random transform draws from the seed.
    predict_transform
        Applied when predicting, instead of ``transform``.
    augment
        A random change of raw inputs, such as ``cclfp.transforms.CropFlip(4)``: another one at every training step, of
        new and replayed examples alike, and none when predicting.
    replay
        How many remembered examples are added to each batch; A-GEM has the hyperparameter ``reference`` instead.
    device
        Where to train; by default psi's own device.
    **hyper
        The method's hyperparameters (``cclfp show METHOD``), such as ``lr``.

    ``learner.method`` is the method's class and ``learner.hyper`` its hyperparameters. ``f`` is None before the first
    batch, which shows how many features psi gives, and ``memory`` for a method without one. ``steps`` and
    ``tasks_done`` count what was learned.

    >>> learner = Learner("ccl-fp+", psi=nn.Sequential(nn.Linear(2, 8), nn.ReLU()), num_classes=4, lr=0.05, w=0.3)
    >>> loss = learner.observe(torch.randn(10, 2), torch.randint(0, 2, (10,)), task=0)
    >>> learner.end_task()
    >>> loss = learner.observe(torch.randn(5, 2), torch.randint(2, 4, (5,)), task=1)
    >>> set(learner.predict(torch.randn(20, 2), task=1).tolist()) <= {2, 3}
    True
    """

    algorithm: Method  # on the network of psi and f, as soon as there is f
    hyper_tensors: Hyperparameters  # as a step takes them: 0-d tensors

    def __init__(
        self,
        method: str | type[Method],
        *,
        psi: nn.Module,
        num_classes: int,
        classes: Sequence[str] | None = None,
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
    ) -> None:
        self.method = method = get_method(method)
        self.num_classes = check_whole("num_classes", num_classes, at_least=1)
        self.seed = check_whole("seed", seed, at_least=0)
        method.check_scenario(scenario)
        declared, self.num_tasks = check_tasks(tasks, num_tasks, self.num_classes)
        checks.check_own_code(psi, {"transform": transform, "predict_transform": predict_transform}, augment)
        self.scenario, self.hyper = scenario, method.hyper(scenario, **hyper)
        self.transform, self.augment = transform, augment
        self.predict_transform = transform if predict_transform is None else predict_transform
        self.psi = psi
        self.psi_mode = psi_mode(psi)  # as it was given, whatever the user does with psi later
        self.autocast: torch.dtype | None = None  # what psi computes in, where that is not its weights' dtype
        self.f: nn.Linear | None = None
        self.example: tuple[torch.Size, torch.dtype] | None = None  # shape and dtype of one raw example
        self.classes = None if classes is None else check_names(classes, self.num_classes)
        self.mask = ClassMask.of(scenario, self.num_classes, declared)  # which classes have been seen
        if method.joint and declared is not None:  # it trains on all tasks at once
            self.mask = self.mask.after_tasks(torch.arange(len(declared)))
        self.state: State = {}
        self.steps, self.tasks_done, self.in_task = 0, 0, False
        self.device = check_device(next((p.device for p in psi.parameters()), "cpu") if device is None else device)
        least = 0 if method.schedule is None else 1
        memory = check_whole("memory", memory, at_least=least)
        replay = check_whole("replay", replay, at_least=least if method.replays else 0)
        self.replay = method.replay_size(self.hyper, replay)
        self.memory: Memory | None = None
        if method.schedule is not None:
            schedule = method.schedule(memory, self.seed, self.num_tasks)
            self.memory = Memory(schedule, self.device, keeps_task=method.keeps_task)
        self.to(self.device)

    # -- learning -----------------------------------------------------------------------------------------------------

    def observe(self, x: Any, y: Any, task: Task | None = None) -> float | None:
        """Learn from one batch of any size, and return the loss of the step (None where the method gives none).

        ``x`` are the inputs, ``y`` the labels and ``task`` is the task of the batch, or one task per example. Without
        ``task`` it is the number of tasks that have ended; the task scenario requires it. The loss is the method's own,
        before the step: for most methods on the batch and the examples that are replayed with it.

        A batch that is refused (``ValueError``) leaves the learner as it was. So does a step whose new weights are not
        finite (``DivergenceError``, a ``ValueError``).
        """
        new = checks.check_batch(self, x, y, task)
        with self._undone_on_error():
            self.make_classifier(new.x)
            self.mask = self.mask.after(new.y, new.task)
            self.begin_task()
            raw = self._with_replayed(new)
            after, loss = self.step(raw, self.draw_augmentation(self.steps, len(raw.y)))
            checks.check_step(self, after)
            if self.memory is not None:  # before the weights move: it may fail
                self.memory.write(new, raw.placed.tolist())
            self.update(after, steps=1)
        return None if loss is None else float(loss)

    def _with_replayed(self, new: Examples) -> Batch:
        """The raw new examples, followed by those to replay with them."""
        raw, replayed, is_past, placed = new, list[int](), list[bool](), [-1] * len(new.y)
        if self.memory is not None:
            schedule, tasks = self.memory.schedule, new.task.tolist()
            self.memory.make_room(new)
            replayed = [slot for _ in range(self.method.draws) for slot in schedule.draw(self.replay, tasks)]
            is_past = [schedule.is_from_past_task(slot) for slot in replayed]
            placed = schedule.place(tasks)
            if replayed:
                raw = Examples(*map(torch.cat, zip(new, self.memory.read(replayed), strict=True)))
        kinds = ((replayed, torch.int64), (is_past, torch.bool), (placed, torch.int64))
        slots = [torch.tensor(values, dtype=dtype, device=self.device) for values, dtype in kinds]
        return Batch(*raw, self.mask.train(raw.task), len(new.y), *slots)

    def begin_task(self) -> None:
        """Let the method prepare for a task. Calls before the task's end do nothing."""
        if self.in_task:
            return
        stored = self.algorithm.storage(self.model[0], self.memory)
        self.state = self._state_after("beginning of task", "begin_task", {**stored, **self.state})
        self.in_task = True

    def step(self, raw: Batch, table: Tensor | None) -> tuple[Model, Tensor | None]:
        """What one step on a raw batch makes of :attr:`model`, and the loss, where the method gives one.

        The learner stays as it is. ``table`` is from :meth:`draw_augmentation`.
        """
        with seeded(self.seed, "step", self.steps, self.device):
            batch = dataclasses.replace(raw, x=self.for_training(raw.x, table))
            stepped = self.algorithm.step(*self.model, batch, self.hyper_tensors)
        params, buffers, state, more = unpack(f"a step of {self.method.name}", stepped, "params", "buffers", "state")
        return (params, buffers, state), more.get("loss")

    def update(self, after: Model, steps: int) -> None:
        """Replace :attr:`model` by what ``steps`` steps made of it."""
        pairs = zip(self.model[:2], after[:2], strict=True)
        moves = [(ours[name], new[name]) for ours, new in pairs for name in ours]
        self.state = self._copied(after[2])  # before the tensors of the model change
        with torch.no_grad():
            copy_all([ours for ours, _ in moves], [new for _, new in moves])
        self.steps += steps

    def end_task(self, *, check: bool = True) -> None:
        """Tell the learner that a task is over. The method then does its work (CCL-FP copies psi to psi_old).

        A state of the method that becomes NaN or infinite is refused, as in :meth:`observe`; engines do not ``check``.
        """
        if not self.in_task:
            raise InputError("end_task() without an observe() since the last task ended: there is no task to end")
        with self._undone_on_error():
            new = self._state_after("end of task", "end_task", self.state)
            if check:
                checks.refuse_not_finite("the end of the task", self, ({}, {}, new))
            self.state = new
            if self.memory is not None:
                self.memory.end_task()
            self.in_task, self.tasks_done = False, self.tasks_done + 1

    def _state_after(self, what: str, function: str, state: State) -> State:
        """What a function of the method, for a task's beginning or end, makes of its state.

        What is stored beside the examples in the memory stays, unless the function returns it, too.
        """
        memory: Any = self.memory  # which a method without a schedule does not use
        context = TaskContext(self.tasks_done, memory, self.mask, self.for_testing, self.seed)
        with torch.no_grad(), seeded(self.seed, what, self.tasks_done, self.device):
            new = getattr(self.algorithm, function)(*self.model[:2], state, self.hyper_tensors, context)
        if not isinstance(new, dict):
            got = "None" if new is None else type(new).__name__
            raise InputError(f"{function} of {self.method.name} returned {got}, expected a dict")
        return self._copied({**{name: state[name] for name in self.algorithm.remembers(self.num_classes)}, **new})

    def _copied(self, state: State) -> State:
        """The state with copies of its new tensors: they may share memory with the model, which changes in place."""
        kept = {id(leaf) for leaf in trees.leaves(self.state)}

        def copied(leaf: Any) -> Any:
            if id(leaf) in kept or not isinstance(leaf, Tensor):
                kept.discard(id(leaf))  # a second time it is copied
                return leaf
            return leaf.detach().clone()

        return trees.map_tree(copied, state)  # type: ignore[no-any-return]

    @contextlib.contextmanager
    def _undone_on_error(self) -> Iterator[None]:
        """Undo what a step, or the end of a task, has changed where it fails."""
        names = ("f", "example", "state", "in_task", "tasks_done", "mask", "memory")
        before = {name: getattr(self, name) for name in names}
        if self.memory is not None:
            self.memory = self.memory.copy()
        try:
            yield
        except BaseException:
            vars(self).update(before)
            raise

    # -- the model ----------------------------------------------------------------------------------------------------

    @property
    def model(self) -> Model:
        """What a step takes and gives: the trained parameters of psi and f, psi's buffers, the method's state."""
        return self.algorithm.net.params, self.algorithm.net.buffers, self.state

    def make_classifier(self, x: Tensor) -> None:
        """Make f for raw inputs like these, where there is none yet. InputError where psi does not take them."""
        if self.f is None:
            z = checks.check_features(self, x)
            f = linear(z.shape[1], self.num_classes, generator(self.seed, "classifier"), z.dtype)
            self.bind(f.to(self.device))
        self.example = (x.shape[1:], x.dtype)

    def bind(self, f: nn.Linear) -> None:
        """Use ``f`` as the classifier."""
        self.f = f
        self.algorithm = self.method(Network(self.psi, f, self.psi_mode, self.autocast))
        numbers = {name: f.weight.new_tensor(value) for name, value in vars(self.hyper).items()}
        self.hyper_tensors = type(self.hyper)(**numbers)  # type: ignore[arg-type]  # the contract of a step

    def to(self, device: str | torch.device) -> Learner:
        """Move psi, f, the memory and the method's state to a device."""
        self.device = check_device(device)
        self.psi.to(self.device)
        self.mask = self.mask.to(self.device)
        if self.memory is not None:
            self.memory.to(self.device)
        self.state = trees.map_tree(lambda t: t.to(self.device), self.state)
        if self.f is not None:
            self.bind(self.f.to(self.device))
        return self

    def draw_augmentation(self, step: int, n: int) -> Tensor | None:
        """The table that says how the n examples of a step are augmented. It depends on the seed and the step only."""
        if self.augment is None:
            return None
        table = self.augment.draw(n, generator(self.seed, "augmentation", step))
        if not isinstance(table, Tensor) or len(table) != n:
            raise InputError(f"augment.draw must give a tensor with a row for each of the {n} examples")
        return table

    def for_training(self, x: Tensor, table: Tensor | None) -> Tensor:
        """What psi takes in training: the examples augmented as ``table`` says, then transformed."""
        return checks.prepare(x, self.psi, self.transform, self.augment, table)

    def for_testing(self, x: Tensor) -> Tensor:
        """What psi takes when predicting."""
        return checks.prepare(x, self.psi, self.predict_transform)

    # -- predicting ---------------------------------------------------------------------------------------------------

    def predict(self, x: Any, task: Task | None = None) -> Tensor:
        """The most likely class of each example, among those that the scenario allows; with ``task``, that task's."""
        return self.logits(x, task).argmax(-1)

    def predict_proba(self, x: Any, task: Task | None = None) -> Tensor:
        """The softmax of :meth:`logits`: one probability per example and class, 0 for those that may not be chosen."""
        return self.logits(x, task).softmax(-1)

    def logits(self, x: Any, task: Task | None = None) -> Tensor:
        """One score per example and class, f(psi(x)) in eval mode; -inf for those that a prediction may not choose.

        iCaRL's are negative distances: it classifies by the nearest mean of features.
        """
        x = checks.check_inputs(self, x)
        allowed = self.mask.predict(None if task is None else checks.check_task(self, task, len(x)))
        scores = self._in_parts(x, lambda part: self.algorithm.scores(*self.model, part))
        return scores.masked_fill(~allowed, -torch.inf)

    def features(self, x: Any) -> Tensor:
        """psi(x) as :meth:`predict` computes it: transformed inputs, in eval mode, without gradients."""
        x = checks.check_inputs(self, x)
        return self._in_parts(x, lambda part: self.algorithm.net.frozen_features(*self.model[:2], part))

    def _in_parts(self, x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        """The function of raw examples, prepared for testing, some at a time."""
        self._check_trained()
        with torch.no_grad(), seeded(self.seed, "predict", 0, self.device):
            return torch.cat([function(self.for_testing(part)) for part in chunks(x)])

    def _check_trained(self) -> None:
        if self.f is None:
            raise InputError("nothing has been observed yet, so there is no classifier: observe some examples first")

    def as_module(self, task: int | None = None) -> nn.Module:
        """One module that maps raw inputs to what :meth:`logits` gives; ``module(x).argmax(-1)`` equals ``predict(x)``.

        ``nn.Sequential(learner.psi, learner.f)`` neither transforms its inputs nor leaves out the classes that have not
        been seen. The module is a copy, always in eval mode, and ``torch.export`` can export it.
        """
        allowed = self.mask.predict(None if task is None else checks.check_task(self, task, 1))[0]
        self._check_trained()
        return Classifier(self, allowed)

    def add_task(self, classes: Sequence[int | str]) -> int:
        """Declare one more task of these classes, by name or number, and return its id, for :meth:`observe`.

        A name that is new takes the next free row of f; InputError where there is none. Where tasks are not declared,
        its classes are those that are observed.
        """
        self.classes, numbers = checks.check_classes(self, classes)
        self.mask = self.mask.with_task(numbers if self.mask.declared else [])
        return len(self.mask.classes_of) - 1

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write one file with everything that is needed to continue as if the learner had never stopped.

        It is written atomically: where that fails (OSError), an older file of that name stays as it was. A file that is
        no learner is replaced with ``force`` only, and what is no regular file never (InputError). The code of your own
        psi and transforms is not in it: :func:`cclfp.load` takes them again.
        """
        from cclfp.learner.saving import save

        save(self, Path(path), force=force)

    def __repr__(self) -> str:
        hyper = ", ".join(f"{name}={value:g}" for name, value in vars(self.hyper).items())
        held = f", memory {len(self.memory)}/{self.memory.size}" if self.memory is not None else ""
        return f"Learner({self.method.name}: {hyper}; {self.scenario} scenario, {self.steps} steps{held})"
