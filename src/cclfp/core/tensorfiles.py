"""Files of tensors and plain values: learners and checkpoints. Nothing in them is executed."""

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
    """A file that remembers why it could not be written: torch.save raises an error of its own instead."""

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
    """Write tensors and plain values, whole or not at all; OSError where there is no space."""

    def write(file: BinaryIO) -> None:
        writer = _Writer(file)
        try:
            # read_tensors needs the checksums, whatever the user chose for files of their own
            with config.patch({"save.compute_crc32": True}):  # type: ignore[attr-defined]
                torch.save(state, writer)  # type: ignore[arg-type]  # write and flush are all it needs
        except RuntimeError:
            if writer.error is not None:
                raise writer.error from None
            raise

    write_atomic(path, write)


def read_tensors(path: Path, kind: str) -> dict[str, Any]:
    """What :func:`write_tensors` wrote, with ``kind`` as its format; DamagedError where it is not as it was written."""
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    what = f"{path} cannot be read as a {kind.rsplit(' ', 1)[0]}"
    try:
        # All of one open file: another that takes its name meanwhile is not looked at.
        with path.open("rb") as file:
            size = _check_archive(file)
            file.seek(0)
            state = torch.load(file, map_location="cpu", weights_only=True)
        _check_size(state, size)
    except OSError as error:
        if error.errno == errno.EINVAL:  # an offset in it points before its beginning
            raise DamagedError(f"{what}: it is damaged") from error
        raise InputError(f"{path} cannot be read: {error}") from error  # nothing is known of what it holds
    except (zipfile.BadZipFile, EOFError) as error:
        raise DamagedError(f"{what}: it is damaged, or is another kind of file ({error})") from error
    except Exception as error:  # whatever zipfile and torch's unpickler raise on a file that someone made
        if shortage(error):
            raise
        raise DamagedError(f"{what}: it is damaged, or holds more than tensors and plain values") from error
    if not isinstance(state, dict) or state.get("format") != kind:
        found = state.get("format") if isinstance(state, dict) else type(state).__name__
        raise InputError(f"{path} is not a {kind!r} file (it says {found!r})")
    return state


def _check_archive(file: BinaryIO) -> int:
    """The size of an archive as torch.save writes it; BadZipFile where a checksum, or its structure, is wrong.

    torch.load looks at no checksum, so all are looked at here. They cover every tensor and value: a changed name, place
    or length in the archive's directory gives an entry that is missing, or does not match its checksum. The attributes
    matter too: of an entry that is marked as a folder torch.load reads nothing, and gives whatever is in memory.
    """
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        if (wrong := archive.testzip()) is not None:
            raise zipfile.BadZipFile(f"{wrong} does not match its checksum")
        names = {entry.filename for entry in entries}
        kinds = {(entry.compress_type, entry.external_attr, entry.internal_attr, entry.volume) for entry in entries}
        starts = min(entry.header_offset for entry in entries)
        if len(names) < len(entries) or kinds != {(zipfile.ZIP_STORED, 0, 0, 0)} or starts != 0:
            raise zipfile.BadZipFile("its structure is not one that is written here")
        return file.seek(0, 2)


def _check_size(state: Any, size: int) -> None:
    """Refuse values that contain themselves, or one another so often that they are more than a file can hold."""
    left, count = [state], 0
    while left:
        value = left.pop()
        parts: list[Any] = []
        if isinstance(value, dict):
            parts = [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple):
            parts = list(value)
        count += len(parts)
        if count > size:
            raise ValueError("there are more values than a file of this size can hold")
        left += parts
