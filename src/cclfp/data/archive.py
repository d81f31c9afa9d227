"""Untrusted archives: their members are checked first, then read into memory, and never unpacked to disk."""

from __future__ import annotations

import contextlib
import dataclasses
import stat
import struct
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from cclfp.data.source import abbreviate, first_line
from cclfp.errors import DataError
from cclfp.events import OnEvent, with_progress

# The exceptions of tarfile, zipfile and zlib for damaged archives.
BROKEN = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    IndexError,
    OSError,
    OverflowError,
    RuntimeError,
    ValueError,
)


@dataclasses.dataclass(frozen=True)
class Member:
    """The name and the kind of an archive's entry."""

    name: str
    kind: str  # "file", "folder" or "other" (a link or a device)


class Tar:
    """An open .tar.gz file."""

    def __init__(self, file: tarfile.TarFile) -> None:
        self.file = file

    def members(self) -> Iterator[Member]:
        for info in self.file:
            yield Member(info.name, "file" if info.isfile() else "folder" if info.isdir() else "other")

    def contents(self, names: set[str]) -> Iterator[tuple[str, bytes]]:
        for info in self.file:  # in the archive's order, because a compressed tar file cannot be read backwards
            if info.name in names and (member := self.file.extractfile(info)) is not None:
                yield info.name, member.read()


class Zip:
    """An open .zip file."""

    def __init__(self, file: zipfile.ZipFile) -> None:
        self.file = file

    def members(self) -> Iterator[Member]:
        for info in self.file.infolist():
            plain = stat.S_IFMT(info.external_attr >> 16) in (0, stat.S_IFREG, stat.S_IFDIR)
            yield Member(info.filename.rstrip("/"), "other" if not plain else "folder" if info.is_dir() else "file")

    def contents(self, names: set[str]) -> Iterator[tuple[str, bytes]]:
        for name in names:
            yield name, self.file.read(name)


@contextlib.contextmanager
def open_archive(path: Path) -> Iterator[Tar | Zip]:
    """Open a .zip or .tar.gz file; the content decides which."""
    with path.open("rb") as file:
        zipped = file.read(2) == b"PK"
    if zipped:
        with zipfile.ZipFile(path) as zip_file:
            yield Zip(zip_file)
    else:
        with tarfile.open(path, "r:gz") as tar_file:
            yield Tar(tar_file)


def read_members(
    path: Path, required: Iterable[str], optional: Iterable[str] | None, on_event: OnEvent, what: str
) -> dict[str, bytes]:
    """The contents of the required members. Other members must be in ``optional``; None: any are allowed."""
    names = set(required)
    try:
        with open_archive(path) as archive:
            if found := find_faults(archive.members(), names, optional):
                raise DataError(f"{path} is refused: it has members {'; '.join(found)}")
            return dict(with_progress(archive.contents(names), len(names), on_event, what, "files"))
    except DataError:
        raise
    except BROKEN as error:
        raise DataError(f"{path} is broken: {first_line(error)}") from error


def diagnose(path: Path, required: Iterable[str], optional: Iterable[str]) -> str:
    """What is wrong with an archive, judging only by the names of its members."""
    members: list[Member] = []
    findings = []
    try:
        with open_archive(path) as archive:
            members.extend(archive.members())
    except BROKEN as error:
        last = f" (in or after {members[-1].name})" if members else ""
        findings.append(f"it is truncated, or not an archive of this kind: {first_line(error)}{last}")
    if members:
        findings += [f"members {fault}" for fault in find_faults(members, set(required), optional)]
    return "; ".join(findings) or "its members have the right names, so it was packed again or changed"


def find_faults(members: Iterable[Member], required: set[str], optional: Iterable[str] | None) -> list[str]:
    """What is wrong with an archive's members, judging only by their names and kinds."""
    members = list(members)
    counts = Counter(member.name for member in members)
    unsafe = {member.name for member in members if member.kind == "other" or _is_outside(member.name)}
    files = {member.name for member in members if member.kind == "file"}
    extra: list[str] = []
    if optional is not None:
        known = required | set(optional)
        folders = {str(parent) for name in known for parent in PurePosixPath(name).parents}
        belongs = {"file": known | unsafe, "folder": folders | unsafe, "other": unsafe}
        extra = [member.name for member in members if member.name not in belongs[member.kind]]
    found = {
        "that are links, devices or outside the folder": list(unsafe),
        "that are duplicates": [name for name, count in counts.items() if count > 1],
        "that are missing": list(required - files - unsafe),
        "that do not belong there": extra,
    }
    return [f"{fault}: {abbreviate(sorted(names))}" for fault, names in found.items() if names]


def _is_outside(name: str) -> bool:
    """Whether a path leads out of the folder of the archive, on any platform."""
    return name.startswith("/") or ".." in name.split("/") or "\\" in name or name[1:2] == ":"
