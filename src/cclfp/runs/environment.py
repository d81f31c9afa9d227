"""What a run was made with: versions, commit, device."""

from __future__ import annotations

import dis
import functools
import hashlib
import platform
import subprocess
from pathlib import Path
from types import CodeType
from typing import Any

import torch

from cclfp._version import __version__
from cclfp.core.checks import check_device
from cclfp.errors import InputError

NOP = dis.opmap["NOP"]
PACKAGE = Path(__file__).parents[1]
# The code that affects what a run computes.
TRAINS = (
    "losses.py",
    "transforms.py",
    *(f"{package}/**/*.py" for package in ("core", "data", "engine", "learner", "methods", "nets", "streams")),
    "runs/starting.py",
    "runs/training.py",
)


def pick_device(wanted: str) -> str:
    """``auto`` is cuda where there is one."""
    if wanted not in ("auto", "cpu", "cuda"):
        raise InputError(f"device {wanted!r}: expected auto, cpu or cuda")
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return check_device(wanted).type


@functools.cache
def code() -> dict[str, str]:
    """The code that trains: a run does not continue from a checkpoint that was made with other code."""
    digest = hashlib.sha256()
    for path in sorted(file for part in TRAINS for file in PACKAGE.glob(part)):
        digest.update(path.relative_to(PACKAGE).as_posix().encode() + b"\0" + without_prose(path.read_text("utf-8")))
    return {"cclfp": __version__, "torch": str(torch.__version__), "source": digest.hexdigest()[:16]}


def without_prose(source: str) -> bytes:
    """What Python makes of a source text, which comments, docstrings and line breaks do not change.

    >>> documented = "def f(x):\\n    'Add one.'\\n    return x + 1  # one more"
    >>> without_prose(documented) == without_prose("def f(x): return x+1")
    True
    """
    return repr(_essence(compile(source, "", "exec", optimize=2, dont_inherit=True))).encode()


def _essence(constant: Any) -> Any:
    """What matters of a code object or another constant: line numbers are left out, and sets are sorted."""
    if isinstance(constant, CodeType):
        names = (constant.co_names, constant.co_varnames, constant.co_freevars, constant.co_flags)
        # Python replaces a docstring by an instruction that does nothing.
        code = constant.co_code
        pairs = (code[i : i + 2] for i in range(0, len(code), 2))
        instructions = b"".join(pair for pair in pairs if pair[0] != NOP) if NOP in code else code
        return instructions, names, [_essence(part) for part in constant.co_consts]
    if isinstance(constant, tuple):
        return tuple(map(_essence, constant))
    return sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant


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
