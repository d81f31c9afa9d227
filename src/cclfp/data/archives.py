"""Archives: .zip, .tar.gz and .npz. Members are read into memory; nothing is unpacked, no pickle loaded."""

from __future__ import annotations

import abc
import dataclasses
import tarfile
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from cclfp.data.download import checksum_of, retrieve
from cclfp.data.source import Arrays, Published
from cclfp.errors import DataError, InputError, first_line, visible
from cclfp.events import OnEvent, with_progress

MOST_HEADER = 4096  # bytes of an array's header; numpy writes 118 for an array of images

Files = dict[str, bytes]  # path below the archive's folder -> content


def read_members(path: Path, names: Sequence[str], on_event: OnEvent, what: str) -> Files:
    """The contents of some members of a .zip or .tar.gz file whose checksum is right."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            return {name: archive.read(name) for name in with_progress(names, len(names), on_event, what, "files")}
    wanted = set(names)
    with tarfile.open(path, "r:gz") as archive:
        # In the archive's order, because a compressed tar file cannot be read backwards.
        found = ((info.name, archive.extractfile(info)) for info in archive if info.name in wanted and info.isfile())
        contents = ((name, member.read()) for name, member in found if member is not None)
        return dict(with_progress(contents, len(wanted), on_event, what, "files"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Archived(Published):
    """A dataset read from its archive, from the folder in that, or from a folder that contains either."""

    md5: str
    folder: str  # in the archive

    @property
    def archive(self) -> str:
        """The archive's name."""
        return PurePosixPath(self.mirrors[0]).name

    @property
    def expected(self) -> str:
        return f"the archive {self.archive}, or the folder {self.folder} that is in it"

    @abc.abstractmethod
    def required(self) -> list[str]:
        """The files to read, as paths below the archive's folder."""

    @abc.abstractmethod
    def decode(self, files: Files, on_event: OnEvent) -> Arrays:
        """Compare the required files with their checksums, and decode them into arrays."""

    def read(self, path: Path, on_event: OnEvent) -> Arrays | None:
        names = self.required()
        for folder in filter(Path.is_dir, (path / self.folder, path)):
            # What is no file may be a pipe, which may never end.
            missing = [name for name in names if not (folder / name).is_file()]
            if missing and len(missing) < len(names):
                raise DataError(f"{self.name}: there is no file {folder / missing[0]}")
            if not missing:
                contents = ((name, (folder / name).read_bytes()) for name in names)
                files = dict(with_progress(contents, len(names), on_event, f"{self.name}: reading", "files"))
                return self.decode(files, on_event)
        archive = path if path.is_file() else path / self.archive
        if not archive.is_file():
            return None
        if (found := checksum_of(archive, "md5")) != self.md5:
            raise DataError(f"{archive} is not the published {self.archive}: md5 {found}, published {self.md5}")
        return self._read_archive(archive, on_event)

    def read_mirror(self, address: str, folder: Path, on_event: OnEvent) -> Arrays:
        archive = retrieve(address, self.md5, folder, on_event, f"{self.name}: downloading")
        return self._read_archive(archive, on_event)

    def _read_archive(self, path: Path, on_event: OnEvent) -> Arrays:
        members = {f"{self.folder}/{name}": name for name in self.required()}
        files = read_members(path, list(members), on_event, f"{self.name}: reading")
        return self.decode({members[member]: content for member, content in files.items()}, on_event)


def read_npz(path: Path, names: Sequence[str], most_bytes: int) -> Arrays:
    """Arrays of an ``.npz``; InputError if they are not plain, damaged or larger than ``most_bytes`` together."""
    try:
        with zipfile.ZipFile(path) as archive:
            there = archive.namelist()
            if missing := [name for name in names if f"{name}.npy" not in there]:
                found = ", ".join(name.removesuffix(".npy") for name in there[:12]) or "nothing"
                raise InputError(f"{path} lacks {', '.join(missing)}; it has {visible(found)}")
            members = {name: archive.getinfo(f"{name}.npy") for name in names}
            if sum(member.file_size for member in members.values()) > most_bytes:
                raise InputError(f"{path}: its arrays take more than {most_bytes >> 30} GiB of memory")
            return {name: _read_array(archive, member) for name, member in members.items()}
    except InputError:
        raise
    except Exception as error:
        expected = "an .npz of numbers or text, as np.savez writes it"
        raise InputError(f"{path} cannot be read ({first_line(error)}): expected {expected}") from error


def _read_array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(member) as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python 2 wrote headers that numpy warns of
        values: np.ndarray = np.lib.format.read_array(file, allow_pickle=False, max_header_size=MOST_HEADER)
        if file.read(1):  # the end, where zipfile verifies the checksum
            raise ValueError(f"{member.filename} is longer than its header says")
    if values.dtype.kind == "U":
        values.tolist()  # ValueError for invalid characters
    return values
