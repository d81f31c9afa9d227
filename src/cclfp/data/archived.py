"""Datasets that are published as one archive, which holds one folder."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from cclfp.data.archive import diagnose, read_members
from cclfp.data.download import retrieve
from cclfp.data.source import Arrays, Listener, Origin, Source, md5_of, with_progress
from cclfp.errors import DataError

Files = dict[str, bytes]  # path below the archive's folder -> content


@dataclasses.dataclass(frozen=True)
class Archive:
    """An archive as its authors publish it."""

    url: str
    md5: str
    size: int
    folder: str  # the one in it

    @property
    def name(self) -> str:
        return PurePosixPath(self.url).name


class ArchivedSource(Source):
    """Reads the archive, its folder, or a folder that holds either."""

    archive: Archive

    @abc.abstractmethod
    def required(self) -> list[str]:
        """The files that are read: paths below the archive's folder."""

    @abc.abstractmethod
    def optional(self) -> list[str]:
        """The other files of the archive."""

    @abc.abstractmethod
    def is_folder(self, folder: Path) -> bool:
        """Whether a folder is the archive's, whole or not."""

    @abc.abstractmethod
    def check_folder(self, folder: Path) -> None:
        """DataError where files are missing, do not belong there, or are links."""

    @abc.abstractmethod
    def decode(self, files: Files, origin: str, listener: Listener) -> Arrays:
        """The arrays from the required files, which are verified before they are decoded."""

    def read(self, path: Path, listener: Listener) -> Arrays | None:
        if path.is_file():
            return self._read_archive(path, listener)
        for folder in (path / self.archive.folder, path):
            if self.is_folder(folder):
                return self._read_folder(folder, listener)
        archive = path / self.archive.name
        return self._read_archive(archive, listener) if archive.is_file() else None

    def origins(self, listener: Listener, folder: Path) -> list[Origin]:
        def get() -> Arrays:
            path = retrieve(self.archive.url, f"md5:{self.archive.md5}", folder, listener, f"{self.name}: downloading")
            return self._read_archive(path, listener)

        return [(self.archive.url, get)]

    def _read_folder(self, folder: Path, listener: Listener) -> Arrays:
        self.check_folder(folder)
        required = self.required()

        def contents() -> Iterator[tuple[str, bytes]]:
            for name in required:
                yield name, (folder / name).read_bytes()

        files = dict(with_progress(contents(), len(required), listener, f"{self.name}: reading", "files"))
        return self.decode(files, str(folder), listener)

    def _read_archive(self, path: Path, listener: Listener) -> Arrays:
        start = f"{self.archive.folder}/"
        required, optional = ([start + name for name in names] for names in (self.required(), self.optional()))
        found = md5_of(path)
        if found != self.archive.md5:
            raise DataError(
                f"{path} is not the published {self.archive.name}: md5 {found}, published {self.archive.md5} "
                f"({path.stat().st_size:,} bytes, published {self.archive.size:,}); "
                f"{diagnose(path, required, optional)}. Nothing was kept of it"
            )
        # It is the published archive, to the byte: what else its authors packed does no harm.
        files = read_members(path, required, None, listener, f"{self.name}: reading")
        return self.decode({name.removeprefix(start): content for name, content in files.items()}, str(path), listener)
