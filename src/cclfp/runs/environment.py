"""What a run was made with: versions, commit, device."""

from __future__ import annotations

import functools
import hashlib
import platform
import subprocess
from pathlib import Path

import torch

from cclfp._version import __version__
from cclfp.core.checks import check_device
from cclfp.errors import InputError

PACKAGE = Path(__file__).parents[1]


def pick_device(wanted: str) -> str:
    """``auto`` is cuda where there is one."""
    if wanted not in ("auto", "cpu", "cuda"):
        raise InputError(f"device {wanted!r}: expected auto, cpu or cuda")
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return check_device(wanted).type


@functools.cache
def code() -> dict[str, str]:
    """The code that trains, exactly: a checkpoint made with another is not gone on from."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        digest.update(path.relative_to(PACKAGE).as_posix().encode() + b"\0" + path.read_bytes())
    return {"cclfp": __version__, "torch": str(torch.__version__), "source": digest.hexdigest()[:16]}


@functools.cache
def commit() -> str | None:
    """The commit this code is at, with a + where the package was changed; None where it is not in a git checkout."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(PACKAGE), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        # A checkout of something else, with cclfp installed somewhere inside it, is not ours.
        git("ls-files", "--error-unmatch", __file__)
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def device_name(device: str) -> str:
    """The processor's or the graphics card's own name."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    information = Path("/proc/cpuinfo")
    lines = information.read_text(errors="replace").splitlines() if information.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
