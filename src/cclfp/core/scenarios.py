"""Scenarios: which classes a prediction may choose from, as a boolean mask over the classifier's outputs.

``class``: all classes seen so far. ``task``: the classes of the example's own task, as in a multi-head network.
``domain``: all classes. The same rule holds in training and in testing.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cclfp.errors import InputError, unknown

SCENARIOS = ("class", "task", "domain")


def check_scenario(scenario: str) -> str:
    """The scenario, if there is one of that name."""
    if scenario not in SCENARIOS:
        raise unknown("scenario", str(scenario), SCENARIOS)
    return scenario


@dataclasses.dataclass(frozen=True, eq=False)
class ClassMask:
    """The mask of one learner. ``after`` returns the mask after more examples.

    Where the classes of each task are declared, all classes of a task count as seen with the task's first example.
    Elsewhere each class counts as seen with its own first example.

    >>> mask = ClassMask.of("class", 4, tasks=[[0, 1], [2, 3]]).after(torch.tensor([0]), torch.tensor([0]))
    >>> mask.train(torch.tensor([0, 0])).tolist()
    [[True, True, False, False], [True, True, False, False]]
    """

    scenario: str
    declared: bool
    classes_of: Tensor  # task x class
    seen: Tensor  # one value per task

    @classmethod
    def of(cls, scenario: str, num_classes: int, tasks: Sequence[Sequence[int]] | None = None) -> ClassMask:
        """The mask before the first example; ``tasks`` declares the classes of each task."""
        nothing = torch.zeros(0, num_classes, dtype=torch.bool)
        mask = cls(scenario, tasks is not None, nothing, nothing.any(1))
        for classes in tasks or ():
            mask = mask.with_task(classes)
        return mask

    def with_task(self, classes: Sequence[int]) -> ClassMask:
        """The mask with one more task, of these classes. It is not seen yet."""
        row = self.classes_of.new_zeros(1, self.classes_of.shape[1])
        row[0, list(classes)] = True
        seen = torch.cat([self.seen, self.seen.new_zeros(1)])
        return dataclasses.replace(self, classes_of=torch.cat([self.classes_of, row]), seen=seen)

    def after(self, y: Tensor, task: Tensor) -> ClassMask:
        """The mask after examples with these labels and tasks."""
        if self.declared:
            if self.seen[task].all():
                return self
            classes_of, seen = self.classes_of, self.seen.clone()
        else:
            missing = max(0, int(task.max()) + 1 - len(self.seen))
            classes_of = torch.cat([self.classes_of, self.classes_of.new_zeros(missing, self.classes_of.shape[1])])
            seen = torch.cat([self.seen, self.seen.new_zeros(missing)])
            if classes_of[task, y].all():
                return self
            classes_of[task, y] = True
        seen[task] = True
        return dataclasses.replace(self, classes_of=classes_of, seen=seen)

    def after_tasks(self, tasks: Tensor) -> ClassMask:
        """The mask after these tasks, whose classes must have been declared."""
        if not self.declared:
            raise InputError("planned training needs the classes of each task: declare them, make(..., tasks=...)")
        return self.after(torch.zeros_like(tasks), tasks)

    @functools.cached_property
    def _shared(self) -> Tensor:
        """The classes that every example may choose from, in the scenarios where they do not depend on the example."""
        if self.scenario == "domain":
            return self.classes_of.new_ones(self.classes_of.shape[1])
        return self.classes_of[self.seen].any(0)

    def train(self, task: Tensor) -> Tensor:
        """The mask (examples x classes) for training on examples of these tasks."""
        return self.classes_of[task] if self.scenario == "task" else self._shared.expand(len(task), -1)

    def predict(self, task: Tensor | None) -> Tensor:
        """The mask for predictions with or without known tasks: examples x classes, or 1 x classes if it is shared."""
        if self.scenario == "domain":
            return self._shared[None]
        if task is not None:
            for known in task.unique().tolist():
                if known >= len(self.classes_of) or not self.classes_of[known].any():
                    raise InputError(f"no class of task {known} has been seen yet, so there is none to predict")
            return self.classes_of[task]
        if self.scenario == "task":
            text = "the task scenario predicts among the classes of one task"
            raise InputError(f"{text}: say which task, predict(x, task=...)")
        if not self._shared.any():
            raise InputError("no class has been seen yet, so there is none to predict: observe some examples first")
        return self._shared[None]

    def allowed(self, task: int | None) -> Tensor:
        """Which classes a prediction may choose from, for an example of this task or (None) of an unknown one."""
        return self.predict(None if task is None else torch.tensor([task], device=self.seen.device))[0]

    def to(self, device: torch.device) -> ClassMask:
        return dataclasses.replace(self, classes_of=self.classes_of.to(device), seen=self.seen.to(device))

    def state_dict(self) -> dict[str, Any]:
        """All but the scenario, as files have it."""
        return {"declared": self.declared, "classes_of": self.classes_of, "seen": self.seen}
