"""The psi of a run: one that ships with the package, or one that a function in a user's file creates."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from cclfp.core.randomness import seeded
from cclfp.core.userfiles import is_reference, refer, resolve, running, show_reference
from cclfp.errors import InputError, unknown
from cclfp.nets.modules import BACKBONES

Backbone = dict[str, Any]  # {"name": "resnet18", "width": 64}, or a reference to a function in a file


def parse_backbone(text: str) -> Backbone:
    """Parse ``mlp``, ``resnet18``, ``resnet18:width=16`` or ``FILE.py:NAME`` into the value that configurations store.

    >>> parse_backbone("resnet18:width=16")
    {'name': 'resnet18', 'width': 16}
    """
    if not isinstance(text, str):
        raise InputError(f"backbone={text!r}: expected mlp, resnet18 or FILE.py:NAME (cclfp.make takes any module)")
    if is_reference(text):
        reference = refer("backbone", text)
        resolve("backbone", reference)  # so that an error occurs now rather than in every worker
        return {**reference}
    name, _, rest = text.partition(":")
    if name not in BACKBONES:
        raise unknown("backbone", name, [*BACKBONES, "FILE.py:NAME"])
    width = BACKBONES[name].width
    if rest:
        option, _, value = rest.partition("=")
        if option != "width" or not value.isascii() or not value.isdecimal() or not 1 <= int(value) <= 4096:
            raise InputError(f"backbone {text!r}: expected {name} or {name}:width=N, with N from 1 to 4096")
        width = int(value)
    return {"name": name, "width": width}


def show_backbone(backbone: Backbone) -> str:
    """The text that :func:`parse_backbone` accepts, with the name of a file instead of its path."""
    if "file" in backbone:
        return show_reference(backbone)
    name, width = str(backbone["name"]), backbone["width"]
    return name + ("" if width == BACKBONES[name].width else f":width={width}")


def make_psi(backbone: Backbone, shape: Sequence[int], seed: int) -> nn.Module:
    """Create the psi of a run for images of a shape (channels, height, width), with weights drawn from the seed."""
    if "file" not in backbone:
        return BACKBONES[backbone["name"]].for_images(shape, backbone["width"], seed)
    factory, shown = resolve("backbone", backbone), show_backbone(backbone)
    given = (tuple(shape),) if _takes_shape(factory) else ()
    call = f"{shown}({', '.join(map(str, given))}) failed"
    with running(call), seeded(seed, "initialisation", 0, torch.device("cpu")):
        psi = factory(*given)
    if not isinstance(psi, nn.Module):
        raise InputError(f"{shown} must return a torch.nn.Module, not {type(psi).__name__}")
    return psi


def is_convolutional(backbone: Backbone, shape: Sequence[int]) -> bool:
    """Whether a backbone has a convolution. It is created once to find out.

    >>> is_convolutional(parse_backbone("mlp"), (3, 9, 9)), is_convolutional(parse_backbone("resnet18"), (3, 9, 9))
    (False, True)
    """
    return any(isinstance(module, nn.Conv2d) for module in make_psi(backbone, shape, seed=0).modules())


def _takes_shape(factory: Callable[..., Any]) -> bool:
    """Whether the function has a positional parameter, which then receives the shape of an image."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except ValueError:  # some functions written in C have no signature
        return False
    return any(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL) for p in parameters)
