"""Learners from files. Nothing in a file is executed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from cclfp.errors import InputError
from cclfp.learner import FORMAT, Learner
from cclfp.methods import METHODS, Method, get_method
from cclfp.nets import build_backbone
from cclfp.transforms import Augmentation, Transform, build_transform

# What reading the state of a file that is not as it was written can raise, besides InputError.
DAMAGED = (KeyError, TypeError, AttributeError, IndexError, RuntimeError)
NEEDED = ("method", "hyper", "num_classes", "num_tasks", "scenario", "seed", "replay", "memory_size")
NEEDED_CODE = ("backbone", "transform", "predict_transform", "augment")


def load(
    path: str | Path,
    *,
    psi: nn.Module | None = None,
    transform: Transform | None = None,
    predict_transform: Transform | None = None,
    augment: Augmentation | None = None,
    method: type[Method] | str | None = None,
    device: str | torch.device | None = None,
) -> Learner:
    """A learner from a file that ``learner.save`` wrote; it goes on as if it had never stopped.

    The file holds tensors and plain values; nothing in it is executed. ``psi`` (same architecture; its weights are
    overwritten), ``transform``, ``augment`` and a ``method`` of your own are code, so they are given again; those that
    ship with the package are rebuilt by themselves.

    >>> import tempfile
    >>> from cclfp import make
    >>> file = Path(tempfile.mkdtemp()) / "learner.ckpt"
    >>> learner = make("er", psi=nn.Flatten(), num_classes=2)
    >>> learner.observe(torch.randn(4, 3), torch.tensor([0, 1, 1, 0]))
    >>> learner.save(file)
    >>> load(file, psi=nn.Flatten())
    Learner(er: lr=0.1; class scenario, 1 steps, memory 4/200)
    """
    path = Path(path)
    state = read_tensors(path, FORMAT)
    if missing := [name for name in NEEDED + NEEDED_CODE if name not in state]:
        raise InputError(f"{path} is not a whole learner: it lacks {', '.join(missing)}")
    if psi is None:
        if state["backbone"] is None:
            raise InputError(f"{path} was saved with a psi of your own: give the module again, load(path, psi=...)")
        psi = build_backbone(state["backbone"])
    if predict_transform is None and state["predict_transform"] == "same":
        predict_transform = transform = _transform(path, "transform", transform, state["transform"])
    else:
        transform = _transform(path, "transform", transform, state["transform"])
        predict_transform = _transform(path, "predict_transform", predict_transform, state["predict_transform"])
    augment = _transform(path, "augment", augment, state["augment"])
    if method is None and state["method"] not in METHODS:
        raise InputError(
            f"{path} is a learner of {state['method']}, which does not ship with cclfp: give the class, "
            "load(path, method=...)"
        )
    method = get_method(state["method"] if method is None else method)
    if method.name != state["method"]:
        raise InputError(f"{path} is a learner of {state['method']}, not of {method.name}")
    learner = Learner(
        method,
        psi,
        state["num_classes"],
        memory=state["memory_size"],
        seed=state["seed"],
        scenario=state["scenario"],
        tasks=None,
        num_tasks=state["num_tasks"],
        replay=state["replay"],
        device=device,
        hyper=state["hyper"],
        transform=transform,
        predict_transform=predict_transform,
        augment=augment,
    )
    try:
        learner.load_state_dict(state)
    except DAMAGED as error:
        raise InputError(f"{path} is damaged: {error!r}") from error
    return learner


def _transform(path: Path, name: str, given: Any, saved: Any) -> Any:
    if given is not None or saved is None:
        return given
    if saved == "custom":
        raise InputError(f"{path} was saved with a {name} of your own: give it again, load(path, {name}=...)")
    return build_transform(saved)


def read_tensors(path: Path, kind: str) -> dict[str, Any]:
    """Read a file of tensors and plain values, without executing anything in it."""
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except PermissionError as error:
        raise InputError(f"{path} may not be read: {error}") from error
    except Exception as error:
        what = kind.rsplit(" ", 1)[0]
        raise InputError(
            f"{path} cannot be read as a {what}: it is damaged, or holds more than tensors and plain values"
        ) from error
    if not isinstance(state, dict) or state.get("format") != kind:
        found = state.get("format") if isinstance(state, dict) else type(state).__name__
        raise InputError(f"{path} is not a {kind!r} file (it says {found!r})")
    return state
