"""Where things are kept, and how files are written: whole or not at all."""

from __future__ import annotations

import contextlib
import functools
import glob
import hashlib
import os
import platform
import re
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from cclfp.errors import InputError

DAY = 86_400  # seconds


def home() -> Path:
    """``CCLFP_HOME``, or else the platform's directory for user data: the datasets, the default store, checkpoints."""
    chosen = os.environ.get("CCLFP_HOME")
    if chosen is not None:
        return _check_home(chosen)
    import platformdirs  # only needed here, so that training runs where just torch and numpy are installed

    return Path(platformdirs.user_data_dir("cclfp", appauthor=False))


def _check_home(chosen: str) -> Path:
    """The folder that ``CCLFP_HOME`` names: it is there, or can be made. Writers find out whether it can be written."""
    given = f"CCLFP_HOME={chosen!r}"
    if not chosen.strip() or "\0" in chosen:
        raise InputError(f"{given}: expected the path of a folder; unset CCLFP_HOME to use the default")
    try:
        path = Path(chosen).expanduser().absolute()
    except RuntimeError as error:
        user = chosen.partition("/")[0].removeprefix("~")
        raise InputError(f"{given}: there is no user {user} here; expected the path of a folder") from error
    there = next(place for place in (path, *path.parents) if os.path.lexists(place))
    if not there.is_dir():
        raise InputError(f"{given}: expected a folder, but {there} is not one")
    if there != path and not os.access(there, os.W_OK | os.X_OK):
        raise InputError(f"{given}: it does not exist and cannot be made, since {there} may not be written to")
    return path


def chosen_by(path: Path) -> str:
    """For an error about a path under ``CCLFP_HOME``: what chose it. Empty for any other path."""
    chosen = os.environ.get("CCLFP_HOME")
    return f" (CCLFP_HOME={chosen!r})" if chosen is not None and path.is_relative_to(home()) else ""


def write_atomic(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write under a temporary name, fsync and rename: a reader sees the old file or the new, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_stale(path.parent, f".{glob.escape(path.name)}.*.tmp")
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{_here()}{secrets.token_hex(4)}.tmp")
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


def remove_stale(folder: Path, pattern: str = ".*.tmp") -> None:
    """Remove temporary files of :func:`write_atomic` whose processes were killed.

    Their names end in ``.PID-HERE....tmp``. Where HERE is this place, the process is gone or alive for certain. On a
    file system that is shared with other machines or containers nothing tells whether theirs are alive, so their files
    are removed after a day without a write. A file of a living process is never removed.
    """
    for path in folder.glob(pattern):
        named = re.search(r"\.(\d+)-([0-9a-f]{8})[0-9a-f]{8}\.tmp$", path.name)
        with contextlib.suppress(OSError):  # another process removed it first, or it is not ours to remove
            if named is not None and named[2] == _here():
                stale = not _is_alive(int(named[1]))
            else:
                stale = time.time() - path.stat().st_mtime > DAY
            if stale:
                path.unlink()


@functools.cache
def _here() -> str:
    """Eight digits for the place where a process id means one process: this machine since its start, this container."""
    marks = [platform.node()]
    with contextlib.suppress(OSError):  # Linux alone has these
        marks += [Path("/proc/sys/kernel/random/boot_id").read_text("ascii"), str(Path("/proc/self/ns/pid").readlink())]
    return hashlib.sha256(" ".join(marks).encode()).hexdigest()[:8]


def _is_alive(pid: int) -> bool:
    if os.name != "posix":  # elsewhere os.kill would end it
        return True
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # another user's
        pass
    return True
