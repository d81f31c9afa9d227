"""What a run was made on: the commit and the device."""

from __future__ import annotations

import functools
import platform
import subprocess
from pathlib import Path

import torch

from cclfp.core.workers import describe_processor

PACKAGE = Path(__file__).parents[1]


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
    """The processor's or the GPU's own name."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    return describe_processor().get("model name") or platform.processor() or platform.machine()
