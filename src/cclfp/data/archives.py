"""Untrusted archives: .zip, .tar.gz and .npz. Members are read into memory; nothing is unpacked, no pickle loaded."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import math
import struct
import sys
import tarfile
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

import numpy as np

from cclfp.data.download import retrieve
from cclfp.data.source import Arrays, Origin, Source, abbreviate, first_line, md5_of
from cclfp.errors import DataError, InputError
from cclfp.events import OnEvent, with_progress

# The exceptions of numpy for headers that are not right, and of Python's parser, which may also run out of memory.
NO_HEADER = (
    EOFError,
    LookupError,
    MemoryError,
    OverflowError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
    tokenize.TokenError,
)
# The exceptions of tarfile, zipfile and zlib for damaged archives.
BROKEN = (
    EOFError,
    IndexError,
    OSError,
    OverflowError,
    RuntimeError,
    ValueError,
    struct.error,
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
)
MOST_HEADER = 4096  # bytes of an array's header; numpy writes 118 for an array of images
NPY = b"\x93NUMPY"  # the first bytes of an .npy file

Files = dict[str, bytes]  # path below the archive's folder -> content


def read_members(path: Path, names: Iterable[str], on_event: OnEvent, what: str) -> Files:
    """The contents of some members of a .zip or .tar.gz file; the content decides which of the two it is."""
    wanted = set(names)
    try:
        with path.open("rb") as file:
            contents = _zip_contents if file.read(2) == b"PK" else _tar_contents
        found = dict(with_progress(contents(path, wanted), len(wanted), on_event, what, "files"))
    except BROKEN as error:
        raise DataError(f"{path} is broken: {first_line(error)}") from error
    if missing := wanted - found.keys():
        raise DataError(f"{path} lacks {abbreviate(sorted(missing))}")
    return found


def _tar_contents(path: Path, names: set[str]) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(path, "r:gz") as archive:
        for info in archive:  # in the archive's order, because a compressed tar file cannot be read backwards
            if info.name in names and info.isfile() and (member := archive.extractfile(info)) is not None:
                yield info.name, member.read()


def _zip_contents(path: Path, names: set[str]) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(path) as archive:
        for name in names.intersection(archive.namelist()):
            yield name, archive.read(name)


@dataclasses.dataclass(frozen=True)
class Archive:
    """An archive as its authors publish it."""

    url: str
    md5: str
    size: int
    folder: str  # the folder in the archive

    @property
    def name(self) -> str:
        return PurePosixPath(self.url).name


class ArchivedSource(Source):
    """A dataset read from its archive, from the folder in that, or from a folder that contains either."""

    archive: Archive

    @abc.abstractmethod
    def required(self) -> list[str]:
        """The files to read, as paths below the archive's folder."""

    @abc.abstractmethod
    def decode(self, files: Files, origin: str, on_event: OnEvent) -> Arrays:
        """Compare the required files with their checksums and decode them into arrays."""

    def read(self, path: Path, on_event: OnEvent) -> Arrays | None:
        if path.is_file():
            return self._read_archive(path, on_event)
        for folder in (path / self.archive.folder, path):
            if folder.is_dir() and any((folder / name).is_file() for name in self.required()):
                return self._read_folder(folder, on_event)
        archive = path / self.archive.name
        return self._read_archive(archive, on_event) if archive.is_file() else None

    def origins(self, on_event: OnEvent, folder: Path) -> list[Origin]:
        def download() -> Arrays:
            path = retrieve(self.archive.url, f"md5:{self.archive.md5}", folder, on_event, f"{self.name}: downloading")
            return self._read_archive(path, on_event)

        return [(self.archive.url, download)]

    def _read_folder(self, folder: Path, on_event: OnEvent) -> Arrays:
        required = self.required()
        if missing := [name for name in required if not (folder / name).is_file()]:
            raise DataError(f"{folder} is not {self.archive.folder} as published: it lacks {abbreviate(missing)}")
        contents = ((name, (folder / name).read_bytes()) for name in required)
        files = dict(with_progress(contents, len(required), on_event, f"{self.name}: reading", "files"))
        return self.decode(files, str(folder), on_event)

    def _read_archive(self, path: Path, on_event: OnEvent) -> Arrays:
        found, size = md5_of(path), path.stat().st_size
        if found != self.archive.md5:
            raise DataError(
                f"{path} is not the published {self.archive.name}: md5 {found}, published {self.archive.md5} "
                f"({size:,} bytes, published {self.archive.size:,}). Nothing of it was kept"
            )
        start = f"{self.archive.folder}/"
        files = read_members(path, [start + name for name in self.required()], on_event, f"{self.name}: reading")
        return self.decode({name.removeprefix(start): files[name] for name in files}, str(path), on_event)


class Header(NamedTuple):
    """The header of an array. The values start ``offset`` bytes into the file."""

    dtype: np.dtype
    shape: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape)


def read_header(file: IO[bytes]) -> Header:
    """Read the header of an ``.npy`` file, open at its start; InputError if it is not that of a plain array."""
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python 2 wrote headers that numpy warns of
            shape, _, dtype = readers[np.lib.format.read_magic(file)](file, max_header_size=MOST_HEADER)
        offset = file.tell()
    except NO_HEADER as error:
        raise InputError("its header is not that of an array of numbers or text") from error
    if dtype.hasobject or dtype.names is not None or dtype.subdtype or any(n is True or n < 0 for n in shape):
        raise InputError(f"its header is not that of an array of numbers or text, but of {dtype} and {shape}")
    return Header(dtype, shape, offset)


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
                return read_header(file)
            except InputError as error:
                raise InputError(f"{self.path}: {name}: {error}") from error

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
        with self.archive.open(self.members[name]) as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            values: np.ndarray = np.lib.format.read_array(file, allow_pickle=False, max_header_size=MOST_HEADER)
            file.read(1)
        if values.dtype.kind == "U":
            codes = np.ascontiguousarray(values).view(values.dtype.byteorder + "u4")
            if codes.max(initial=0) > sys.maxunicode:
                raise InputError(f"{self.path}: {name} has text with invalid characters")
        return values


@contextlib.contextmanager
def open_npz(path: Path, names: Sequence[str]) -> Iterator[Npz]:
    """Open an ``.npz`` that has the arrays ``names``; InputError if it is invalid, also when it is read later."""
    try:
        with path.open("rb") as file:
            start = file.read(len(NPY))
            if start == NPY:
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
