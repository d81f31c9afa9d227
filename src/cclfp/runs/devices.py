"""Where runs are trained: the CPU, or GPUs chosen by number."""

from __future__ import annotations

import os

import torch

from cclfp.core.arguments import check_device
from cclfp.errors import InputError

EXPECTED = "expected auto, cpu, cuda, or GPUs by number such as cuda:0,2"


def pick_device(wanted: str) -> str:
    """The kind of device, cpu or cuda; ``auto`` is cuda where there is one. Wrong values are refused."""
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if wanted in ("cpu", "cuda"):
        return check_device(wanted).type
    pick_cards(wanted)
    return "cuda"


def pick_cards(wanted: str) -> list[int]:
    """The numbers of the GPUs to train on: all that this process sees, or those that are named; none for the CPU."""
    if wanted in ("auto", "cpu", "cuda"):
        return list(range(torch.cuda.device_count())) if pick_device(wanted) == "cuda" else []
    kind, colon, numbers = str(wanted).partition(":")
    parts = numbers.split(",")
    if kind != "cuda" or not colon or not all(part.isascii() and part.isdigit() for part in parts):
        raise InputError(f"device {wanted!r}: {EXPECTED}")
    cards, count = [int(part) for part in parts], torch.cuda.device_count()
    if len(set(cards)) < len(cards):
        raise InputError(f"device {wanted!r}: a GPU is named twice")
    if missing := [card for card in cards if card >= count]:
        found = f"finds {count}, numbered from 0" if count else "finds no CUDA device on this machine"
        raise InputError(f"device {wanted!r}: there is no GPU {missing[0]}, torch {found}")
    return cards


def pick_one_device(wanted: str) -> str:
    """The device of a single learner: cpu, cuda, or a GPU by number such as cuda:2."""
    if wanted in ("auto", "cpu", "cuda"):
        return pick_device(wanted)
    card, *others = pick_cards(wanted)
    if others:
        raise InputError(f"device {wanted!r}: a learner is on one device, expected one GPU")
    return f"cuda:{card}"


def visible_as(card: int) -> str:
    """The value of ``CUDA_VISIBLE_DEVICES`` with which another process sees this GPU alone.

    The variable may already restrict what this process sees, and its entries may be names.
    """
    visible = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return visible[card] if visible else str(card)
