"""Which psi a run trains: one that ships with the package, or one that a function in a user's file makes."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cclfp.errors import InputError, unknown
from cclfp.nets import BACKBONES
from cclfp.randomness import seeded

Backbone = dict[str, Any]  # {"name": "resnet18", "width": 64} or {"file": ..., "factory": ..., "sha256": ...}


def parse_backbone(text: str) -> Backbone:
    """From ``mlp``, ``resnet18``, ``resnet18:width=16`` or ``FILE.py:factory`` to what a configuration keeps.

    >>> parse_backbone("resnet18:width=16")
    {'name': 'resnet18', 'width': 16}
    """
    file, _, factory = text.rpartition(":")
    if file.endswith(".py"):
        return _file(file, factory)
    if text.endswith(".py"):
        raise InputError(f"backbone {text!r}: expected {text}:NAME, the function in it that makes the network")
    name, _, rest = text.partition(":")
    if name not in BACKBONES:
        raise unknown("backbone", name, [*BACKBONES, "FILE.py:factory"])
    width = BACKBONES[name].width
    if rest:
        option, _, value = rest.partition("=")
        if option != "width" or not value.isascii() or not value.isdecimal() or not 1 <= int(value) <= 4096:
            raise InputError(f"backbone {text!r}: expected {name} or {name}:width=N, with N from 1 to 4096")
        width = int(value)
    return {"name": name, "width": width}


def show_backbone(backbone: Backbone) -> str:
    """The text that :func:`parse_backbone` takes, with a file's name instead of its whole path."""
    if "file" in backbone:
        return f"{Path(backbone['file']).name}:{backbone['factory']}"
    name, width = str(backbone["name"]), backbone["width"]
    return name + ("" if width == BACKBONES[name].width else f":width={width}")


def make_psi(backbone: Backbone, shape: Sequence[int], seed: int) -> nn.Module:
    """The psi of a run on images of a shape (channels, height, width), its weights drawn from the seed."""
    if "file" not in backbone:
        return BACKBONES[backbone["name"]].for_images(shape, backbone["width"], seed)
    path, name = Path(backbone["file"]), backbone["factory"]
    if _read(path)[1] != backbone["sha256"]:
        raise InputError(f"{path} was changed since this run was asked for: run the command again")
    factory = _factory(path, name)
    given = (tuple(shape),) if _takes_shape(factory) else ()
    try:
        with seeded(seed, "initialisation", 0, torch.device("cpu")):
            psi = factory(*given)
    except Exception as error:
        raise InputError(f"{path}: {name}({', '.join(map(str, given))}) failed: {error!r}") from error
    if not isinstance(psi, nn.Module):
        raise InputError(f"{path}: {name} must make a torch.nn.Module, not {type(psi).__name__}")
    return psi


def _file(file: str, factory: str) -> Backbone:
    path = Path(file).expanduser().resolve()
    _factory(path, factory)  # fails now rather than in every worker
    return {"file": str(path), "factory": factory, "sha256": _read(path)[1]}


def _read(path: Path) -> tuple[bytes, str]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"backbone file {path} cannot be read: {error}") from error
    return content, hashlib.sha256(content).hexdigest()


def _factory(path: Path, name: str) -> Callable[..., Any]:
    _, digest = _read(path)
    spec = importlib.util.spec_from_file_location(f"cclfp_backbone_{digest[:16]}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise InputError(f"backbone file {path} cannot be run: {error!r}") from error
    factory = getattr(module, name, None)
    if not callable(factory):
        functions = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise InputError(f"{path} has no function {name!r}; it has: {', '.join(functions) or 'none'}")
    return factory  # type: ignore[no-any-return]


def _takes_shape(factory: Callable[..., Any]) -> bool:
    """Whether it wants the shape of an image: a factory has that one parameter, or none that must be given."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except ValueError:  # some of C's functions tell nothing
        return False
    needed = [p for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return bool(needed)
