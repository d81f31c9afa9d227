"""Datasets that are published as one archive with one folder in it."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from cclfp.data.archive import diagnose, read_members
from cclfp.data.download import retrieve
from cclfp.data.source import Arrays, Origin, Source, md5_of
from cclfp.errors import DataError
from cclfp.events import OnEvent, with_progress

Files = dict[str, bytes]  # path below the archive's folder -> content


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
    """A dataset read from the archive, from its folder, or from a folder that contains either."""

    archive: Archive

    @abc.abstractmethod
    def required(self) -> list[str]:
        """The files to read, as paths relative to the archive's folder."""

    @abc.abstractmethod
    def optional(self) -> list[str]:
        """The other files in the archive."""

    @abc.abstractmethod
    def is_folder(self, folder: Path) -> bool:
        """Whether this is the archive's folder, complete or not."""

    @abc.abstractmethod
    def check_folder(self, folder: Path) -> None:
        """Raise DataError if files are missing, unexpected or links."""

    @abc.abstractmethod
    def decode(self, files: Files, origin: str, on_event: OnEvent) -> Arrays:
        """Verify the required files and decode them into arrays."""

    def read(self, path: Path, on_event: OnEvent) -> Arrays | None:
        if path.is_file():
            return self._read_archive(path, on_event)
        for folder in (path / self.archive.folder, path):
            if self.is_folder(folder):
                return self._read_folder(folder, on_event)
        archive = path / self.archive.name
        return self._read_archive(archive, on_event) if archive.is_file() else None

    def origins(self, on_event: OnEvent, folder: Path) -> list[Origin]:
        def download() -> Arrays:
            path = retrieve(self.archive.url, f"md5:{self.archive.md5}", folder, on_event, f"{self.name}: downloading")
            return self._read_archive(path, on_event)

        return [(self.archive.url, download)]

    def _read_folder(self, folder: Path, on_event: OnEvent) -> Arrays:
        self.check_folder(folder)
        required = self.required()

        def contents() -> Iterator[tuple[str, bytes]]:
            for name in required:
                yield name, (folder / name).read_bytes()

        files = dict(with_progress(contents(), len(required), on_event, f"{self.name}: reading", "files"))
        return self.decode(files, str(folder), on_event)

    def _read_archive(self, path: Path, on_event: OnEvent) -> Arrays:
        start = f"{self.archive.folder}/"
        required, optional = ([start + name for name in names] for names in (self.required(), self.optional()))
        found = md5_of(path)
        if found != self.archive.md5:
            raise DataError(
                f"{path} is not the published {self.archive.name}: md5 {found}, published {self.archive.md5} "
                f"({path.stat().st_size:,} bytes, published {self.archive.size:,}); "
                f"{diagnose(path, required, optional)}. Nothing of it was kept"
            )
        # This is exactly the published archive, so additional members are harmless.
        files = read_members(path, required, None, on_event, f"{self.name}: reading")
        return self.decode({name.removeprefix(start): content for name, content in files.items()}, str(path), on_event)
