"""Learners in files. Nothing in a file is executed.

A file has checksums of all that it holds, so what is read is what was written. A learner is built from it as
:func:`cclfp.make` builds one.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cclfp._version import __version__
from cclfp.core import trees
from cclfp.core.arguments import check_names
from cclfp.core.files import check_output, read_tensors, write_tensors
from cclfp.core.memory import Examples
from cclfp.core.randomness import generator
from cclfp.core.scenarios import ClassMask
from cclfp.errors import DamagedError, InputError, shortage, unknown
from cclfp.learner.checks import check_features, not_finite
from cclfp.learner.learner import Learner
from cclfp.methods import METHODS, Method, get_method
from cclfp.nets.backbones import make_psi, parse_backbone
from cclfp.nets.modules import BACKBONES, linear
from cclfp.transforms import TRANSFORMS, Augmentation, Transform

FORMAT = "cclfp learner 2"
# Attributes of a learner, by their names in files.
SETTINGS = "num_classes", "num_tasks", "scenario", "seed", "replay"
PROGRESS = "steps", "tasks_done", "in_task"
SHIPPED: dict[str, Any] = {**BACKBONES, **TRANSFORMS}  # what a file describes, by name
# The errors, besides InputError, that building something from a file of another program can raise.
DAMAGED = (KeyError, TypeError, AttributeError, IndexError, RuntimeError, ValueError, ArithmeticError)


def save(learner: Learner, path: Path, *, force: bool = False) -> None:
    """Write a learner's file, atomically. With ``force`` it may replace a file of any kind."""
    check_output(path, lambda head: head.startswith(b"PK") and b"cclfp learner " in head, force=force)  # of any version
    write_tensors(path, {"format": FORMAT, "cclfp": __version__, **learner_state(learner)})


def learner_state(learner: Learner, *, copies: bool = True) -> dict[str, Any]:
    """What a file holds. With ``copies=False`` the memory is rows of its stream, where it has one."""
    memory, psi = learner.memory, describe(learner.psi)
    is_same = learner.predict_transform is learner.transform
    return {
        "method": learner.method.name,
        "hyper": dataclasses.asdict(learner.hyper),
        **{name: getattr(learner, name) for name in SETTINGS},
        "memory_size": 0 if memory is None else memory.size,
        "backbone": None if psi == "custom" else psi,
        "transform": describe(learner.transform),
        "predict_transform": "same" if is_same else describe(learner.predict_transform),
        "augment": describe(learner.augment),
        "psi": _psi_tensors(learner.psi),
        "psi_mode": learner.psi_mode,
        "autocast": learner.autocast,
        "f": None if learner.f is None else learner.f.state_dict(),
        "state": learner.state,
        "memory": None if memory is None else memory.state_dict(copies=copies),
        "classes": learner.mask.state_dict(),
        "class_names": None if learner.classes is None else list(learner.classes),
        "like": None if learner.example is None else [list(learner.example[0]), learner.example[1]],
        **{name: getattr(learner, name) for name in PROGRESS},
    }


def load_learner_state(learner: Learner, state: dict[str, Any], pool: Examples | None = None) -> None:
    """Take over what :func:`learner_state` gave; ``pool`` is the stream's examples where the memory is rows of it."""
    _check_psi(learner.psi, state["psi"])
    learner.psi_mode = state["psi_mode"]
    learner.autocast = state.get("autocast", learner.autocast)  # which files of earlier versions do not have
    for name in PROGRESS:
        setattr(learner, name, state[name])
    learner.mask = ClassMask(learner.scenario, **state["classes"]).to(learner.device)
    names = state.get("class_names")  # nor these
    learner.classes = None if names is None else check_names(names, learner.num_classes)
    if learner.memory is not None:
        learner.memory.load_state_dict(state["memory"], pool)
    learner.state = trees.map_tree(lambda t: t.detach().to(learner.device, copy=True), state["state"])
    learner.f = learner.example = None
    if state["f"] is not None:
        weight = state["f"]["weight"]
        f = linear(weight.shape[1], learner.num_classes, generator(learner.seed, "classifier"), weight.dtype)
        f.load_state_dict(state["f"])
        learner.bind(f.to(learner.device))
        shape, dtype = state["like"]
        learner.example = torch.Size(shape), dtype
    with torch.no_grad():
        for name, tensor in _psi_tensors(learner.psi).items():
            tensor.copy_(state["psi"][name])


def _psi_tensors(psi: nn.Module) -> dict[str, Tensor]:
    """Every parameter and buffer of psi, including those that its state_dict leaves out."""
    return {**dict(psi.named_parameters()), **dict(psi.named_buffers())}


def _check_psi(psi: nn.Module, saved: dict[str, Tensor]) -> None:
    """InputError if psi's tensors have other names, shapes or dtypes than the saved ones."""
    ours = _psi_tensors(psi)
    there, here = ({name: f"{t.dtype} {tuple(t.shape)}" for name, t in tensors.items()} for tensors in (saved, ours))
    for name in [*saved, *ours]:
        was, now = there.get(name, "missing"), here.get(name, "missing")
        if was != now:
            raise InputError(f"this psi is not the one that was saved: {name} was {was} and is now {now}")


def load(
    path: str | Path,
    *,
    psi: nn.Module | str | None = None,
    transform: Transform | None = None,
    predict_transform: Transform | None = None,
    augment: Augmentation | None = None,
    method: type[Method] | str | None = None,
    device: str | torch.device | None = None,
) -> Learner:
    """A learner from a file that ``learner.save`` wrote. It continues as if it had never stopped.

    The file holds tensors and plain values; nothing in it is executed. Your own ``psi`` (of the same architecture; its
    weights are overwritten), ``transform``, ``augment`` and ``method`` are code, so you give them again. Those that
    ship with the package are rebuilt. ``psi`` and ``method`` may be given as ``"FILE.py:NAME"``, as to ``cclfp run``.

    >>> import tempfile
    >>> from cclfp import make
    >>> file = Path(tempfile.mkdtemp()) / "learner.ckpt"
    >>> learner = make("er", psi=nn.Flatten(), num_classes=2)
    >>> loss = learner.observe(torch.randn(4, 3), torch.tensor([0, 1, 1, 0]))
    >>> learner.save(file)
    >>> load(file, psi=nn.Flatten())
    Learner(er: lr=0.1; class scenario, 1 steps, memory 4/200)
    """
    path = Path(path)
    state = read_tensors(path, FORMAT)
    try:
        kind = _method(method, state["method"])
        if isinstance(psi, str):  # its function gets the shape of the learner's inputs
            psi = make_psi(parse_backbone(psi), state["like"][0], state["seed"])
        own = {"transform": transform, "predict_transform": predict_transform, "augment": augment}
        arguments = {name: _given_or_saved(name, given, state[name]) for name, given in own.items()}
        arguments["psi"] = _given_or_saved("psi", psi, state["backbone"] or "custom")
        arguments |= {name: state[name] for name in SETTINGS} | {"memory": state["memory_size"], "device": device}
        hyper = {**kind.earlier_values(state), **state["hyper"]}  # the file may be older than a hyperparameter
        learner = Learner(kind, **arguments, **hyper)
        if state["f"] is not None:
            trained = [state["psi"][name] for name, _ in learner.psi.named_parameters() if name in state["psi"]]
            if not_finite([*trained, *state["f"].values()]):  # buffers and the method's state may be so on purpose
                raise InputError("this learner's weights are not finite: its training diverged")
            shape, dtype = state["like"]
            check_features(learner, torch.zeros(2, *shape, dtype=dtype, device=learner.device))
        load_learner_state(learner, state)
        return learner
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except DAMAGED as error:
        if (reason := shortage(error)) is not None:
            raise InputError(f"{path} cannot be loaded: {reason}") from error
        raise DamagedError(f"{path} is damaged: {error!r}") from error


def _method(given: type[Method] | str | None, saved: str) -> type[Method]:
    if given is None and saved not in METHODS:
        text = f"it is a learner of {saved}, which does not ship with cclfp: give the class, load(path, method=...)"
        raise InputError(f"{text} or --method FILE.py:NAME")
    method = get_method(saved if given is None else given)
    if method.name != saved:
        raise InputError(f"it is a learner of {saved}, not of {method.name}")
    return method


def _given_or_saved(name: str, given: Any, saved: Any) -> Any:
    """What the user gives again or, if it ships with the package, what the file describes."""
    if given is not None or saved is None or saved == "same":
        return given
    if saved == "custom":
        option = " or --backbone FILE.py:NAME" if name == "psi" else ""
        raise InputError(f"it was saved with a {name} of your own: give it again, load(path, {name}=...){option}")
    return rebuild(saved)


def describe(thing: Any) -> Any:
    """What a file says of a backbone or a transform: how to make it again; "custom" for a user's, None for none."""
    for name, kind in SHIPPED.items():
        if type(thing) is kind:
            return {"name": name, **thing.arguments}
    return None if thing is None else "custom"


def rebuild(description: dict[str, Any]) -> Any:
    """The backbone or transform that a file describes."""
    arguments = dict(description)
    name = arguments.pop("name")
    if name not in SHIPPED:
        raise unknown("backbone or transform", name, SHIPPED)
    return SHIPPED[name](**arguments)
