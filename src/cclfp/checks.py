"""Checks of what users give: a tensor, a number, a device. Each refusal names the value and what was expected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cclfp.errors import InputError


def as_tensor(name: str, value: Any) -> Tensor:
    try:
        return torch.as_tensor(value).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"{name} must be a tensor, an array or numbers, not {type(value).__name__}: {error}"
        ) from error


def check_whole(name: str, value: Any, at_least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
        raise InputError(f"{name}={value!r}: expected a whole number, {at_least} or more")


def check_tasks(tasks: Sequence[Sequence[int]] | None, num_classes: int) -> list[list[int]] | None:
    if tasks is None:
        return None
    declared = [[int(c) for c in classes] for classes in tasks]
    for task, classes in enumerate(declared):
        if not classes:
            raise InputError(f"tasks[{task}] declares no class")
        for c in classes:
            if not 0 <= c < num_classes:
                raise InputError(f"tasks[{task}] declares class {c}, out of range: classes are 0 to {num_classes - 1}")
    return declared


def check_device(device: str | torch.device) -> torch.device:
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise InputError(f"device {device!r} is not known: expected cpu or cuda") from error
    if chosen.type == "cuda":
        if not torch.cuda.is_available():
            raise InputError("device cuda was asked for, but torch sees no CUDA device here")
        chosen = torch.empty(0, device=chosen).device  # with its index
    return chosen


def device_of(psi: nn.Module) -> torch.device:
    first = next(psi.parameters(), None)
    return torch.device("cpu") if first is None else first.device
