"""The fingerprint of the code that the numbers of a run depend on, which records and checkpoints have.

It covers the syntax trees of all files that train. Of the methods it covers the run's own and those that it imports.
Comments, docstrings, the texts of errors, line breaks and the version of Python do not count.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import platform
import re
import subprocess
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch

from cclfp._version import __version__
from cclfp.core.files import home, write_atomic
from cclfp.errors import InputError
from cclfp.methods import METHODS
from cclfp.runs.record import Record

PACKAGE = Path(__file__).parents[1]
# The folders and files that train. What a run is comes from its configuration, which is part of its key.
FILES = ("losses.py", "metrics.py", "schedules.py", "transforms.py", "runs/training.py")
TRAINS = ("core/", "data/", "engine/", "learner/", "nets/", "streams/", *FILES)
# Files in these folders that no number depends on.
NEUTRAL = ("core/files.py", "core/workers.py", "learner/use_images.py", "streams/pictures.py")
OTHER_CODE = "‡"  # marks numbers that other code than this has made
OTHER_CODE_RISK = "their numbers may not be those of this code"
MOST_VERSIONS = 3  # that a message names
OTHER_CODE_HINT = f"{OTHER_CODE_RISK}; --other-code retrain trains them again"


def code(configuration: Mapping[str, Any]) -> dict[str, str]:
    """The code that trains a configuration, as records and checkpoints have it, and the version of torch."""
    source = fingerprint(None if configuration.get("method_file") is not None else configuration["method"])
    return {"cclfp": __version__, "torch": str(torch.__version__), "source": source}


def in_words(made: Mapping[str, str]) -> str:
    """What :func:`code` gives, for people: ``cclfp 0.1.0, torch 2.9.1, source 4fb7fee61234abcd``."""
    return ", ".join(f"{name} {text}" for name, text in made.items())


def is_other_code(record: Record) -> bool:
    """Whether other code than this made the record. One without a fingerprint of this kind is of other code."""
    return record["environment"].get("source") != code(record["configuration"])["source"]


def made_by(record: Record) -> str:
    """The version of the code that made a record: ``cclfp 0.1.0, commit 4fb7fee6+``."""
    made = {name: text for name, text in record["environment"].items() if re.fullmatch(r"[\w.+-]+", str(text))}
    commit, source = made.get("commit"), made.get("source")
    version = f"cclfp {made.get('cclfp') or 'of an unknown version'}"
    if commit:
        return f"{version}, commit {commit[:8]}{'+' * commit.endswith('+')}"
    return f"{version}, code {source[:8]}" if source else version


def describe_other_code(records: Collection[Record]) -> str:
    """How many of these runs are of other code, and of which versions; empty if none is."""
    others = [made_by(record) for record in records if is_other_code(record)]
    versions = "; ".join([*dict.fromkeys(others)][:MOST_VERSIONS]) + "; ..." * (len({*others}) > MOST_VERSIONS)
    return f"{len(others)} of {len(records)} runs are of other code ({versions})" if others else ""


@functools.cache
def commit() -> str | None:
    """The commit this code is at, with a + where the package was changed; None where it is not in a git checkout."""

    def git(*arguments: str) -> str:
        command = ["git", "--no-optional-locks", "-C", str(PACKAGE), *arguments]  # a kill would leave them
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
    information = Path("/proc/cpuinfo")
    text = information.read_text(errors="replace") if information.exists() else ""
    named = re.search(r"^model name\s*: (\S.*)", text, re.MULTILINE)
    return named[1] if named else platform.machine()


@functools.cache
def fingerprint(method: str | None, package: Path = PACKAGE) -> str:
    """The fingerprint of the code that trains a method; None is a user's own, which may use what the others have.

    It is kept with a checksum of the files, because parsing them would slow every command down.
    """
    kinds = METHODS.values() if method is None else [METHODS[method]]
    own = _with_imported_methods({kind.__module__.rpartition(".")[2] for kind in kinds}, package)
    names = sorted(path.relative_to(package).as_posix() for path in package.rglob("*.py"))
    texts = {name: (package / name).read_text("utf-8") for name in names if trains(name) or name in own}
    contents = hashlib.sha256(Path(__file__).read_bytes() + repr(texts).encode()).hexdigest()
    kept, before = None, ""
    with contextlib.suppress(OSError, ImportError, InputError):  # without a place to keep it
        kept = home() / "fingerprints" / (method or "own")
        before = kept.read_text("ascii", "replace")
    if before == _sealed(before[:16], contents):
        return before[:16]
    digest = hashlib.sha256()
    for name, text in texts.items():
        digest.update(f"{name}\0{read_code(text)}\0".encode())
    found = digest.hexdigest()[:16]
    with contextlib.suppress(OSError, InputError):
        if kept is not None and (SEALED.fullmatch(before) or not kept.exists()):  # a file of another program stays
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(kept, _sealed(found, contents).encode())
    return found


SEALED = re.compile("[0-9a-f]{16} [0-9a-f]{64}")  # what _sealed gives


def _sealed(found: str, contents: str) -> str:
    """A fingerprint with a checksum of itself and of what it is of."""
    return f"{found} {hashlib.sha256(f'{found} {contents}'.encode()).hexdigest()}"


def trains(file: str) -> bool:
    """Whether numbers depend on a file, which is no method's."""
    return file.startswith(TRAINS) and file not in NEUTRAL


def _with_imported_methods(names: set[str], package: Path) -> set[str]:
    """The files of these modules of ``methods``, and of those that they import."""
    found: set[str] = set()
    while names:
        files = {f"methods/{name}.py" for name in names}
        texts = "".join(package.joinpath(file).read_text("utf-8") for file in files)
        found |= files
        names = {name for name in re.findall(r"from cclfp\.methods\.(\w+)", texts) if f"methods/{name}.py" not in found}
    return found


@functools.cache
def read_code(text: str) -> str:
    """Code in one form, which is the same for all versions of Python."""
    return _shape_of(ast.parse(text))


def _shape_of(part: Any) -> str:
    """A part of a syntax tree as the types of its nodes and their fields, without prose and without empty fields.

    Newer versions of Python have more fields. Constants that stand alone, such as docstrings, are prose. Strings are
    written in ASCII, because versions do not agree on which characters can be printed.
    """
    if isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant):
        return ""
    if isinstance(part, list):
        return ", ".join(filter(None, map(_shape_of, part)))
    if not isinstance(part, ast.AST):
        return ascii(part)
    fields = {name: value for name, value in ast.iter_fields(part) if name != "ctx" and value is not None}
    if isinstance(part, ast.JoinedStr):  # an f-string has empty pieces in some versions
        fields["values"] = [piece for piece in part.values if getattr(piece, "value", None) != ""]
    if isinstance(part, ast.Raise) and isinstance(part.exc, ast.Call):  # what it is called with is prose
        fields["exc"] = part.exc.func
    shapes = {name: shape for name, value in fields.items() if (shape := _shape_of(value))}
    return f"{type(part).__name__}({', '.join(f'{name}={shape}' for name, shape in shapes.items())})"
