"""How the method of a run is named: by its name and, where that is not enough, by the version of its file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cclfp.core.userfiles import is_reference, show_reference

SHOWN = 8  # characters of a file's checksum


def method_labels(configurations: Sequence[Mapping[str, Any]]) -> list[str]:
    """The name of the method of each configuration; ``half@3fa2b1c0`` where several versions have one name.

    >>> files = [{"file": "half.py", "object": "Half", "sha256": letter * 64} for letter in "ab"]
    >>> method_labels([{"method": "er"}, *({"method": "half", "method_file": file} for file in files)])
    ['er', 'half@aaaaaaaa', 'half@bbbbbbbb']
    """
    versions: dict[str, set[str]] = {}
    for values in configurations:
        versions.setdefault(values["method"], set()).add(_version(values))
    return [
        with_version(values) if len(versions[values["method"]]) > 1 else str(values["method"])
        for values in configurations
    ]


def with_version(values: Mapping[str, Any]) -> str:
    """The name of a configuration's method, with the version of its file if it is a user's own."""
    version = _version(values)
    return f"{values['method']}@{version}" if version else str(values["method"])


def is_of_method(values: Mapping[str, Any], wanted: str) -> bool:
    """Whether a configuration is of a method, which is given as ``NAME``, ``NAME@VERSION`` or ``FILE.py:NAME``.

    A file counts by its name, whatever its folder and content.
    """
    if is_reference(wanted):
        file, _, name = wanted.rpartition(":")
        reference = values.get("method_file")
        return reference is not None and show_reference(reference) == f"{Path(file).name}:{name}"
    return wanted in (values["method"], with_version(values))


def _version(values: Mapping[str, Any]) -> str:
    reference = values.get("method_file")
    return "" if reference is None else str(reference["sha256"])[:SHOWN]
