"""Learners from files. Nothing in a file is executed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from cclfp.core.files import read_tensors
from cclfp.core.layouts import check_value
from cclfp.errors import DamagedError, InputError, shortage
from cclfp.learner.learner import Learner
from cclfp.learner.saving import FORMAT, check_finite, load_learner_state
from cclfp.methods import METHODS, Method, get_method
from cclfp.nets import build_backbone
from cclfp.nets.backbones import make_psi, parse_backbone
from cclfp.transforms import Augmentation, Transform, build_transform

# The errors, besides InputError, that reading the state of a damaged file can raise.
DAMAGED = (KeyError, TypeError, AttributeError, IndexError, RuntimeError, ValueError, ArithmeticError)
NEEDED: dict[str, type[Any]] = {
    "method": str,
    "hyper": dict,
    "num_classes": int,
    "num_tasks": int,
    "scenario": str,
    "seed": int,
    "replay": int,
    "memory_size": int,
}
NEEDED_CODE = ("backbone", "transform", "predict_transform", "augment")
MAX_MEMORY = 10**9  # examples


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
    if missing := [name for name in (*NEEDED, *NEEDED_CODE) if name not in state]:
        raise InputError(f"{path} is not a whole learner: it lacks {', '.join(missing)}")
    with _reading(path):
        for name, kind in NEEDED.items():
            if name != "num_tasks" or state[name] is not None:
                check_value(name, state[name], kind)
        check_value("memory_size", state["memory_size"], int, 0, MAX_MEMORY)
        psi = psi if isinstance(psi, nn.Module) else _backbone(state, psi)
        same = predict_transform is None and state["predict_transform"] == "same"
        transform = _transform("transform", transform, state["transform"])
        if not same:
            predict_transform = _transform("predict_transform", predict_transform, state["predict_transform"])
        kind = _method(method, state["method"])
        learner = Learner(
            kind,
            psi,
            hyper={**kind.earlier_values(state), **state["hyper"]},  # the file may be older than a hyperparameter
            num_classes=state["num_classes"],
            scenario=state["scenario"],
            seed=state["seed"],
            tasks=None,
            num_tasks=state["num_tasks"],
            memory=state["memory_size"],
            replay=state["replay"],
            transform=transform,
            predict_transform=transform if same else predict_transform,
            augment=_transform("augment", augment, state["augment"]),
            device=device,
        )
        load_learner_state(learner, state)
        check_finite(learner)
    return learner


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Add the name of the file to errors about what it holds."""
    try:
        yield
    except DamagedError as error:
        raise DamagedError(f"{path} is damaged: {error}") from error
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except DAMAGED as error:
        if (reason := shortage(error)) is not None:
            raise InputError(f"{path} cannot be loaded: {reason}") from error
        raise DamagedError(f"{path} is damaged: {error!r}") from error


def _method(given: type[Method] | str | None, saved: str) -> type[Method]:
    if given is None and saved not in METHODS:
        raise InputError(
            f"it is a learner of {saved}, which does not ship with cclfp: give the class, load(path, method=...) or "
            "--method FILE.py:NAME"
        )
    method = get_method(saved if given is None else given)
    if method.name != saved:
        raise InputError(f"it is a learner of {saved}, not of {method.name}")
    return method


def _backbone(state: dict[str, Any], given: str | None) -> nn.Module:
    """The psi that a file describes, or that ``given`` names: its function gets the shape of the learner's inputs."""
    if given is not None:
        check_value("like", state["like"], list)
        return make_psi(parse_backbone(given), state["like"][0], state["seed"])
    backbone = state["backbone"]
    if backbone is None:
        raise InputError(
            "it was saved with a psi of your own: give it again, load(path, psi=...) or --backbone FILE.py:NAME"
        )
    check_value("psi", state["psi"], dict)
    lengths = {length for tensor in state["psi"].values() for length in tensor.shape}
    check_value("backbone", backbone, dict)
    numbers = [value for name, value in backbone.items() if name != "name"]
    if unknown := set(tree_leaves(numbers)) - lengths:  # before a network of any size is built
        raise DamagedError(f"backbone has {unknown}, which no tensor of psi has as a length")
    return build_backbone(backbone)


def _transform(name: str, given: Any, saved: Any) -> Any:
    if given is not None or saved is None:
        return given
    if saved == "custom":
        raise InputError(f"it was saved with a {name} of your own: give it again, load(path, {name}=...)")
    check_value(name, saved, dict)
    return build_transform(saved)
