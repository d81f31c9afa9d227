"""Where files are, and how they are written: completely or not at all, and never over what this program did not write.

Besides plain files there are files of tensors, for learners and checkpoints, whose checksums are verified.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import io
import os
import platform
import re
import secrets
import shutil
import stat
import time
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch.utils.serialization import config

from cclfp.errors import DamagedError, InputError, first_line, reason_of, shortage

DAY = 86_400  # seconds
HEAD = 4096  # the first bytes of a file, which say who wrote it
TEMPORARY = re.compile(r"\.(?P<name>.+)\.(?P<pid>\d+)-(?P<host>[0-9a-f]{8})[0-9a-f]{8}\.tmp")  # see temporary_name

# -- where files are ----------------------------------------------------------------------------------------------


def home() -> Path:
    """The folder of datasets, checkpoints and the default store: ``CCLFP_HOME``, or the platform's user data folder."""
    chosen = os.environ.get("CCLFP_HOME")
    if chosen is None:
        import platformdirs  # imported here, so that training needs only torch and numpy

        return Path(platformdirs.user_data_dir("cclfp", appauthor=False))
    with contextlib.suppress(RuntimeError):  # ~NAME without such a user
        path = Path(chosen).expanduser().absolute()
        there = next(place for place in (path, *path.parents) if os.path.lexists(place))
        # Whether a folder that exists is writable shows when writing.
        if chosen.strip() and there.is_dir() and (there == path or os.access(there, os.W_OK | os.X_OK)):
            return path
    text = "expected the path of a folder that exists or can be created; unset CCLFP_HOME to use the default"
    raise InputError(f"CCLFP_HOME={chosen!r}: {text}")


def chosen_by(path: Path) -> str:
    """A note for errors about a path: the value of ``CCLFP_HOME`` if the path is below it, otherwise empty."""
    chosen = os.environ.get("CCLFP_HOME")
    return f" (CCLFP_HOME={chosen!r})" if chosen is not None and path.is_relative_to(home()) else ""


# -- what may be written ------------------------------------------------------------------------------------------


def real_file(path: Path) -> Path:
    """The regular file that a path names, or would: links are followed. InputError where something else is there."""
    found = path
    try:
        found = Path(os.path.realpath(path)) if path.is_symlink() else path
        mode = found.lstat().st_mode
    except OSError:  # there is nothing, or it cannot be seen: whoever opens it says why
        return found
    except ValueError as error:  # a null character
        raise InputError(f"{str(path)!r} cannot be the path of a file: {error}") from error
    if stat.S_ISLNK(mode):
        raise InputError(f"{path} is a symbolic link that leads back to itself")
    if not stat.S_ISREG(mode):
        what = "a folder" if stat.S_ISDIR(mode) else "a device, a pipe or a socket"
        raise InputError(f"{path} is {what}: expected the path of a file")
    return found


def check_output(
    path: Path, is_ours: Callable[[bytes], bool], *, force: bool = False, inputs: Iterable[Path] = ()
) -> None:
    """InputError where writing a file would destroy an input of the same command, or what another program wrote.

    ``is_ours`` tells from the first bytes of a file whether this program wrote it. With ``force`` any file but an input
    may be replaced.
    """
    file = real_file(path)
    try:
        if not file.exists():
            return
        for other in inputs:
            if other.exists() and file.samefile(other):
                raise InputError(f"{path} is read by this command ({other}): expected another file to write")
        with file.open("rb") as opened:
            head = opened.read(HEAD)
    except OSError as error:
        raise InputError(f"{path} cannot be replaced: {reason_of(error)}") from error
    if head and not is_ours(head) and not force:
        text = f"{path} exists, and cclfp did not write it"
        raise InputError(f"{text}: name another file, or replace it with --force (in Python force=True)")


# -- written completely or not at all -----------------------------------------------------------------------------


def write_atomic(path: Path, content: bytes | memoryview) -> None:
    """Write to a temporary file, fsync it and rename it: a reader sees the old file or the new one, never a part.

    Symbolic links are followed, and what is replaced keeps its mode. InputError where the path names no regular file.
    """
    path = real_file(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_stale(path.parent, re.escape(path.name))
    temporary = path.with_name(temporary_name(path.name))
    try:
        temporary.touch(0o600 if path.exists() else 0o666, exist_ok=False)
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            if path.exists():
                shutil.copymode(path, temporary)  # what is replaced keeps its mode
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None and error.filename is None:
            error.filename = str(path)  # that of a full disk has no filename
        raise
    sync_directory(path.parent)


def write_file(path: Path, content: bytes) -> None:
    """Write bytes with :func:`write_atomic`; InputError where that fails."""
    try:
        write_atomic(path, content)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {reason_of(error)}") from error


def sync_directory(path: Path) -> None:
    """Make a rename inside ``path`` survive a power failure."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def temporary_name(name: str) -> str:
    """A name for a temporary file or folder of this process: ``.NAME.PID-HOST....tmp``, see :func:`remove_stale`."""
    return f".{name}.{os.getpid()}-{_host_id()}{secrets.token_hex(4)}.tmp"


def remove_stale(folder: Path, names: str, *, folders: bool = False) -> None:
    """Remove the temporary files that killed processes left behind of files whose name matches a regular expression.

    Nothing else is touched: they are regular files with exactly a name that :func:`temporary_name` gives. Only in a
    folder of this program's own may they be ``folders`` too. The file of a living process is never removed. Whether
    those of other hosts (:func:`_host_id`) live is unknown, so their files are removed after a day without a write.
    """
    for path in folder.glob(".*.tmp"):
        named = TEMPORARY.fullmatch(path.name)
        if named is None or re.fullmatch(names, named["name"]) is None:
            continue
        with contextlib.suppress(OSError):  # another process removed it first, or this user may not remove it
            about = path.lstat()
            is_here = named["host"] == _host_id()
            stale = not _is_alive(int(named["pid"])) if is_here else time.time() - about.st_mtime > DAY
            if stale and stat.S_ISREG(about.st_mode):
                path.unlink()
            elif stale and folders and stat.S_ISDIR(about.st_mode):
                shutil.rmtree(path)


def remove_file(path: Path) -> None:
    """Remove a regular file with a name of this program's own, if possible; a link, a folder or a device stays."""
    with contextlib.suppress(OSError):  # another process has removed it, or this user may not
        if stat.S_ISREG(path.lstat().st_mode):
            path.unlink()


@functools.cache
def _host_id() -> str:
    """Eight hexadecimal digits for this machine since its last boot and this container: the scope of a process id."""
    marks = [platform.node()]
    with contextlib.suppress(OSError):  # where they cannot be read
        marks += [Path("/proc/sys/kernel/random/boot_id").read_text("ascii"), str(Path("/proc/self/ns/pid").readlink())]
    return hashlib.sha256(" ".join(marks).encode()).hexdigest()[:8]


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # a process of another user
        pass
    with contextlib.suppress(OSError):  # one that was killed and that its parent has not noticed: a zombie
        return " Z " not in Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2][:3]
    return True


# -- files of tensors and plain values: nothing in them is executed -----------------------------------------------


def write_tensors(path: Path, state: dict[str, Any]) -> None:
    """Write tensors and plain values to a file, completely or not at all; OSError if there is no space."""
    content = io.BytesIO()  # torch.save would hide the reason why a file cannot be written
    with config.patch({"save.compute_crc32": True}):  # type: ignore[attr-defined]  # read_tensors needs them
        torch.save(state, content)
    write_atomic(path, content.getbuffer())


def read_tensors(path: Path, kind: str) -> dict[str, Any]:
    """Read what :func:`write_tensors` wrote, with ``kind`` as its format; DamagedError if it has changed since."""
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    try:
        # Keep one file open: another file may take its name in the meantime.
        with path.open("rb") as file:
            _check_archive(file)
            file.seek(0)
            state = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever zipfile and torch's unpickler raise for a file of any content
        if isinstance(error, OSError) and error.errno != errno.EINVAL:  # that is of a negative offset in the file
            raise InputError(f"{path} cannot be read: {reason_of(error)}") from error  # its content is unknown
        if shortage(error):
            raise
        what = f"{path} cannot be read as a {kind.rsplit(' ', 1)[0]}"
        text = "it is damaged, is another kind of file, or holds more than tensors and plain values"
        raise DamagedError(f"{what}: {text} ({first_line(error)})") from error
    found = state.get("format") if isinstance(state, dict) else type(state).__name__
    if found != kind:
        raise InputError(f"{path} is not a {kind!r} file (its format is {found!r})")
    return state  # type: ignore[no-any-return]


def _check_archive(file: BinaryIO) -> None:
    """BadZipFile if a checksum or the structure of an archive is not as torch.save wrote it.

    torch.load verifies no checksums, so they are all verified here; a changed name, offset or length gives an entry
    that is missing or does not match. The attributes matter too: where an entry is marked as a folder, torch.load
    returns uninitialised memory.
    """
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        if (wrong := archive.testzip()) is not None:
            raise zipfile.BadZipFile(f"{wrong} does not match its checksum")
        names = {entry.filename for entry in entries}
        kinds = {(entry.compress_type, entry.external_attr, entry.internal_attr, entry.volume) for entry in entries}
        starts = min(entry.header_offset for entry in entries)
        if len(names) < len(entries) or kinds != {(zipfile.ZIP_STORED, 0, 0, 0)} or starts != 0:
            raise zipfile.BadZipFile("its structure is not that of a file that cclfp writes")
