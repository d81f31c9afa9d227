"""The user's cache folder, for files that only this user may write: compiled programs, which are executed."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from cclfp.core.files import remove_stale, temporary_name


class NotPrivate(Exception):
    """Other users could change a file or folder, or read it."""


def cache_folder() -> Path:
    """``cclfp`` in the folder ``XDG_CACHE_HOME``, or in ``~/.cache``. RuntimeError for a user without a home folder."""
    chosen = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (chosen if chosen.is_absolute() else Path("~/.cache").expanduser()) / "cclfp"


def private_folder() -> Path:
    """The :func:`cache_folder`, made where it does not exist. NotPrivate where it cannot be used."""
    try:
        path = cache_folder()
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
        check_private(path)
        if not path.is_dir():
            raise NotPrivate(f"{path} is not a folder")
    except (OSError, RuntimeError) as error:
        raise NotPrivate(str(error)) from error
    return path


def check_private(path: Path) -> None:
    """NotPrivate for a link, and for a file or folder that belongs to another user or that others may read or write."""
    if not hasattr(os, "getuid"):
        raise NotPrivate(f"on this platform, the owner of {path} is not known")
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode):
        raise NotPrivate(f"{path} is a symbolic link")
    if found.st_uid != os.getuid():
        raise NotPrivate(f"{path} belongs to another user")
    if found.st_mode & 0o077:
        raise NotPrivate(f"{path} has mode {stat.S_IMODE(found.st_mode):o}, expected no access for others: chmod go=")


@contextlib.contextmanager
def building_folder() -> Iterator[Path]:
    """An empty private folder, removed afterwards. It is in the cache folder or, where that is not private, elsewhere.

    Those that killed processes left in the cache folder are removed, too.
    """
    try:
        parent = private_folder()
        remove_stale(parent)
    except NotPrivate:
        parent = Path(tempfile.gettempdir())
    path = parent / temporary_name("build")
    path.mkdir(mode=0o700)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
