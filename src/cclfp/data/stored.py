"""The stored files of a dataset: ``data/NAME/arrays`` under ``CCLFP_HOME``, written completely or not at all.

The folder has an ``.npy`` file per array and their checksums, and ``about.json`` for a user's own images.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from cclfp.core.files import home, remove_stale, sync_directory, temporary_name, write_atomic
from cclfp.data.archives import MOST_HEADER, read_header
from cclfp.data.source import ARRAYS, Arrays, Source, first_line
from cclfp.errors import DataError

CHECKSUMS = "sums.json"  # array or other file -> sha256 at the time it was stored
ABOUT = "about.json"  # the description of a user's own images
OLD = ".arrays.old."  # how the name of a folder begins whose arrays are being replaced


def arrays_folder(name: str) -> Path:
    return home() / "data" / name / "arrays"


@contextlib.contextmanager
def lock(name: str) -> Iterator[None]:
    """Hold the lock of a dataset while its stored files are changed."""
    target = arrays_folder(name)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"datasets cannot be stored in {target.parent}: {error}. Choose another folder with CCLFP_HOME"
        ) from error
    with os_error_as_data_error(name), FileLock(target.parent / ".lock"):
        _take_back_old(target)
        yield


def restore(name: str) -> None:
    """Take back the old arrays where a process was killed between the two renames that replace them."""
    target = arrays_folder(name)
    if not target.exists() and any(target.parent.glob(f"{OLD}*")):
        with lock(name):  # which the process holds that is replacing them, if there is one
            pass


def _take_back_old(target: Path) -> None:
    old = next(target.parent.glob(f"{OLD}*"), None)
    if old is not None and not target.exists():
        old.replace(target)


def write(source: Source, arrays: Arrays, more: dict[str, Any]) -> None:
    """Check arrays and write them, with more JSON files and all checksums, in the place of any old ones."""
    texts = {file_name: json.dumps(fact, indent=1).encode() for file_name, fact in more.items()}
    checksums = source.check(arrays) | {name: hashlib.sha256(text).hexdigest() for name, text in texts.items()}
    texts[CHECKSUMS] = json.dumps(checksums, indent=1).encode()
    target = arrays_folder(source.name)
    remove_stale(target.parent, r"arrays|arrays\.old", folders=True)
    temporary, old = (target.with_name(temporary_name(name)) for name in ("arrays", "arrays.old"))
    temporary.mkdir()
    try:
        for array in ARRAYS:
            values = np.ascontiguousarray(arrays[array])
            write_atomic(temporary / f"{array}.npy", functools.partial(np.save, arr=values))
        for file_name, text in texts.items():
            write_atomic(temporary / file_name, lambda file, text=text: file.write(text))  # type: ignore[misc]
        if target.exists():
            target.replace(old)  # restore() takes it back if this process is killed before the next line
        temporary.replace(target)
        sync_directory(target.parent)
    finally:
        _take_back_old(target)
        for folder in (temporary, old):
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def os_error_as_data_error(name: str) -> Iterator[None]:
    """Turn an OSError into a DataError, since the user can fix a file that cannot be read or written."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{name}: {error}") from error


def damaged(name: str, why: object) -> DataError:
    """The error for stored files that cannot be used. Its message says what to do."""
    own = (arrays_folder(name) / ABOUT).exists()
    again = "import the images again with --images PATH" if own else f"run: cclfp data fetch {name}"
    return DataError(f"the stored {name} cannot be read ({why}). Remove {arrays_folder(name)} and {again}")


def read_json(name: str, file: str) -> Any:
    """Read a JSON file next to the arrays, and compare it with its checksum, which earlier versions did not store."""
    path = arrays_folder(name) / file
    checksum = None if file == CHECKSUMS else (read_checksums(name) or {}).get(file)
    try:
        content = path.read_bytes()
        if checksum is not None and hashlib.sha256(content).hexdigest() != checksum:
            raise damaged(name, f"{file} has changed since it was stored")
        return json.loads(content)
    except DataError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise damaged(name, f"{file} is not JSON: {first_line(error)}") from error


def read_checksums(name: str) -> dict[str, str] | None:
    """The checksums of the stored files; None if the first version stored them, without checksums."""
    if not (arrays_folder(name) / CHECKSUMS).exists():
        return None
    checksums = read_json(name, CHECKSUMS)
    if not isinstance(checksums, dict) or not all(isinstance(value, str) for value in checksums.values()):
        raise damaged(name, f"{CHECKSUMS} does not hold checksums")
    return checksums


def map_arrays(name: str) -> Arrays:
    """The stored arrays, mapped into memory copy-on-write: pages are read when accessed, and files never change."""
    arrays: Arrays = {}
    for array in ARRAYS:
        path = arrays_folder(name) / f"{array}.npy"
        try:
            with path.open("rb") as file:
                header, size = read_header(file), path.stat().st_size
            if size != header.offset + header.nbytes:
                raise DataError(
                    f"{header.dtype} of shape {header.shape} does not match the file size of {size:,} bytes"
                )
            arrays[array] = np.asarray(np.lib.format.open_memmap(path, mode="c", max_header_size=MOST_HEADER))
        except (OSError, ValueError, OverflowError) as error:
            raise damaged(name, f"{path.name}: {first_line(error)}") from error
    return arrays
