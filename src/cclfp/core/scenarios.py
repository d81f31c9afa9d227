"""Scenarios: which classes a prediction may choose from, as a boolean mask over the classifier's outputs.

``class``: all classes seen so far. ``task``: the classes of the example's own task, as in a multi-head network.
``domain``: all classes. The same rule holds in training and in testing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cclfp.errors import InputError, unknown

SCENARIOS = ("class", "task", "domain")


def check_scenario(scenario: str) -> str:
    """The scenario, if there is one of that name."""
    if not isinstance(scenario, str):
        raise InputError(f"scenario={scenario!r}: expected one of {', '.join(SCENARIOS)}")
    if scenario not in SCENARIOS:
        raise unknown("scenario", scenario, SCENARIOS)
    return scenario


class ClassMask:
    """The mask of one learner. It is immutable while training: ``after`` returns the mask after more examples.

    With ``tasks`` (the classes of each task) all classes of a task count as seen with the task's first example. Without
    it, each class counts as seen with its own first example.

    >>> mask = ClassMask("class", 4, tasks=[[0, 1], [2, 3]]).after(torch.tensor([0]), torch.tensor([0]))
    >>> mask.train(torch.tensor([0, 0])).tolist()
    [[True, True, False, False], [True, True, False, False]]
    """

    def __init__(self, scenario: str, num_classes: int, tasks: Sequence[Sequence[int]] | None = None) -> None:
        self.scenario = check_scenario(scenario)
        self.num_classes = num_classes
        self.declared = tasks is not None
        self.classes_of = torch.zeros(len(tasks or ()), num_classes, dtype=torch.bool)  # task x class
        for task, classes in enumerate(tasks or ()):
            self.classes_of[task, list(classes)] = True
        self.seen = torch.zeros(len(self.classes_of), dtype=torch.bool)  # one value per task
        self._row = self._shared_row()

    def after(self, y: Tensor, task: Tensor) -> ClassMask:
        """The mask after examples with these labels and tasks."""
        if self.declared:
            if self.seen[task].all():
                return self
            new = self._copy()
        else:
            missing = int(task.max()) + 1 - len(self.classes_of)
            if missing <= 0 and self.classes_of[task, y].all():
                return self
            new = self._copy()
            if missing > 0:
                new.classes_of = torch.cat([new.classes_of, new.classes_of.new_zeros(missing, self.num_classes)])
                new.seen = torch.cat([new.seen, new.seen.new_zeros(missing)])
            new.classes_of[task, y] = True
        new.seen[task] = True
        new._row = new._shared_row()
        return new

    def after_all(self) -> ClassMask:
        """The mask after all declared tasks, as Joint needs it, which trains on all tasks at once."""
        return self.after_tasks(torch.arange(len(self.classes_of), device=self.seen.device)) if self.declared else self

    def after_tasks(self, tasks: Tensor) -> ClassMask:
        """The mask after these tasks, whose classes must have been declared."""
        if not self.declared:
            raise InputError("planned training needs the classes of each task: declare them, make(..., tasks=...)")
        return self.after(torch.zeros_like(tasks), tasks)

    def with_task(self, classes: Sequence[int]) -> ClassMask:
        """The mask with one more declared task, of these classes. It is not seen yet."""
        new = self._copy()
        row = new.classes_of.new_zeros(1, self.num_classes)
        row[0, list(classes)] = True
        new.classes_of = torch.cat([new.classes_of, row])
        new.seen = torch.cat([new.seen, new.seen.new_zeros(1)])
        return new

    def train(self, task: Tensor) -> Tensor:
        """The mask (examples x classes) for training on examples of these tasks."""
        if self.scenario == "task":
            return self.classes_of[task]
        return self._row.expand(len(task), -1)

    def predict(self, task: Tensor | None) -> Tensor:
        """The mask for predictions with or without known tasks: examples x classes, or 1 x classes if it is shared."""
        if self.scenario == "domain":
            return self._row[None]
        if task is not None:
            for known in task.unique().tolist():
                if known >= len(self.classes_of) or not self.classes_of[known].any():
                    raise InputError(f"no class of task {known} has been seen yet, so there is none to predict")
            return self.classes_of[task]
        if self.scenario == "task":
            raise InputError(
                "the task scenario predicts among the classes of one task: say which task, predict(x, task=...)"
            )
        if not self._row.any():
            raise InputError("no class has been seen yet, so there is none to predict: observe some examples first")
        return self._row[None]

    def allowed(self, task: int | None) -> Tensor:
        """Which classes a prediction may choose from, for an example of this task or (None) of an unknown one."""
        return self.predict(None if task is None else torch.tensor([task], device=self.seen.device))[0]

    def to(self, device: torch.device) -> ClassMask:
        new = self._copy()
        for name in ("classes_of", "seen", "_row"):
            setattr(new, name, getattr(new, name).to(device))
        return new

    def state_dict(self) -> dict[str, Any]:
        return {"declared": self.declared, "classes_of": self.classes_of, "seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        self.declared, device = state["declared"], self.seen.device
        self.classes_of, self.seen = state["classes_of"].to(device), state["seen"].to(device)
        self._row = self._shared_row()

    def _shared_row(self) -> Tensor:
        """The classes that every example may choose from, in the scenarios where they do not depend on the example."""
        if self.scenario == "domain":
            return torch.ones(self.num_classes, dtype=torch.bool, device=self.seen.device)
        return self.classes_of[self.seen].any(0)

    def _copy(self) -> ClassMask:
        new = object.__new__(ClassMask)
        new.__dict__.update(self.__dict__)
        new.classes_of, new.seen = self.classes_of.clone(), self.seen.clone()
        return new
