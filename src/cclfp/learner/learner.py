"""The learner: takes batches as they come, predicts at any time, is saved and loaded. The benchmarks run this code."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cclfp.core.arguments import check_names
from cclfp.core.memory import Examples, Memory, MemorySlots
from cclfp.errors import InputError
from cclfp.learner.batches import Task, check_batch, check_inputs, check_task
from cclfp.learner.growing import add_task
from cclfp.learner.module import Classifier
from cclfp.learner.saving import save
from cclfp.learner.settings import Settings
from cclfp.learner.trainer import Trainer
from cclfp.methods import Method, get_method
from cclfp.methods.base import Hyperparameters
from cclfp.schedules import Schedule
from cclfp.transforms import Augmentation, Transform


class Learner:
    """A classifier that learns from a stream of batches. Made by :func:`make` or :func:`cclfp.load`.

    >>> import cclfp
    >>> learner = cclfp.make("er", psi=nn.Flatten(), num_classes=2, memory=4)
    >>> x, y = torch.tensor([[-1.0], [1.0]]), torch.tensor([0, 1])
    >>> losses = [learner.observe(x, y) for _ in range(20)]
    >>> losses[0] > losses[-1]
    True
    >>> learner.predict(torch.tensor([[-3.0], [2.0]]))
    tensor([0, 1])
    >>> learner.method.name, learner.hyper
    ('er', Hyperparameters(lr=0.1))
    """

    __slots__ = ("__weakref__", "trainer")

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer  # for engines: what is trained, without the checks

    def observe(self, x: Any, y: Any, task: Task | None = None) -> float | None:
        """Learn from one batch of any size, and return the loss of the step (None where the method gives none).

        ``x`` are the inputs, ``y`` the labels and ``task`` is the task of the batch, or one task per example. Without
        ``task`` it is the number of tasks that have ended; the task scenario requires it. The loss is the method's own,
        before the step: for most methods on the batch and the examples that are replayed with it.

        A batch that is refused (``ValueError``) leaves the learner as it was. So does a step whose new weights are not
        finite (``DivergenceError``, a ``ValueError``).
        """
        new = check_batch(self.trainer, x, y, task)
        before = self.trainer.snapshot()
        try:
            self.trainer.make_classifier(new.x)
            self.trainer.classes = self.trainer.classes.after(new.y, new.task)
            batch, slots, schedule = self._replay(new)
            self.trainer.begin_task()
            table = self.trainer.inputs.draw_augmentation(self.trainer.steps, len(batch.y))
            mask = self.trainer.classes.train(batch.task)
            loss = self.trainer.train_step(batch, mask, len(new.y), slots, table, check=True)
        except BaseException:
            self.trainer.restore(before)
            raise
        if self.memory is not None and schedule is not None:
            self.memory.schedule = schedule
            self.memory.write(new, slots.placed.tolist())
            self.memory.hold(new)
        return None if loss is None else float(loss)

    def _replay(self, new: Examples) -> tuple[Examples, MemorySlots, Schedule | None]:
        """The new examples followed by those to replay with them, their slots, and the schedule after the step."""
        slots: list[int] = []
        from_past_task: list[bool] = []
        placed, schedule = [-1] * len(new.y), None
        batch = new
        if self.memory is not None:
            self.memory.make_room(new)
            tasks, now = new.task.tolist(), self.memory.schedule
            for _ in range(self.method.draws):
                slots += now.draw(self.trainer.settings.replay, tasks)
            from_past_task = [now.is_from_past_task(slot) for slot in slots]
            schedule = copy.deepcopy(now)  # the step may fail
            placed = schedule.place(tasks)
            if slots:
                old = self.memory.read(slots)
                batch = Examples(*(torch.cat(pair) for pair in zip(new, old, strict=True)))
        return (
            batch,
            MemorySlots(
                torch.tensor(slots, dtype=torch.int64, device=self.device),
                torch.tensor(from_past_task, dtype=torch.bool, device=self.device),
                torch.tensor(placed, dtype=torch.int64, device=self.device),
            ),
            schedule,
        )

    def end_task(self) -> None:
        """Tell the learner that a task is over. The method then does its work (CCL-FP copies psi to psi_old).

        Where the method's state becomes NaN or infinite (``DivergenceError``), the learner is left as it was.
        """
        if not self.trainer.in_task:
            raise InputError("end_task() without an observe() since the last task ended: there is no task to end")
        before = self.trainer.snapshot()
        try:
            if self.memory is not None:
                self.memory.schedule = copy.deepcopy(self.memory.schedule)  # the method may change it
            self.trainer.end_task(check=True)
        except BaseException:
            self.trainer.restore(before)
            raise

    def predict(self, x: Any, task: Task | None = None) -> Tensor:
        """The most likely class of each example, among those that the scenario allows; with ``task``, that task's."""
        return self.logits(x, task).argmax(-1)

    def logits(self, x: Any, task: Task | None = None) -> Tensor:
        """One score per example and class; -inf for the classes that a prediction may not choose.

        The scores are the logits f(psi(x)). For iCaRL, which classifies by the nearest mean of features, they are
        negative distances. They are computed in eval mode, without gradients.
        """
        x = check_inputs(self.trainer, x)
        mask = self.trainer.classes.predict(None if task is None else check_task(self.trainer, task, len(x)))
        with self._classifier_for(x):
            return self.trainer.scores(x).masked_fill(~mask, -torch.inf)

    @contextlib.contextmanager
    def _classifier_for(self, x: Tensor) -> Iterator[None]:
        """Have a classifier inside, also before the first batch: only observing changes a learner."""
        is_untrained = self.trainer.bound is None
        try:
            self.trainer.make_classifier(x)
            yield
        finally:
            if is_untrained:
                self.trainer.bound = self.trainer.example = None

    def predict_proba(self, x: Any, task: Task | None = None) -> Tensor:
        """The softmax of :meth:`logits`: one probability per example and class, 0 for those that may not be chosen."""
        return self.logits(x, task).softmax(-1)

    def features(self, x: Any) -> Tensor:
        """psi(x) as :meth:`predict` computes it: transformed inputs, in eval mode, without gradients."""
        x = check_inputs(self.trainer, x)
        with self._classifier_for(x):
            return self.trainer.features(x)

    def as_module(self, task: int | None = None) -> nn.Module:
        """One module that maps raw inputs to what :meth:`logits` gives; ``module(x).argmax(-1)`` equals ``predict(x)``.

        ``nn.Sequential(learner.psi, learner.f)`` does not: it neither transforms its inputs nor leaves out the classes
        that have not been seen. The module is a copy, so training the learner further does not change it. It always
        computes in eval mode, and ``torch.export`` can export it.
        """
        ids = None if task is None else check_task(self.trainer, task, 1)
        allowed = self.trainer.classes.predict(ids)[0]
        if self.f is None:
            raise InputError("nothing has been observed yet, so there is no classifier: observe some examples first")
        return Classifier(self.trainer, allowed)

    def add_task(self, classes: Sequence[int | str]) -> int:
        """Declare one more task of these classes, by name or number, and return its id, for :meth:`observe`.

        A name that is new takes the next free row of f (``make(..., num_classes=...)`` reserves rows). InputError where
        there is none.
        """
        return add_task(self.trainer, classes)

    def to(self, device: str | torch.device) -> Learner:
        """Move psi, f, the memory and the method's state to a device."""
        self.trainer.to(device)
        return self

    def save(self, path: str | Path) -> None:
        """Write one file with everything that is needed to continue as if the learner had never stopped.

        The file is written atomically: where that fails (OSError), an older file of that name stays as it was. It
        holds psi's weights, but not its code: :func:`cclfp.load` takes the module again (backbones of this package are
        rebuilt), and likewise the transform.
        """
        save(self.trainer, Path(path))

    def __repr__(self) -> str:
        hyper = ", ".join(f"{name}={value:g}" for name, value in dataclasses.asdict(self.hyper).items())
        held = f", memory {len(self.memory)}/{self.memory.size}" if self.memory is not None else ""
        return f"Learner({self.method.name}: {hyper}; {self.scenario} scenario, {self.steps} steps{held})"

    @property
    def method(self) -> type[Method]:
        """The class of the method, such as ``make`` takes; its hyperparameters are in :attr:`hyper`."""
        return self.trainer.settings.method

    @property
    def hyper(self) -> Hyperparameters:
        """The values of the method's hyperparameters."""
        return self.trainer.settings.hyper

    @property
    def psi(self) -> nn.Module:
        """The module that was given, which is trained in place."""
        return self.trainer.psi

    @property
    def f(self) -> nn.Linear | None:
        """The classifier; None before the first batch, which shows how many features psi gives."""
        return self.trainer.f

    @property
    def memory(self) -> Memory | None:
        """The replay memory; None for a method that has none."""
        return self.trainer.memory

    @property
    def device(self) -> torch.device:
        """Where it is trained."""
        return self.trainer.device

    @property
    def scenario(self) -> str:
        """Which classes a prediction may choose from: ``"class"``, ``"task"`` or ``"domain"``."""
        return self.trainer.settings.scenario

    @property
    def seed(self) -> int:
        """Where all randomness comes from."""
        return self.trainer.settings.seed

    @property
    def num_classes(self) -> int:
        """How many classes there can be."""
        return self.trainer.settings.num_classes

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The names of the classes, where they are known; the rows of f after them are free for new classes."""
        return self.trainer.class_names

    @property
    def steps(self) -> int:
        """How many steps it has been trained for."""
        return self.trainer.steps

    @property
    def tasks_done(self) -> int:
        """How many tasks have ended."""
        return self.trainer.tasks_done


def make(
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
) -> Learner:
    """A learner for your own loop.

    Parameters
    ----------
    method
        A name (``cclfp list methods``) or your own subclass of :class:`cclfp.Method`.
    psi
        Any module that maps a batch to features, one row per example. **It is trained in place**: its parameters with
        ``requires_grad``, and its BatchNorm statistics. Which parameters are trained, and in which mode
        (``psi.training``), is decided now; freezing layers or calling ``psi.eval()`` later changes nothing.
    num_classes
        How many classes there can be; the classifier f has one row per class.
    classes
        The names of the classes, which are saved with the learner. Where they are fewer than ``num_classes``, the rows
        after them are free for classes that come later (:meth:`Learner.add_task`).
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
        A random change of raw inputs, such as ``cclfp.transforms.CropFlip(4)``. It is applied at every training step to
        new and replayed examples alike, and never when predicting. The memory holds raw inputs, so a replayed example
        is augmented differently each time.
    replay
        How many remembered examples are added to each batch; A-GEM has the hyperparameter ``reference`` instead.
    device
        Where to train; by default psi's own device.
    **hyper
        The method's hyperparameters (``cclfp show METHOD``), such as ``lr``.

    Examples
    --------
    >>> learner = make("ccl-fp+", psi=nn.Sequential(nn.Linear(2, 8), nn.ReLU()), num_classes=4, lr=0.05, w=0.3)
    >>> loss = learner.observe(torch.randn(10, 2), torch.randint(0, 2, (10,)), task=0)
    >>> learner.end_task()
    >>> loss = learner.observe(torch.randn(5, 2), torch.randint(2, 4, (5,)), task=1)
    >>> set(learner.predict(torch.randn(20, 2), task=1).tolist()) <= {2, 3}
    True
    """
    settings = Settings.checked(
        get_method(method),
        hyper=hyper,
        num_classes=num_classes,
        scenario=scenario,
        seed=seed,
        tasks=tasks,
        num_tasks=num_tasks,
        memory=memory,
        replay=replay,
        transform=transform,
        predict_transform=predict_transform,
        augment=augment,
    )
    trainer = Trainer(settings, psi, device)
    if classes is not None:
        trainer.class_names = check_names(classes, settings.num_classes)
    return Learner(trainer)
