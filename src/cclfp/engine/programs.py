"""Compiled programs that are kept from run to run, as native code in the user's cache folder.

A program is one file, ``KIND-SHAPES-CHECKSUM.so``: KIND stands for the code and the machine, SHAPES for the program's
arguments, CHECKSUM for the content of the file. torch loads it without importing its compiler.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import os
import platform
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Hashable, Iterator
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from cclfp.core.files import remove_file, remove_stale, temporary_name, write_atomic
from cclfp.core.workers import describe_processor
from cclfp.engine.groups import Step

NAME = re.compile(r"[0-9a-f]{16}-[0-9a-f]{32}-[0-9a-f]{64}\.so")
LIMIT = 256 * 2**20  # bytes of all kept programs, about half a million each


@dataclasses.dataclass(frozen=True)
class Kind:
    """What the programs of a cohort depend on, besides the machine and the shapes of their arguments."""

    text: str
    is_own: bool = False  # whether a user's own code is part of them


class KeptPrograms:
    """The kept programs of one kind of cohort.

    Nothing is kept without a kind, or where the cache folder is not private. ``note`` is called with what the user
    should know.
    """

    def __init__(self, kind: Kind | None, note: Callable[[str], None] = lambda text: None) -> None:
        self._note = note
        self._is_own = kind is not None and kind.is_own
        self._kind = _checksum(kind, torch.get_num_threads(), *_machine())[:16]
        self._folder: Path | None = None
        if kind is not None:
            try:
                self._folder = private_folder()
            except NotPrivate as reason:
                note(f"compiled programs are not kept: {reason}")

    def any(self) -> bool:
        """Whether there are programs of this kind."""
        return bool(self._files("*"))

    def has(self, key: Hashable) -> bool:
        """Whether there is a program for arguments like these."""
        return bool(self._files(_checksum(key)))

    def load(self, key: Hashable) -> Step | None:
        """The program for arguments like these, or None. A file that cannot be used is removed, with a note."""
        for path in self._files(_checksum(key)):
            try:
                check_private(path)
                if hashlib.sha256(path.read_bytes()).hexdigest() != path.stem.rpartition("-")[2]:
                    raise NotPrivate(f"{path} is damaged")
                os.utime(path)
                return load(path)
            except (NotPrivate, OSError, RuntimeError) as error:
                reason = str(error).partition("\n")[0]
                self._note(f"a kept program is compiled again: {reason}")
                _remove(path)
        return None

    def keep(self, key: Hashable, library: Path, *, has_constants: bool) -> None:
        """Keep a compiled program. Where there are too many, those that were not used for the longest time go.

        A user's own code may compute constant tensors from anything, such as the seed. Such a program is not kept.
        """
        if self._folder is None or (has_constants and self._is_own):
            return
        content = library.read_bytes()

        def write(file: BinaryIO) -> None:
            os.fchmod(file.fileno(), 0o600)
            file.write(content)

        name = f"{self._kind}-{_checksum(key)}-{hashlib.sha256(content).hexdigest()}.so"
        try:
            write_atomic(self._folder / name, write)
            _trim(self._folder)
        except OSError as error:
            self._note(f"a compiled program is not kept: {error}")

    def remove(self) -> None:
        """Remove the programs of this kind."""
        for path in self._files("*"):
            _remove(path)

    def _files(self, shapes: str) -> list[Path]:
        return [] if self._folder is None else _named(self._folder, f"{self._kind}-{shapes}-*.so")


def load(library: Path) -> Step:
    """The step in a library. RuntimeError where it cannot be loaded."""
    run = torch._C._aoti.AOTIModelContainerRunnerCpu(str(library), 1).run

    def step(changing: list[Tensor], fixed: list[Tensor], row: list[Tensor]) -> list[Tensor]:
        return run([*changing, *fixed, *row])

    return step


def _named(folder: Path, pattern: str) -> list[Path]:
    """What has the name of a program, and no file of somebody else."""
    return sorted(path for path in folder.glob(pattern) if NAME.fullmatch(path.name))


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        remove_file(path)


def _trim(folder: Path) -> None:
    """Remove the programs that were not used for the longest time, until the others are within the limit."""
    found, total = [], 0
    for path in _named(folder, "*.so"):
        with contextlib.suppress(FileNotFoundError):  # another process has removed it
            about = path.lstat()
            found.append((about.st_mtime, about.st_size, path))
    for _, size, path in sorted(found, reverse=True):
        total += size
        if total > LIMIT:
            _remove(path)


def _machine() -> tuple[object, ...]:
    """What native code depends on besides its source."""
    version = torch.__version__, torch.version.git_version, torch.backends.cpu.get_cpu_capability()
    return *version, platform.system(), platform.machine(), describe_processor()


def _checksum(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


# -- the private folder, because programs are executed -----------------------------------------------------------


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


def working_folder() -> Path:
    """The private folder or, where it cannot be used, one that is removed when this process ends."""
    try:
        return private_folder()
    except NotPrivate:
        return Path(_temporary_folder().name)


@functools.cache
def _temporary_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="cclfp-")


@contextlib.contextmanager
def building_folder() -> Iterator[Path]:
    """An empty folder, removed afterwards, in the working folder; those that killed processes left there go too."""
    parent = working_folder()
    remove_stale(parent, r"build|[0-9a-f-]+\.so", folders=True)
    path = parent / temporary_name("build")
    path.mkdir(mode=0o700)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
