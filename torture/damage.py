"""Ways to damage a file: changed bytes and changed values."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

SCRIPT = "<script>alert(1)</script>"


def _flip(random: Random, content: bytearray) -> None:
    for _ in range(random.choice([1, 1, 1, 4])):
        content[random.randrange(len(content))] ^= 1 << random.randrange(8)


def _overwrite(random: Random, content: bytearray, value: Callable[[], int]) -> None:
    at = random.randrange(len(content))
    for i in range(at, min(len(content), at + random.choice([1, 16, 512, 4096]))):
        content[i] = value()


def _cut(random: Random, content: bytearray) -> None:
    del content[random.randrange(len(content)) :]


def _remove(random: Random, content: bytearray) -> None:
    at = random.randrange(len(content))
    del content[at : at + random.choice([1, 3, 64, 1000])]


def _repeat(random: Random, content: bytearray) -> None:
    at = random.randrange(len(content))
    content[at:at] = content[at : at + random.choice([1, 3, 64, 1000])]


def _append(random: Random, content: bytearray) -> None:
    content += random.randbytes(random.choice([1, 20, 2000]))


DAMAGES: dict[str, Callable[[Random, bytearray], None]] = {
    "flipped bits": _flip,
    "zeroed range": lambda random, content: _overwrite(random, content, lambda: 0),
    "random range": lambda random, content: _overwrite(random, content, lambda: random.randrange(256)),
    "truncated": _cut,
    "removed range": _remove,
    "repeated range": _repeat,
    "appended bytes": _append,
}


def damage_bytes(random: Random, path: Path) -> tuple[str, bytes]:
    """The kind of damage, and the damaged content of a file, which always differs from the original."""
    original = path.read_bytes()
    while True:
        name = random.choice(["flipped bits", *DAMAGES])
        content = bytearray(original)
        DAMAGES[name](random, content)
        if content != original:
            return name, bytes(content)


# -- values ---------------------------------------------------------------------------------------------------------


def nested(depth: int) -> Any:
    """A list in a list in a list ..."""
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


NUMBERS = (True, -1, 0, 3, 0.5, 1e300, -1e-320, 2**63, 10**400, math.nan, math.inf)
TEXTS = ("", "x", SCRIPT, "\x00\u2028\u202e", "../../../etc/passwd", "a" * 100_000, "evil.py:Evil")
ODD: tuple[Any, ...] = (*NUMBERS, *TEXTS, None, [], [None], {}, {"": 1}, nested(200))


def forge_value(random: Random, original: Any) -> tuple[str, Any]:
    """The kind of change, and a copy of nested values with one of them changed, removed or swapped with another."""
    changed = copy.deepcopy(original)
    places = _places(changed)
    container, key = random.choice(places)
    how = random.choice(["replaced value", "replaced value", "altered value", "missing value", "swapped values"])
    if how == "missing value":
        del container[key]
    elif how == "swapped values":
        other, at = random.choice(places)
        value, kept = copy.deepcopy(other[at]), copy.deepcopy(container[key])
        container[key] = value
        if random.random() < 0.5 and at in (other if isinstance(other, dict) else range(len(other))):
            other[at] = kept
    elif how == "altered value":
        container[key] = _alter(random, container[key])
    else:
        container[key] = copy.deepcopy(random.choice(ODD))
    return how, changed


def _places(value: Any) -> list[tuple[Any, Any]]:
    """All places in nested dictionaries and lists, as pairs of a container and a key."""
    if not isinstance(value, dict | list):
        return []
    keys = list(value) if isinstance(value, dict) else range(len(value))
    return [place for key in keys for place in [(value, key), *_places(value[key])]]


def _alter(random: Random, value: Any) -> Any:
    """Another value, usually of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return random.choice([-value, value + 1, value * 1000, float(value), int(value), str(value)])
    if isinstance(value, str):
        return random.choice([value + "x", value[1:], value.upper(), SCRIPT + value])
    if isinstance(value, list | tuple):
        return random.choice([[*value, *value], list(value)[::-1], list(value)[:-1], [list(value)]])
    if isinstance(value, dict):
        return {**value, SCRIPT: 1}
    return [value]
