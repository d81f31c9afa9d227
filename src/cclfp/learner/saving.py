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
from cclfp.core.files import check_output, write_tensors
from cclfp.core.layouts import check_layout, check_value
from cclfp.core.memory import Examples
from cclfp.core.randomness import generator, seeded
from cclfp.errors import DamagedError, InputError
from cclfp.learner.checks import check_features
from cclfp.learner.learner import PROBE, Learner
from cclfp.methods import METHODS
from cclfp.nets import describe_backbone
from cclfp.nets.network import check_mode, check_psi_tensors, load_psi_tensors, psi_tensors
from cclfp.schedules import is_shipped
from cclfp.transforms import describe

FORMAT = "cclfp learner 2"
MAX_NUMBERS = 2**28  # in one example of a file
STATISTICS = ("running_mean", "running_var")  # how the names of BatchNorm's buffers end


def save(learner: Learner, path: Path, *, force: bool = False) -> None:
    """Write a learner's file, atomically. With ``force`` it may replace a file of any kind."""
    check_output(path, is_learner, force=force)
    write_tensors(path, {"format": FORMAT, "cclfp": __version__, **learner_state(learner)})


def is_learner(head: bytes) -> bool:
    """Whether a file begins as :func:`save` begins one, of any version of the format."""
    return head.startswith(b"PK") and b"cclfp learner " in head


def learner_state(learner: Learner, *, copies: bool = True) -> dict[str, Any]:
    """What a file holds. With ``copies=False`` the memory is rows of its stream, where it has one."""
    memory = learner.memory
    is_same = learner.predict_transform is learner.transform
    return {
        "method": learner.method.name,
        "hyper": dataclasses.asdict(learner.hyper),
        "num_classes": learner.num_classes,
        "num_tasks": learner.num_tasks,
        "scenario": learner.scenario,
        "seed": learner.seed,
        "replay": learner.replay,
        "memory_size": 0 if memory is None else memory.size,
        "backbone": describe_backbone(learner.psi),
        "transform": describe(learner.transform),
        "predict_transform": "same" if is_same else describe(learner.predict_transform),
        "augment": describe(learner.augment),
        "psi": psi_tensors(learner.psi),
        "psi_mode": learner.psi_mode,
        "f": None if learner.f is None else learner.f.state_dict(),
        "state": learner.state,
        "memory": None if memory is None else memory.state_dict(copies=copies),
        "classes": learner.mask.state_dict(),
        "class_names": None if learner.classes is None else list(learner.classes),
        "like": None if learner.example is None else [list(learner.example[0]), learner.example[1]],
        "steps": learner.steps,
        "tasks_done": learner.tasks_done,
        "in_task": learner.in_task,
    }


def load_learner_state(learner: Learner, state: dict[str, Any], pool: Examples | None = None) -> None:
    """Take over what :func:`learner_state` gave; ``pool`` is the stream's examples where the memory is rows of it.

    All of it is checked, so that it can be trained. Where it is refused (DamagedError; InputError where psi is another)
    psi is as it was, and the learner cannot be used.
    """
    for name in ("psi", "psi_mode", "state", "classes"):
        check_value(name, state[name], dict)
    check_psi_tensors(learner.psi, state["psi"])
    learner.psi_mode = check_mode(learner.psi, state["psi_mode"])
    _load_progress(learner, state)
    _load_memory(learner, state, pool)
    _load_method(learner, state, pool)
    load_psi_tensors(learner.psi, state["psi"])


def _load_progress(learner: Learner, state: dict[str, Any]) -> None:
    """Take over the counters, the classes that were seen, and the shape and dtype of the examples."""
    for name, kind in (("steps", int), ("tasks_done", int), ("in_task", bool)):
        check_value(name, state[name], kind, 0, 2**53)
    learner.steps, learner.tasks_done, learner.in_task = state["steps"], state["tasks_done"], state["in_task"]
    if learner.tasks_done + learner.in_task > learner.steps:
        raise DamagedError(f"{learner.steps} steps are too few for {learner.tasks_done} tasks")
    learner.mask.load_state_dict(state["classes"])
    declared, expected = len(learner.mask.classes_of), learner.num_tasks
    if learner.mask.declared and (expected is None or declared < expected):  # add_task declares more
        raise DamagedError(f"{declared} tasks are declared, expected {expected}")
    learner.classes = _load_names(state.get("class_names"), learner.num_classes)
    learner.example = None
    if state["like"] is not None:
        shape, dtype = state["like"]
        check_value("the dtype of like", dtype, torch.dtype)
        for length in shape:
            check_value("the shape of like", length, int, 0)
        check_value("the size of like", math.prod(shape), int, 0, MAX_NUMBERS)
        learner.example = torch.Size(shape), dtype
    if (state["f"] is None) != (learner.example is None) or (learner.steps and learner.example is None):
        raise DamagedError(f"f or like is missing after {learner.steps} steps")


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


def _load_memory(learner: Learner, state: dict[str, Any], pool: Examples | None) -> None:
    """Take over the memory, whose examples must be of classes that were seen."""
    memory, in_task = learner.memory, learner.in_task
    if (memory is None) != (state["memory"] is None):
        raise DamagedError(f"memory is there or missing, unlike that of {learner.method.name}")
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
    classes_of = learner.mask.classes_of
    for held in (memory.examples(), current):
        if not len(held.y):
            continue
        if (held.x.shape[1:], held.x.dtype) != learner.example:
            found = f"{held.x.dtype} {tuple(held.x.shape[1:])}"
            raise DamagedError(f"memory has examples of {found}, unlike {learner.example}")
        if int(held.y.max()) >= learner.num_classes or int(held.task.max()) >= len(classes_of):
            raise DamagedError("memory has labels or tasks out of range")
        if not classes_of[held.task, held.y].all():
            raise DamagedError("memory has labels that are not of their tasks")


def _load_method(learner: Learner, state: dict[str, Any], pool: Examples | None) -> None:
    """Take over f and the method's state, which must fit psi's features and what the method does."""
    learner.state = tree_map(lambda t: t.detach().to(learner.device), state["state"])
    if learner.example is None:
        if learner.state:
            raise DamagedError("state is not empty before the first step")
        learner.f = None
        return
    x = _examples_like(learner, pool)
    table = learner.draw_augmentation(0, len(x))
    check_features(learner, x, lambda x: learner.for_training(x, table))
    z = check_features(learner, x, learner.for_testing)
    f = nn.utils.skip_init(nn.Linear, z.shape[1], learner.num_classes, dtype=z.dtype)
    check_layout("f", state["f"], dict(f.named_parameters()))
    f.load_state_dict(state["f"])
    learner.bind(f.to(learner.device))
    with torch.no_grad(), seeded(learner.seed, "probe", 0, learner.device):
        context = learner.task_context()
        layout = learner.algorithm.layout(learner.params, learner.buffers, context, learner.in_task)
    if layout is not None:
        check_layout("state", learner.state, layout)
    elif learner.steps:
        for name, stored in learner.algorithm.storage(learner.params, learner.memory).items():
            check_layout(f"state.{name}", learner.state[name], stored)


def check_finite(learner: Learner) -> None:
    """Refuse weights, features, a memory or the state of a shipped method that are not finite (InputError)."""
    if learner.example is None:
        return
    params, buffers, state = learner.model
    # Nothing is known of the state of other methods.
    state = dict(state) if learner.method in METHODS.values() else {}
    # The buffers of a psi may be infinite on purpose, such as masks; its features and statistics may not.
    networks = [buffers, state.pop("buffers_old", buffers)]
    parts: dict[str, Any] = {"weights": params, "values in its state": state}
    parts["statistics"] = [b for own in networks for name, b in own.items() if name.endswith(STATISTICS)]
    with torch.no_grad(), seeded(learner.seed, "probe", 0, learner.device):
        prepared = learner.for_testing(_examples_like(learner, None))
        if prepared.isfinite().all():
            parts["features"] = [learner.algorithm.net.frozen_features(params, own, prepared) for own in networks]
    if learner.memory is not None:
        parts["examples in memory"] = [learner.memory.examples().x, learner.memory.current().x]
    for name, part in parts.items():
        if not all(bool(tensor.isfinite().all()) for tensor in tree_leaves(part)):
            raise InputError(f"this learner has {name} that are not finite: its training diverged, or it was changed")


def _examples_like(learner: Learner, pool: Examples | None) -> Tensor:
    """A few raw inputs of the shape and dtype that were observed: real ones where there are any, else made up."""
    assert learner.example is not None
    shape, dtype = learner.example
    if pool is not None:
        x = pool.x[:PROBE]
    elif learner.memory is not None and len(learner.memory):
        x = learner.memory.examples().x[:PROBE]
    else:
        g = generator(learner.seed, "probe")
        made_up = torch.rand(2, *shape, generator=g) if dtype.is_floating_point else torch.ones(2, *shape)
        x = made_up.to(learner.device, dtype)
    if (x.shape[1:], x.dtype) != learner.example:
        raise DamagedError(f"like is {dtype} {tuple(shape)}, expected {x.dtype} {tuple(x.shape[1:])}")
    return x
