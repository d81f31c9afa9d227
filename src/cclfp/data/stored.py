"""The stored files of a dataset under ``CCLFP_HOME``, which are checked when they are read."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from cclfp.core.files import home
from cclfp.data.npy import read_header
from cclfp.data.source import ARRAYS, Arrays, first_line
from cclfp.errors import DataError, InputError

CHECKSUMS = "sums.json"  # array or other file -> sha256 at the time it was stored
ABOUT = "about.json"  # the description of a user's own images


def dataset_folder(name: str) -> Path:
    return home() / "data" / name


def arrays_folder(name: str) -> Path:
    return dataset_folder(name) / "arrays"


def damaged(name: str, why: object) -> DataError:
    """The error for stored files that cannot be used. Its message says what to do."""
    own = (arrays_folder(name) / ABOUT).exists()
    again = "import the images again with --images PATH" if own else f"run: cclfp data fetch {name}"
    return DataError(f"the stored {name} cannot be read ({why}). Remove {arrays_folder(name)} and {again}")


def read_checksums(name: str) -> dict[str, str] | None:
    """The checksums of the stored files; None if the first version stored them, without checksums."""
    path = arrays_folder(name) / CHECKSUMS
    if not path.exists():
        return None
    checksums = _parse(name, path, _content(name, path))
    if not isinstance(checksums, dict) or not all(isinstance(value, str) for value in checksums.values()):
        raise damaged(name, f"{path.name} does not hold checksums")
    return checksums


def read_json(name: str, file: str) -> Any:
    """Read a JSON file next to the arrays, and compare it with its checksum, which earlier versions did not store."""
    path = arrays_folder(name) / file
    content = _content(name, path)
    checksum = (read_checksums(name) or {}).get(file)
    if checksum is not None and hashlib.sha256(content).hexdigest() != checksum:
        raise damaged(name, f"{file} has changed since it was stored")
    return _parse(name, path, content)


def map_arrays(name: str) -> Arrays:
    """The stored arrays, mapped into memory copy-on-write: pages are read when accessed, and files never change."""
    arrays: Arrays = {}
    for array in ARRAYS:
        path = arrays_folder(name) / f"{array}.npy"
        try:
            with path.open("rb") as file:
                header = read_header(file)
                size = file.seek(0, 2)
                if size != header.offset + header.nbytes or header.dtype.hasobject:
                    raise InputError(
                        f"{header.dtype} of shape {header.shape} does not match the file size of {size:,} bytes"
                    )
                values = np.memmap(file, np.uint8, "c", header.offset, (header.nbytes,))
            arrays[array] = header.arrange(values)
        except (OSError, ValueError, OverflowError) as error:
            raise damaged(name, f"{path.name}: {first_line(error)}") from error
    return arrays


def _content(name: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise damaged(name, error) from error


def _parse(name: str, path: Path, content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise damaged(name, f"{path.name} is not JSON: {first_line(error)}") from error
