"""What a learner's file holds. All of it is checked before it is used, and nothing of it is executed."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from cclfp._version import __version__
from cclfp.core.arguments import check_names
from cclfp.core.files import write_tensors
from cclfp.core.layouts import check_layout, check_value
from cclfp.core.memory import Examples
from cclfp.core.randomness import generator, seeded
from cclfp.errors import DamagedError, InputError
from cclfp.learner.trainer import PROBE, Trainer
from cclfp.methods import METHODS
from cclfp.nets import describe_backbone
from cclfp.nets.network import check_mode, check_psi_tensors, load_psi_tensors, psi_tensors
from cclfp.schedules import is_shipped
from cclfp.transforms import describe

FORMAT = "cclfp learner 2"
MAX_NUMBERS = 2**28  # in one example of a file
STATISTICS = ("running_mean", "running_var")  # how the names of BatchNorm's buffers end


def save(trainer: Trainer, path: Path) -> None:
    """Write a learner's file, atomically."""
    write_tensors(path, {"format": FORMAT, "cclfp": __version__, **learner_state(trainer)})


def learner_state(trainer: Trainer, *, copies: bool = True) -> dict[str, Any]:
    """What a file holds. With ``copies=False`` the memory is rows of its stream, where it has one."""
    settings, memory = trainer.settings, trainer.memory
    is_same = settings.predict_transform is settings.transform
    return {
        "method": settings.method.name,
        "hyper": dataclasses.asdict(settings.hyper),
        "num_classes": settings.num_classes,
        "num_tasks": settings.num_tasks,
        "scenario": settings.scenario,
        "seed": settings.seed,
        "replay": settings.replay,
        "memory_size": 0 if memory is None else memory.size,
        "backbone": describe_backbone(trainer.psi),
        "transform": describe(settings.transform),
        "predict_transform": "same" if is_same else describe(settings.predict_transform),
        "augment": describe(settings.augment),
        "psi": psi_tensors(trainer.psi),
        "psi_mode": trainer.psi_mode,
        "f": None if trainer.f is None else trainer.f.state_dict(),
        "state": trainer.state,
        "memory": None if memory is None else memory.state_dict(copies=copies),
        "classes": trainer.classes.state_dict(),
        "class_names": None if trainer.class_names is None else list(trainer.class_names),
        "like": None if trainer.example is None else [list(trainer.example[0]), trainer.example[1]],
        "steps": trainer.steps,
        "tasks_done": trainer.tasks_done,
        "in_task": trainer.in_task,
    }


def load_learner_state(trainer: Trainer, state: dict[str, Any], pool: Examples | None = None) -> None:
    """Take over what :func:`learner_state` gave; ``pool`` is the stream's examples where the memory is rows of it.

    All of it is checked, so that it can be trained. Where it is refused (DamagedError; InputError where psi is another)
    psi is as it was, and the trainer cannot be used.
    """
    for name in ("psi", "psi_mode", "state", "classes"):
        check_value(name, state[name], dict)
    check_psi_tensors(trainer.psi, state["psi"])
    trainer.psi_mode = check_mode(trainer.psi, state["psi_mode"])
    _load_progress(trainer, state)
    _load_memory(trainer, state, pool)
    _load_method(trainer, state, pool)
    load_psi_tensors(trainer.psi, state["psi"])


def _load_progress(trainer: Trainer, state: dict[str, Any]) -> None:
    """Take over the counters, the classes that were seen, and the shape and dtype of the examples."""
    for name, kind in (("steps", int), ("tasks_done", int), ("in_task", bool)):
        check_value(name, state[name], kind, 0, 2**53)
    trainer.steps, trainer.tasks_done, trainer.in_task = state["steps"], state["tasks_done"], state["in_task"]
    if trainer.tasks_done + trainer.in_task > trainer.steps:
        raise DamagedError(f"{trainer.steps} steps are too few for {trainer.tasks_done} tasks")
    trainer.classes.load_state_dict(state["classes"])
    declared, expected = len(trainer.classes.classes_of), trainer.settings.num_tasks
    if trainer.classes.declared and (expected is None or declared < expected):  # add_task declares more
        raise DamagedError(f"{declared} tasks are declared, expected {expected}")
    trainer.class_names = _load_names(state.get("class_names"), trainer.settings.num_classes)
    trainer.example = None
    if state["like"] is not None:
        shape, dtype = state["like"]
        check_value("the dtype of like", dtype, torch.dtype)
        for length in shape:
            check_value("the shape of like", length, int, 0)
        check_value("the size of like", math.prod(shape), int, 0, MAX_NUMBERS)
        trainer.example = torch.Size(shape), dtype
    if (state["f"] is None) != (trainer.example is None) or (trainer.steps and trainer.example is None):
        raise DamagedError(f"f or like is missing after {trainer.steps} steps")


def _load_names(names: Any, num_classes: int) -> tuple[str, ...] | None:
    """The names of the classes; None in files of versions that did not store them."""
    if names is None:
        return None
    check_value("class_names", names, list)
    for name in names:
        check_value("class_names", name, str)
    try:
        return check_names(names, num_classes)
    except InputError as error:
        raise DamagedError(f"class_names: {error}") from error


def _load_memory(trainer: Trainer, state: dict[str, Any], pool: Examples | None) -> None:
    """Take over the memory, whose examples must be of classes that were seen."""
    memory, in_task = trainer.memory, trainer.in_task
    if (memory is None) != (state["memory"] is None):
        raise DamagedError(f"memory is there or missing, unlike that of {trainer.settings.method.name}")
    if memory is None:
        return
    check_value("memory", state["memory"], dict)
    memory.load_state_dict(state["memory"], pool)
    schedule, current = memory.schedule, memory.current()
    in_this_task = schedule.seen - schedule.seen_before_task
    if is_shipped(schedule) and in_task != (in_this_task > 0):
        raise DamagedError(f"{in_this_task} examples passed, but in_task is {in_task}")
    if memory.keeps_task and in_task != bool(len(current.y)):
        raise DamagedError(f"memory.current has {len(current.y)} examples, but in_task is {in_task}")
    classes_of = trainer.classes.classes_of
    for held in (memory.examples(), current):
        if not len(held.y):
            continue
        if (held.x.shape[1:], held.x.dtype) != trainer.example:
            found = f"{held.x.dtype} {tuple(held.x.shape[1:])}"
            raise DamagedError(f"memory has examples of {found}, unlike {trainer.example}")
        if int(held.y.max()) >= trainer.settings.num_classes or int(held.task.max()) >= len(classes_of):
            raise DamagedError("memory has labels or tasks out of range")
        if not classes_of[held.task, held.y].all():
            raise DamagedError("memory has labels that are not of their tasks")


def _load_method(trainer: Trainer, state: dict[str, Any], pool: Examples | None) -> None:
    """Take over f and the method's state, which must fit psi's features and what the method does."""
    trainer.state = tree_map(lambda t: t.detach().to(trainer.device), state["state"])
    if trainer.example is None:
        if trainer.state:
            raise DamagedError("state is not empty before the first step")
        trainer.bound = None
        return
    x = _examples_like(trainer, pool)
    trainer.inputs.probe_training(x)
    z = trainer.inputs.probe(x)
    f = nn.utils.skip_init(nn.Linear, z.shape[1], trainer.settings.num_classes, dtype=z.dtype)
    check_layout("f", state["f"], dict(f.named_parameters()))
    f.load_state_dict(state["f"])
    trainer.bind(f.to(trainer.device))
    with torch.no_grad(), seeded(trainer.settings.seed, "probe", 0, trainer.device):
        context = trainer.task_context()
        layout = trainer.method.layout(trainer.params, trainer.buffers, context, trainer.in_task)
    if layout is not None:
        check_layout("state", trainer.state, layout)
    elif trainer.steps:
        for name, stored in trainer.method.storage(trainer.params, trainer.memory).items():
            check_layout(f"state.{name}", trainer.state[name], stored)


def check_finite(trainer: Trainer) -> None:
    """Refuse weights, features, a memory or the state of a shipped method that are not finite (InputError)."""
    if trainer.example is None:
        return
    params, buffers, state = trainer.model
    # Nothing is known of the state of other methods.
    state = dict(state) if trainer.settings.method in METHODS.values() else {}
    # The buffers of a psi may be infinite on purpose, such as masks; its features and statistics may not.
    networks = [buffers, state.pop("buffers_old", buffers)]
    parts: dict[str, Any] = {"weights": params, "values in its state": state}
    parts["statistics"] = [b for own in networks for name, b in own.items() if name.endswith(STATISTICS)]
    with torch.no_grad(), seeded(trainer.settings.seed, "probe", 0, trainer.device):
        prepared = trainer.inputs.for_testing(_examples_like(trainer, None))
        if prepared.isfinite().all():
            parts["features"] = [trainer.method.net.frozen_features(params, own, prepared) for own in networks]
    if trainer.memory is not None:
        parts["examples in memory"] = [trainer.memory.examples().x, trainer.memory.current().x]
    for name, part in parts.items():
        if not all(bool(tensor.isfinite().all()) for tensor in tree_leaves(part)):
            raise InputError(f"this learner has {name} that are not finite: its training diverged, or it was changed")


def _examples_like(trainer: Trainer, pool: Examples | None) -> Tensor:
    """A few raw inputs of the shape and dtype that were observed: real ones where there are any, else made up."""
    assert trainer.example is not None
    shape, dtype = trainer.example
    if pool is not None:
        x = pool.x[:PROBE]
    elif trainer.memory is not None and len(trainer.memory):
        x = trainer.memory.examples().x[:PROBE]
    else:
        g = generator(trainer.settings.seed, "probe")
        made_up = torch.rand(2, *shape, generator=g) if dtype.is_floating_point else torch.ones(2, *shape)
        x = made_up.to(trainer.device, dtype)
    if (x.shape[1:], x.dtype) != trainer.example:
        raise DamagedError(f"like is {dtype} {tuple(shape)}, expected {x.dtype} {tuple(x.shape[1:])}")
    return x
