"""Which classes a prediction may choose from, in training and in testing: a boolean mask over the classifier's rows.

``class``: all classes seen so far. ``task``: the classes of the example's own task, a multi-head network. ``domain``:
all classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cclfp.core.layouts import check_value, describe_value
from cclfp.errors import DamagedError, InputError, unknown

SCENARIOS = ("class", "task", "domain")


def check_scenario(scenario: str) -> str:
    if not isinstance(scenario, str):
        raise InputError(f"scenario={scenario!r}: expected one of {', '.join(SCENARIOS)}")
    if scenario not in SCENARIOS:
        raise unknown("scenario", scenario, SCENARIOS)
    return scenario


class ClassMask:
    """The mask of one learner. Seeing examples does not change it in place: ``after`` gives the next one.

    With ``tasks`` (the classes of each task) a task's classes count as seen once the task is; without, each class
    counts once it is.

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
        self.seen = torch.zeros(len(self.classes_of), dtype=torch.bool)  # by task
        self._row = self._shared()

    def after(self, y: Tensor, task: Tensor) -> ClassMask:
        """The mask once examples with these labels and tasks have been seen."""
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
        new._row = new._shared()
        return new

    def after_all(self) -> ClassMask:
        """The mask once every declared task has been seen (Joint: its one stream holds all tasks)."""
        return self.after_tasks(torch.arange(len(self.classes_of), device=self.seen.device)) if self.declared else self

    def after_tasks(self, tasks: Tensor) -> ClassMask:
        """The mask once these tasks have been seen, whose classes must have been declared."""
        if not self.declared:
            raise InputError("the classes of each task must be declared for planned training: make(..., tasks=...)")
        return self.after(torch.zeros_like(tasks), tasks)

    def train(self, task: Tensor) -> Tensor:
        """examples x classes, for examples of these tasks."""
        if self.scenario == "task":
            return self.classes_of[task]
        return self._row.expand(len(task), -1)

    def predict(self, task: Tensor | None) -> Tensor:
        """examples x classes (or 1 x classes for all alike), for a prediction that is, or is not, told the task."""
        if self.scenario == "domain":
            return self._row[None]
        if task is not None:
            for known in task.unique().tolist():
                if known >= len(self.classes_of) or not self.classes_of[known].any():
                    raise InputError(f"no class of task {known} has been seen yet, so there is none to predict")
            return self.classes_of[task]
        if self.scenario == "task":
            raise InputError("the task scenario predicts among one task's classes: say which, predict(x, task=...)")
        if not self._row.any():
            raise InputError("no class has been seen yet, so there is none to predict: observe some examples first")
        return self._row[None]

    def to(self, device: torch.device) -> ClassMask:
        new = self._copy()
        for name in ("classes_of", "seen", "_row"):
            setattr(new, name, getattr(new, name).to(device))
        return new

    def state_dict(self) -> dict[str, Any]:
        return {"declared": self.declared, "classes_of": self.classes_of, "seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave; DamagedError where it is not of a mask over these classes."""
        classes_of, seen, device = state["classes_of"], state["seen"], self.seen.device
        check_value("classes.declared", state["declared"], bool)
        tasks = len(classes_of) if isinstance(classes_of, Tensor) and classes_of.ndim else 0
        expected = [f"{torch.bool} {(tasks, self.num_classes)}", f"{torch.bool} {(tasks,)}"]
        if [describe_value(classes_of), describe_value(seen)] != expected:
            raise DamagedError(
                f"classes are {describe_value(classes_of)}, {describe_value(seen)}, expected {', '.join(expected)}"
            )
        has_classes = classes_of.any(1)
        if not (has_classes.all() if state["declared"] else has_classes.equal(seen)):
            raise DamagedError("classes has a task without a class")
        self.declared = state["declared"]
        self.classes_of, self.seen = state["classes_of"].to(device), state["seen"].to(device)
        self._row = self._shared()

    def _shared(self) -> Tensor:
        """The classes all examples may choose from, in the scenarios where that does not depend on the example."""
        if self.scenario == "domain":
            return torch.ones(self.num_classes, dtype=torch.bool, device=self.seen.device)
        return self.classes_of[self.seen].any(0)

    def _copy(self) -> ClassMask:
        new = object.__new__(ClassMask)
        new.__dict__.update(self.__dict__)
        new.classes_of, new.seen = self.classes_of.clone(), self.seen.clone()
        return new
