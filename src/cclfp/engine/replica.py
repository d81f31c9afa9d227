"""A replica: one learner that is trained on the tasks of one stream, and tested after each of them."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Hashable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from cclfp.core import trees
from cclfp.core.memory import Memory
from cclfp.core.randomness import generator
from cclfp.core.scenarios import ClassMask
from cclfp.engine.plan import Plan, plan_task
from cclfp.errors import DamagedError
from cclfp.learner import Learner
from cclfp.learner.checks import not_finite
from cclfp.learner.saving import learner_state, load_learner_state
from cclfp.methods import Method
from cclfp.streams import Stream

CONFUSION_CLASSES = 50  # the confusion matrix of more classes would be larger than the rest of a record


class Replica:
    """A learner, the stream that it is trained on, how far it is, and its accuracies.

    A :class:`~cclfp.engine.cohort.Cohort` trains it. All that it knows is in ``state_dict``, so a replica that is
    loaded after a task continues as if it had never stopped.
    """

    def __init__(self, learner: Learner, stream: Stream, *, batch: int = 10, epochs: int = 1) -> None:
        self.learner, self.stream = learner, stream
        self.batch, self.epochs = batch, epochs
        self.position = 0  # in the stream: how many of its tasks are trained (a joint stream has one)
        tasks = stream.num_tasks
        self.matrix: list[list[float | None]] = [[None] * tasks for _ in range(tasks + 1)]
        self.train_seconds = self.test_seconds = 0.0
        self.diverged: int | None = None  # after how many tasks its weights were first found not finite
        self._predictions: Tensor | None = None  # of the last test, see ``confusion``
        buffers = dict(learner.psi.named_buffers())
        never_finite = {list(buffers)[i] for i in not_finite(list(buffers.values()))}  # a mask of -inf in a user's psi
        self._checked_buffers = [name for name in buffers if name not in never_finite]

    @property
    def is_done(self) -> bool:
        return self.position == len(self.stream.train_rows)

    def steps(self, position: int) -> int:
        """How many steps the training at a position of the stream takes."""
        return self.epochs * -(-len(self.stream.train_rows[position]) // self.batch)

    def plans(self) -> Iterator[Plan]:
        """The plans of the tasks that are left to train, the first from what the memory holds now.

        Each is made when it is asked for. That may be before the task before it is trained, unless the method chooses
        at a task's end what to remember.
        """
        learner, memory, begin = self.learner, self.learner.memory, self.learner.steps
        tasks = self.stream.train.task.cpu()  # now: while a graph is recorded, no other thread may use the device
        for position in range(self.position, len(self.stream.train_rows)):
            plan = plan_task(
                self.stream.train_rows[position],
                tasks,
                batch=self.batch,
                epochs=self.epochs,
                replay=learner.replay,
                draws=learner.method.draws,
                memory=memory,
                order=generator(learner.seed, "order", position),
                augment=lambda step, n, begin=begin: learner.draw_augmentation(begin + step, n),  # type: ignore[misc]
            )
            yield plan
            begin += len(plan.sizes)
            if memory is None or memory.keeps_task:
                memory = learner.memory
            elif plan.schedule is not None:  # what the memory will be after the task
                memory = Memory(copy.deepcopy(plan.schedule), torch.device("cpu"))
                memory.point_to(self.stream.train, plan.memory, memory.schedule, plan.current)
                memory.end_task()

    @property
    def chooses_memory(self) -> bool:
        """Whether the method chooses at a task's end what to remember. Then no later task can be planned before."""
        return self.learner.memory is not None and self.learner.memory.keeps_task

    def begin_task(self) -> ClassMask:
        """Begin the next task, and return the mask to train it with."""
        self.learner.make_classifier(self.stream.train.x)
        tasks = torch.tensor(self.stream.task_ids(self.position), device=self.learner.device)
        self.learner.mask = self.learner.mask.after_tasks(tasks)
        self.learner.begin_task()
        return self.learner.mask

    def end_task(self, plan: Plan) -> None:
        """End a task whose planned steps have been taken."""
        if self.learner.memory is not None and plan.schedule is not None:
            schedule = copy.deepcopy(plan.schedule)  # other replicas may share the plan
            self.learner.memory.point_to(self.stream.train, plan.memory, schedule, plan.current)
        self.learner.end_task(check=False)  # a run that has diverged continues to its end
        if self.learner.device.type == "cuda":
            torch.cuda.synchronize(self.learner.device)
        self.position += 1

    @property
    def trained(self) -> int:
        """How many tasks are trained; all of them at once in a joint stream."""
        return 0 if self.position == 0 else self.stream.task_ids(self.position - 1)[-1] + 1

    @property
    def next_tests(self) -> tuple[int, range]:
        """The next row of the matrix to fill, and the tasks to test for it."""
        tasks, is_class = self.stream.num_tasks, self.stream.scenario == "class"
        if self.position == 0:  # the untrained network; in the class scenario no class has been seen yet
            return 0, range(0 if is_class else tasks)
        # The next task is tested too, for forward transfer; in the class scenario it has no class to be found yet.
        return self.trained, range(min(self.trained + (0 if is_class else 1), tasks))

    def predicting_tensors(self) -> list[Tensor]:
        """The tensors that its predictions are computed from, without what may be infinite on purpose.

        That is the buffers of psi that were not finite at the beginning, and infinities in a method's state.
        """
        params, buffers, state = self.learner.model
        own = [*params.values(), *(buffers[name] for name in self._checked_buffers)]
        if self.learner.method.scores is Method.scores:  # which does not use the state
            return own
        finite_or_nan = {"nan": torch.nan, "posinf": 0.0, "neginf": 0.0}
        return own + [t.nan_to_num(**finite_or_nan) for t in trees.leaves(state) if t.is_floating_point()]

    def known_task(self, task: int) -> int | None:
        """The task, where predictions may use it; None in the class scenario, where they may not."""
        return None if self.stream.scenario == "class" else task

    @property
    def accuracy(self) -> float | None:
        """The average accuracy over the tasks trained so far."""
        if self.position == 0:
            return None
        known = [value for value in self.matrix[self.trained][: self.trained] if value is not None]
        return sum(known) / len(known)

    def forget_predictions(self) -> None:
        """Begin to count predictions again: a test starts."""
        self._predictions = None

    def count_predictions(self, labels: Tensor, predicted: Tensor) -> None:
        """Count the predictions of the test after the last task, unless there are too many classes."""
        classes = self.stream.num_classes
        if not self.is_done or classes > CONFUSION_CLASSES:
            return
        counts = torch.bincount(labels * classes + predicted, minlength=classes**2).view(classes, classes)
        self._predictions = counts if self._predictions is None else self._predictions + counts

    @property
    def confusion(self) -> list[list[int]] | None:
        """How often each class (row) was predicted as each class (column) after the last task; None: not counted."""
        return None if self._predictions is None else self._predictions.tolist()

    def state_dict(self) -> dict[str, Any]:
        return {
            "position": self.position,
            "matrix": self.matrix,
            "train_seconds": self.train_seconds,
            "test_seconds": self.test_seconds,
            "diverged": self.diverged,
            "learner": learner_state(self.learner, copies=False),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave; DamagedError where it is not of a replica of this stream."""
        position, learner = state["position"], self.learner
        load_learner_state(learner, state["learner"], self.stream.train)
        steps = sum(map(self.steps, range(position)))
        if (learner.steps, learner.tasks_done, learner.in_task) != (steps, position, False):
            raise DamagedError(f"the learner is at step {learner.steps}, expected {steps} after {position} tasks")
        self.position, self.matrix = position, [list(row) for row in state["matrix"]]
        self.train_seconds, self.test_seconds = state["train_seconds"], state["test_seconds"]
        self.diverged = state.get("diverged")  # not in checkpoints of earlier versions


def find_diverged(replicas: Sequence[Replica]) -> None:
    """Set ``diverged`` of the replicas whose weights are not finite after the task that has just ended.

    A GPU waits once, for the check of all of them.
    """
    of_each = [replica.predicting_tensors() for replica in replicas]
    owners = [replica for replica, tensors in zip(replicas, of_each, strict=True) for _ in tensors]
    for place in not_finite([tensor for tensors in of_each for tensor in tensors]):
        if owners[place].diverged is None:
            owners[place].diverged = owners[place].trained


class Planner:
    """Plans the tasks of replicas, one task after the other.

    Replicas of one seed have the same stream and memory, and share their plans.
    """

    def __init__(self, replicas: Sequence[Replica], device: torch.device) -> None:
        self._device = device
        self._can_plan_ahead = not any(replica.chooses_memory for replica in replicas)
        self._keys = [
            (replica.learner.seed, id(replica.stream), replica.learner.replay, number * replica.chooses_memory)
            for number, replica in enumerate(replicas)
        ]
        self._plans = dict(zip(self._keys, [replica.plans() for replica in replicas], strict=True))
        self._executor = ThreadPoolExecutor(1)  # starts its thread when it is first used
        self._next: Future[dict[Hashable, Plan]] | None = None  # plans that are made in advance

    def next_plans(self, *, in_advance: bool) -> list[Plan]:
        """The plans of the next task. With ``in_advance``, those of the task after it are made in the background."""
        plans = self._make() if self._next is None else self._next.result()
        in_advance = in_advance and self._can_plan_ahead
        self._next = self._executor.submit(self._make) if in_advance else None
        on_device = {key: plan.to(self._device) for key, plan in plans.items()}
        return [on_device[key] for key in self._keys]

    def _make(self) -> dict[Hashable, Plan]:
        """The next plan of each kind; none after the last task."""
        return {key: plan for key, plans in self._plans.items() if (plan := next(plans, None)) is not None}


@contextlib.contextmanager
def computing_threads(n: int) -> Iterator[None]:
    """Compute on n CPU threads inside."""
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)
