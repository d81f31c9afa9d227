"""Reads arrays from untrusted ``.npy`` and ``.npz`` files.

The header is parsed here, not by numpy: numpy's parser can exhaust the stack or the memory, and its messages recommend
loading pickles. Pickles are never loaded. Nothing is allocated before the header is checked.
"""

from __future__ import annotations

import contextlib
import math
import re
import struct
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from cclfp.data.archive import BROKEN
from cclfp.data.source import first_line
from cclfp.errors import InputError

MAGIC = b"\x93NUMPY"
LENGTH = {(1, 0): "<H", (2, 0): "<I", (3, 0): "<I"}  # version -> struct format of the header's length
MOST_HEADER = 4096  # bytes; numpy writes 118 for an array of images
PIECE = 1 << 20  # bytes read at a time

_NUMBER = r"\d{1,18}L?"  # Python 2 wrote an L
_ENTRY = (
    r"'(?:"
    r"descr'\s*:\s*'(?P<descr>[<>|=]?[biufcSUVO]\d{0,18})'|"
    r"fortran_order'\s*:\s*(?P<fortran_order>True|False)|"
    rf"shape'\s*:\s*\((?P<shape>\s*|\s*(?:{_NUMBER}\s*,\s*)+(?:{_NUMBER}\s*)?)\)"
    r")\s*"
)
_FIRST = re.compile(rf"\s*\{{\s*{_ENTRY}", re.ASCII)
_NEXT = re.compile(rf",\s*{_ENTRY}", re.ASCII)
_END = re.compile(r",?\s*\}\s*", re.ASCII)


class Header(NamedTuple):
    """The header of an array. The values start ``offset`` bytes into the file."""

    dtype: np.dtype
    shape: tuple[int, ...]
    fortran_order: bool
    offset: int

    @property
    def nbytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape)

    def arrange(self, values: np.ndarray) -> np.ndarray:
        """The given bytes as an array of this shape and dtype."""
        flat = values.view(self.dtype)
        return flat.reshape(self.shape[::-1]).T if self.fortran_order else flat.reshape(self.shape)


def read_header(file: IO[bytes]) -> Header:
    """Read the header of an ``.npy`` file, open at its start; InputError if it is not that of a plain array."""
    start = file.read(len(MAGIC) + 2)
    length_format = LENGTH.get((start[-2], start[-1])) if start[:-2] == MAGIC else None
    if length_format is None:
        raise InputError("it is not an array in the .npy format")
    count = struct.calcsize(length_format)
    content = file.read(count)
    length = struct.unpack(length_format, content)[0] if len(content) == count else 0
    if length > MOST_HEADER:
        raise InputError(f"its header has {length:,} bytes, more than {MOST_HEADER:,}")
    text = file.read(length)
    dtype, shape, fortran_order = _parse(text.decode("latin1") if len(text) == length else "")
    return Header(dtype, shape, fortran_order, len(start) + count + length)


def _parse(text: str) -> tuple[np.dtype, tuple[int, ...], bool]:
    """The entries of a header such as ``{'descr': '|u1', 'fortran_order': False, 'shape': (40, 8, 8), }``."""
    found: dict[str, str] = {}
    match = _FIRST.match(text)
    while match is not None and match.lastgroup is not None:
        found[match.lastgroup] = match[match.lastgroup]
        end = match.end()
        match = _NEXT.match(text, end)
    if len(found) < 3 or not _END.fullmatch(text, end):
        shown = text[:80].strip()
        raise InputError(f"its header is not that of an array of numbers or text (it starts with {shown!r})")
    try:
        dtype = np.dtype(found["descr"])
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"its header names the type {found['descr']!r}, which does not exist") from error
    shape = tuple(int(number.strip().rstrip("L")) for number in found["shape"].split(",") if number.strip())
    return dtype, shape, found["fortran_order"] == "True"


class Npz:
    """An open ``.npz`` file whose headers have been read."""

    def __init__(self, path: Path, archive: zipfile.ZipFile, names: Sequence[str]) -> None:
        self.path, self.archive = path, archive
        self.members = {name: self._member(name) for name in names}
        self.headers = {name: self._header(name) for name in names}

    def _member(self, name: str) -> zipfile.ZipInfo:
        found = [info for info in self.archive.infolist() if info.filename == f"{name}.npy"]
        if len(found) > 1:
            raise InputError(f"{self.path} has {len(found)} members named {name}.npy: expected one")
        if found[0].flag_bits & 1:
            raise InputError(f"{self.path}: {name} is encrypted")
        if found[0].compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise InputError(
                f"{self.path}: {name} has an unsupported compression: expected an .npz as "
                "np.savez or np.savez_compressed writes it"
            )
        return found[0]

    def _header(self, name: str) -> Header:
        with self.archive.open(self.members[name]) as file:
            try:
                header = read_header(file)
            except InputError as error:
                raise InputError(f"{self.path}: {name}: {error}") from error
        return header

    def check_size(self, name: str) -> None:
        """Raise InputError unless the member has exactly the size that its header implies."""
        header, member = self.headers[name], self.members[name]
        if header.offset + header.nbytes != member.file_size:
            raise InputError(
                f"{self.path}: {name} holds {member.file_size:,} bytes, but {header.dtype} of shape {header.shape} "
                f"takes {header.offset + header.nbytes:,} with its header"
            )

    def read(self, name: str) -> np.ndarray:
        """Read an array whose size has been checked. zipfile verifies its checksum when the last byte is read."""
        header = self.headers[name]
        values = np.empty(header.nbytes, np.uint8)
        with self.archive.open(self.members[name]) as file:
            file.read(header.offset)
            for start in range(0, len(values), PIECE):
                wanted = values[start : start + PIECE]
                piece = file.read(len(wanted))
                if len(piece) < len(wanted):  # the directory of the zip file can state too large a size
                    raise EOFError(f"{name} is truncated")
                wanted[:] = np.frombuffer(piece, np.uint8)
            file.read(1)
        if header.dtype.kind == "U" and values.view(header.dtype.byteorder + "u4").max(initial=0) > sys.maxunicode:
            raise InputError(f"{self.path}: {name} has text with invalid characters")
        return header.arrange(values)


@contextlib.contextmanager
def open_npz(path: Path, names: Sequence[str]) -> Iterator[Npz]:
    """Open an ``.npz`` that has the arrays ``names``; InputError if it is invalid, also when it is read later."""
    try:
        with path.open("rb") as file:
            start = file.read(len(MAGIC))
            if start == MAGIC:
                raise InputError(f"{path} is a single array, expected an .npz of several")
            if start[:2] != b"PK":
                raise InputError(f"{path} is not an .npz, which is a zip file of arrays: write it with np.savez")
            with zipfile.ZipFile(file) as archive:
                there = archive.namelist()
                if missing := [name for name in names if f"{name}.npy" not in there]:
                    raise InputError(f"{path} lacks {', '.join(missing)}; it has {_shown(there) or 'nothing'}")
                yield Npz(path, archive, names)
    except InputError:
        raise
    except MemoryError as error:
        raise InputError(f"{path} cannot be read: its arrays need more memory than this machine has") from error
    except BROKEN as error:
        raise InputError(f"{path} cannot be read as an .npz of plain arrays: {first_line(error)}") from error


def _shown(members: list[str]) -> str:
    text = ", ".join(name.removesuffix(".npy") for name in members[:12])
    return "".join(c if c.isprintable() else "?" for c in text[:300])
