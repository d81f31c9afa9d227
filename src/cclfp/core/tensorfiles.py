"""Files of tensors and plain values, for learners and checkpoints. Nothing in them is executed."""

from __future__ import annotations

import errno
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch.utils.serialization import config

from cclfp.core.files import write_atomic
from cclfp.errors import DamagedError, InputError, shortage


class _Writer:
    """A file that remembers why a write failed, because torch.save raises its own error instead."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.flush = file.flush
        self.error: BaseException | None = None

    def write(self, data: bytes) -> int:
        try:
            return self._file.write(data)
        except BaseException as error:
            self.error = self.error or error
            raise


def write_tensors(path: Path, state: dict[str, Any]) -> None:
    """Write tensors and plain values to a file, completely or not at all; OSError if there is no space."""

    def write(file: BinaryIO) -> None:
        writer = _Writer(file)
        try:
            # read_tensors needs the checksums, whatever the user has configured in torch
            with config.patch({"save.compute_crc32": True}):  # type: ignore[attr-defined]
                torch.save(state, writer)  # type: ignore[arg-type]  # write and flush are all it needs
        except RuntimeError:
            if writer.error is not None:
                raise writer.error from None
            raise

    write_atomic(path, write)


def read_tensors(path: Path, kind: str) -> dict[str, Any]:
    """Read what :func:`write_tensors` wrote, with ``kind`` as its format; DamagedError if it has changed since."""
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    what = f"{path} cannot be read as a {kind.rsplit(' ', 1)[0]}"
    try:
        # Keep one file open: another file may take its name in the meantime.
        with path.open("rb") as file:
            size = _check_archive(file)
            file.seek(0)
            state = torch.load(file, map_location="cpu", weights_only=True)
        _check_size(state, size)
    except OSError as error:
        if error.errno == errno.EINVAL:  # an offset in the file is negative
            raise DamagedError(f"{what}: it is damaged") from error
        raise InputError(f"{path} cannot be read: {error}") from error  # its content is unknown
    except (zipfile.BadZipFile, EOFError) as error:
        raise DamagedError(f"{what}: it is damaged, or is another kind of file ({error})") from error
    except Exception as error:  # whatever zipfile and torch's unpickler raise for a malicious file
        if shortage(error):
            raise
        raise DamagedError(f"{what}: it is damaged, or holds more than tensors and plain values") from error
    if not isinstance(state, dict) or state.get("format") != kind:
        found = state.get("format") if isinstance(state, dict) else type(state).__name__
        raise InputError(f"{path} is not a {kind!r} file (its format is {found!r})")
    return state


def _check_archive(file: BinaryIO) -> int:
    """The size of an archive that torch.save wrote; BadZipFile if a checksum or the structure is wrong.

    torch.load verifies no checksums, so they are all verified here. They cover every tensor and value: a changed name,
    offset or length in the archive's directory gives an entry that is missing or does not match its checksum. The
    attributes matter too: torch.load does not read an entry that is marked as a folder, and returns uninitialised
    memory instead.
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
        return file.seek(0, 2)


def _check_size(state: Any, size: int) -> None:
    """Raise ValueError for nested values that are cyclic, or shared so often that they exceed the size of the file."""
    pending, count = [state], 0
    while pending:
        value = pending.pop()
        parts: list[Any] = []
        if isinstance(value, dict):
            parts = [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple):
            parts = list(value)
        count += len(parts)
        if count > size:
            raise ValueError("there are more values than a file of this size can hold")
        pending += parts
