"""What a run was made with: versions, commit, device."""

from __future__ import annotations

import ast
import contextlib
import functools
import gc
import hashlib
import platform
import subprocess
from collections.abc import Iterator
from pathlib import Path

import torch

from cclfp._version import __version__
from cclfp.core.machine import describe_processor

PACKAGE = Path(__file__).parents[1]
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)  # what may have a docstring
# The code that affects what a run computes.
TRAINS = (
    "losses.py",
    "schedules.py",
    "transforms.py",
    *(f"{package}/**/*.py" for package in ("core", "data", "engine", "learner", "methods", "nets", "streams")),
    "runs/starting.py",
    "runs/training.py",
)


@functools.cache
def code() -> dict[str, str]:
    """The code that trains: a run does not continue from a checkpoint that was made with other code."""
    digest = hashlib.sha256()
    with _without_collector():
        for path in sorted(file for part in TRAINS for file in PACKAGE.glob(part)):
            digest.update(path.relative_to(PACKAGE).as_posix().encode() + b"\0")
            digest.update(without_prose(path.read_text("utf-8")))
    return {"cclfp": __version__, "torch": str(torch.__version__), "source": digest.hexdigest()[:16]}


def without_prose(source: str) -> bytes:
    """The syntax tree of a source text, which comments, docstrings and line breaks do not change.

    >>> without_prose("'Add one.'; f = lambda x: x + 1  # one more") == without_prose("f = lambda x: x+1")
    True
    """
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:]
    return ast.dump(tree).encode()


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """Pause the garbage collector, which takes longer to traverse large syntax trees than the parser to make them."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


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
