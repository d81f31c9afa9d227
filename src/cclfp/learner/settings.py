"""What a learner is made with, checked."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from cclfp.core.arguments import check_tasks, check_whole
from cclfp.core.scenarios import ClassMask
from cclfp.errors import InputError
from cclfp.methods import Method
from cclfp.methods.base import Hyperparameters
from cclfp.transforms import Augmentation, Transform


@dataclasses.dataclass(frozen=True)
class Settings:
    """What does not change while a learner is trained. :func:`cclfp.make` explains the fields."""

    method: type[Method]
    hyper: Hyperparameters
    num_classes: int
    scenario: str
    seed: int
    tasks: list[list[int]] | None
    num_tasks: int | None
    memory: int  # 0 for a method without a memory
    replay: int  # 0 for a method that replays nothing
    transform: Transform | None
    predict_transform: Transform | None
    augment: Augmentation | None

    @classmethod
    def checked(
        cls,
        method: type[Method],
        *,
        hyper: Mapping[str, float],
        num_classes: int,
        scenario: str,
        seed: int,
        tasks: Sequence[Sequence[int]] | None,
        num_tasks: int | None,
        memory: int,
        replay: int,
        transform: Transform | None,
        predict_transform: Transform | None,
        augment: Augmentation | None,
    ) -> Settings:
        """Settings as a user gives them; a wrong value is refused (InputError)."""
        num_classes = check_whole("num_classes", num_classes, at_least=1)
        seed = check_whole("seed", seed, at_least=0)
        method.check_scenario(scenario)
        declared = check_tasks(tasks, num_classes)
        for name, function in (("transform", transform), ("predict_transform", predict_transform)):
            if function is not None and not callable(function):
                raise InputError(f"{name} must be a function of a batch of raw inputs, not {function!r}")
        if augment is not None and not (callable(augment) and callable(getattr(augment, "draw", None))):
            raise InputError(f"augment must have draw(n, generator) and take (x, table), not {augment!r}")
        has_memory = method.schedule is not None
        chosen = method.hyper(scenario, **hyper)
        replay = check_whole("replay", replay, at_least=1) if has_memory and method.replays else 0
        return cls(
            method,
            chosen,
            num_classes,
            scenario,
            seed,
            declared,
            _check_num_tasks(num_tasks, declared),
            memory=check_whole("memory", memory, at_least=1) if has_memory else 0,
            replay=method.replay_size(chosen, replay) if has_memory else 0,
            transform=transform,
            predict_transform=transform if predict_transform is None else predict_transform,
            augment=augment,
        )

    def class_mask(self) -> ClassMask:
        """The mask before the first batch. A method that trains all tasks at once may choose all their classes."""
        mask = ClassMask(self.scenario, self.num_classes, self.tasks)
        return mask.after_all() if self.method.joint else mask


def _check_num_tasks(num_tasks: int | None, declared: list[list[int]] | None) -> int | None:
    if num_tasks is None:
        return None if declared is None else len(declared)
    num_tasks = check_whole("num_tasks", num_tasks, at_least=1)
    if declared is not None and num_tasks != len(declared):
        raise InputError(f"num_tasks={num_tasks}, but tasks declares {len(declared)}")
    return num_tasks
