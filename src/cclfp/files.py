"""Where things are kept, and how files are written: whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


def home() -> Path:
    """``CCLFP_HOME``, or else the platform's directory for user data: the datasets, the default store, checkpoints."""
    if chosen := os.environ.get("CCLFP_HOME"):
        return Path(chosen).expanduser()
    import platformdirs  # only needed here, so that training runs where just torch and numpy are installed

    return Path(platformdirs.user_data_dir("cclfp", appauthor=False))


def write_atomic(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write under a temporary name, fsync and rename: a reader sees the old file or the new, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None and error.filename is None:
            error.filename = str(path)  # a write that fails does not say where
        raise
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make a rename inside ``path`` survive a power cut, where the platform can."""
    if os.name == "posix":
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
