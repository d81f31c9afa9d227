"""A replica: one learner on its way through one stream, tested after every task."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import torch

from cclfp.engine import eager
from cclfp.engine.plan import Plan, plan_task
from cclfp.learner import Learner
from cclfp.randomness import generator
from cclfp.scenarios import ClassMask
from cclfp.streams import Stream


class Replica:
    """Trains a learner task by task (``advance``) and keeps its accuracy matrix.

    All it knows is in ``state_dict``, so a replica that is loaded after a task goes on as if it had never stopped.
    """

    def __init__(self, learner: Learner, stream: Stream, *, batch: int = 10, epochs: int = 1) -> None:
        self.learner, self.stream = learner, stream
        self.batch, self.epochs = batch, epochs
        self.position = 0  # in the stream: how many tasks are trained (a joint stream has one)
        tasks = stream.num_tasks
        self.matrix: list[list[float | None]] = [[None] * tasks for _ in range(tasks + 1)]
        self.train_seconds = self.test_seconds = 0.0

    @property
    def is_done(self) -> bool:
        return self.position == len(self.stream.train_rows)

    def steps(self, position: int) -> int:
        """How many steps the training at a position of the stream takes."""
        return self.epochs * -(-len(self.stream.train_rows[position]) // self.batch)

    def plan(self) -> Plan:
        """The plan of the next task to train, from what the memory holds now."""
        learner, position = self.learner, self.position
        reuse = torch.Generator()
        plan = plan_task(
            self.stream.train_rows[position],
            self.stream.train.task,
            batch=self.batch,
            epochs=self.epochs,
            replay=learner.replay,
            memory=learner.memory,
            order=generator(learner.seed, "order", position),
            augment=lambda step, n: learner.draw_augmentation(learner.steps + step, n, reuse),
        )
        return plan.to(learner.device)

    def begin_task(self) -> ClassMask:
        """Let the next task begin; the mask to train it with."""
        self.learner.prepare_for(self.stream.train)
        mask = self.learner.expect(torch.tensor(self.stream.task_ids(self.position), device=self.learner.device))
        self.learner.begin_task()
        return mask

    def end_task(self, plan: Plan) -> None:
        """Let the task end that was trained as planned."""
        if self.learner.memory is not None and plan.schedule is not None:
            self.learner.memory.point_to(self.stream.train, plan.memory, plan.schedule, plan.current)
        self.learner.end_task()
        if self.learner.device.type == "cuda":
            torch.cuda.synchronize(self.learner.device)
        self.position += 1

    def advance(self, progress: Callable[[int], None] = lambda step: None) -> None:
        """Train the next task, step by step, and test."""
        self.test_untrained()
        began = time.perf_counter()
        plan = self.plan()
        eager.train(self.learner, self.stream.train, self.begin_task(), plan, progress)
        self.end_task(plan)
        self.train_seconds += time.perf_counter() - began
        self.test()

    def test_untrained(self) -> None:
        """Before the first task, test the untrained network, where that means something."""
        if self.position == 0 and self.stream.scenario != "class":  # in class, no class has been seen yet
            self._test(0, range(self.stream.num_tasks))

    def test(self) -> None:
        """Test on the tasks trained so far."""
        trained = self.stream.task_ids(self.position - 1)[-1] + 1
        # The next task is tested too, for forward transfer; in the class scenario it has no class to be found yet.
        ahead = 0 if self.stream.scenario == "class" else 1
        self._test(trained, range(min(trained + ahead, self.stream.num_tasks)))

    @property
    def accuracy(self) -> float | None:
        """The average accuracy over the tasks trained so far."""
        if self.position == 0:
            return None
        trained = self.stream.task_ids(self.position - 1)[-1] + 1
        known = [value for value in self.matrix[trained][:trained] if value is not None]
        return sum(known) / len(known)

    def state_dict(self) -> dict[str, Any]:
        return {
            "position": self.position,
            "matrix": self.matrix,
            "train_seconds": self.train_seconds,
            "test_seconds": self.test_seconds,
            "learner": self.learner.state_dict(copies=False),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position, self.matrix = state["position"], state["matrix"]
        self.train_seconds, self.test_seconds = state["train_seconds"], state["test_seconds"]
        self.learner.load_state_dict(state["learner"], self.stream.train)

    def _test(self, row: int, tasks: Iterable[int]) -> None:
        began = time.perf_counter()
        for task in tasks:
            test = self.stream.test[task]
            predicted = self.learner.predict(test.x, task=None if self.stream.scenario == "class" else task)
            self.matrix[row][task] = 100 * int((predicted == test.y).sum()) / len(test.y)
        self.test_seconds += time.perf_counter() - began
