"""Where files are kept, and how they are written: completely or not at all."""

from __future__ import annotations

import contextlib
import functools
import glob
import hashlib
import os
import platform
import re
import secrets
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from cclfp.errors import InputError

DAY = 86_400  # seconds


def home() -> Path:
    """The folder of datasets, checkpoints and the default store: ``CCLFP_HOME``, or the platform's user data folder."""
    chosen = os.environ.get("CCLFP_HOME")
    if chosen is not None:
        return _check_home(chosen)
    import platformdirs  # imported here, so that training needs only torch and numpy

    return Path(platformdirs.user_data_dir("cclfp", appauthor=False))


def _check_home(chosen: str) -> Path:
    """The folder that ``CCLFP_HOME`` names. It exists or can be created; whether it is writable shows when writing."""
    given = f"CCLFP_HOME={chosen!r}"
    if not chosen.strip() or "\0" in chosen:
        raise InputError(f"{given}: expected the path of a folder; unset CCLFP_HOME to use the default")
    try:
        path = Path(chosen).expanduser().absolute()
    except RuntimeError as error:
        user = chosen.partition("/")[0].removeprefix("~")
        raise InputError(f"{given}: there is no user {user} on this machine; expected the path of a folder") from error
    there = next(place for place in (path, *path.parents) if os.path.lexists(place))
    if not there.is_dir():
        raise InputError(f"{given}: expected a folder, but {there} is not one")
    if there != path and not os.access(there, os.W_OK | os.X_OK):
        raise InputError(f"{given}: it does not exist and cannot be created, because {there} is not writable")
    return path


def chosen_by(path: Path) -> str:
    """A note for errors about a path: the value of ``CCLFP_HOME`` if the path is below it, otherwise empty."""
    chosen = os.environ.get("CCLFP_HOME")
    return f" (CCLFP_HOME={chosen!r})" if chosen is not None and path.is_relative_to(home()) else ""


def write_atomic(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write to a temporary file, fsync it and rename it: a reader sees the old file or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_stale(path.parent, f".{glob.escape(path.name)}.*.tmp")
    temporary = path.with_name(temporary_name(path.name))
    try:
        with temporary.open("xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None and error.filename is None:
            error.filename = str(path)  # an error of write() has no filename
        raise
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make a rename inside ``path`` survive a power failure, where the platform supports it."""
    if os.name == "posix":
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def temporary_name(name: str) -> str:
    """A name for a temporary file or folder of this process: ``.NAME.PID-HOST....tmp``, see :func:`remove_stale`."""
    return f".{name}.{os.getpid()}-{_host_id()}{secrets.token_hex(4)}.tmp"


def remove_stale(folder: Path, pattern: str = ".*.tmp") -> None:
    """Remove temporary files and folders that killed processes left behind.

    :func:`temporary_name` gave their names. HOST in it is :func:`_host_id`. If HOST is this host, the process id tells
    whether the process is alive, and the file of a living process is never removed. On a file system shared with other
    machines or containers this is unknown, so their files are removed after a day without a write.
    """
    for path in folder.glob(pattern):
        named = re.search(r"\.(\d+)-([0-9a-f]{8})[0-9a-f]{8}\.tmp$", path.name)
        with contextlib.suppress(OSError):  # another process removed it first, or this user may not remove it
            if named is not None and named[2] == _host_id():
                stale = not _is_alive(int(named[1]))
            else:
                stale = time.time() - path.stat().st_mtime > DAY
            if stale and named is not None and path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif stale:
                path.unlink()


@functools.cache
def _host_id() -> str:
    """Eight hexadecimal digits for this machine since its last boot and this container: the scope of a process id."""
    marks = [platform.node()]
    with contextlib.suppress(OSError):  # only Linux has these
        marks += [Path("/proc/sys/kernel/random/boot_id").read_text("ascii"), str(Path("/proc/self/ns/pid").readlink())]
    return hashlib.sha256(" ".join(marks).encode()).hexdigest()[:8]


def _is_alive(pid: int) -> bool:
    if os.name != "posix":  # on other platforms os.kill would end the process
        return True
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # a process of another user
        pass
    return True
