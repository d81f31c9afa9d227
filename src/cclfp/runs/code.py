"""The code that the numbers of a run depend on, as a fingerprint: records and checkpoints have that of their code.

It is the syntax tree of every module that training imports, directly or through others: what all methods share, and the
method's own file with what that imports. The other methods are no part of it, nor are the modules in ``NEUTRAL``.
Comments, docstrings and line breaks do not count.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import gc
import hashlib
import itertools
import platform
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from cclfp._version import __version__
from cclfp.core.workers import describe_processor
from cclfp.methods import METHODS
from cclfp.runs.record import Record

PACKAGE = Path(__file__).parents[1]
TRAINS = ("runs.start", "runs.training")  # what they import, and so on, is the code that trains
# No number depends on these: what a run is comes from its configuration, which its key is of.
NEUTRAL = ("_version", "errors", "events", "methods", "runs", "core.files", "core.workers")
OTHER_CODE_HINT = "their numbers may not be those of this code; --other-code retrain trains them again"
MOST_VERSIONS = 3  # that a message names


class Module(NamedTuple):
    """What a module contributes."""

    digest: bytes
    imports: frozenset[str]  # modules of this package, by their names without its own: ``core.memory``


def code(configuration: Mapping[str, Any]) -> dict[str, str]:
    """The code that trains a configuration, as records have it, and the version of torch.

    A run does not continue from a checkpoint that was made with other code.
    """
    return {"cclfp": __version__, "torch": str(torch.__version__), "source": _fingerprint_of(configuration)}


def _fingerprint_of(configuration: Mapping[str, Any]) -> str:
    return fingerprint(configuration["method"], is_own=configuration.get("method_file") is not None)


def is_other_code(record: Record) -> bool:
    """Whether other code than this made the record. One without a fingerprint of this kind is of other code."""
    return record["environment"].get("source") != _fingerprint_of(record["configuration"])


def made_by(record: Record) -> str:
    """The version of the code that made a record: ``cclfp 0.1.0, commit 4fb7fee6+``."""
    made = {name: text for name, text in record["environment"].items() if re.fullmatch(r"[\w.+-]+", str(text))}
    commit, source = made.get("commit"), made.get("source")
    version = f"cclfp {made.get('cclfp') or 'of an unknown version'}"
    if commit:
        return f"{version}, commit {commit[:8]}{'+' * commit.endswith('+')}"
    return f"{version}, code {source[:8]}" if source else version


def describe_other_code(others: Sequence[Record], count: int) -> str:
    """How many of so many stored runs are of other code, and of which versions."""
    versions = list(dict.fromkeys(map(made_by, others)))
    shown = "; ".join(versions[:MOST_VERSIONS])
    shown += f"; {more} more" if (more := len(versions[MOST_VERSIONS:])) else ""
    return f"{len(others)} of {count} runs in the store are of other code ({shown})"


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


@functools.cache
def fingerprint(method: str, is_own: bool = False, package: Path = PACKAGE) -> str:
    """The fingerprint of the code that trains a method; a user's own method may use what the others have."""
    kinds = METHODS.values() if is_own else [METHODS[method]]
    own = {kind.__module__.removeprefix("cclfp.") for kind in kinds}
    others = {kind.__module__.removeprefix("cclfp.") for kind in METHODS.values()}
    digest = hashlib.sha256()
    with _without_collector():
        for name in sorted(_closure(TRAINS, package, without=others) | _closure(own, package)):
            digest.update(name.encode() + b"\0" + read_module(name, package).digest)
    return digest.hexdigest()[:16]


def _closure(names: Iterable[str], package: Path, without: Iterable[str] = ()) -> set[str]:
    """The modules with these names and all that they import, except for neutral ones and those ``without``."""
    found: set[str] = set()
    waiting = set(names)
    while waiting:
        found |= waiting
        imported = {name for one in waiting for name in read_module(one, package).imports}
        waiting = {name for name in imported if not is_neutral(name)} - found - set(without)
    return found


def is_neutral(name: str) -> bool:
    """Whether a module is neutral, or belongs to a package of which all is."""
    return name in NEUTRAL or name.startswith("runs.")


@functools.cache
def read_module(name: str, package: Path = PACKAGE) -> Module:
    """A module's digest and imports."""
    shape, found = list[str](), list[ast.Import | ast.ImportFrom]()
    _read(ast.parse(_path(name, package).read_text("utf-8")), shape, found)
    named = {part for node in found for name in _named(node) for part in _with_packages(name)}
    imports = {module.removeprefix("cclfp.") for module in named if module.startswith("cclfp.")}
    digest = hashlib.sha256("\0".join(shape).encode()).digest()
    return Module(digest, frozenset(module for module in imports if _path(module, package).exists()))


def _named(node: ast.Import | ast.ImportFrom) -> list[str]:
    """The modules that an import names, and names in them, which may be modules."""
    names = [alias.name for alias in node.names]
    return names if isinstance(node, ast.Import) else [f"{node.module}", *(f"{node.module}.{name}" for name in names)]


def _with_packages(name: str) -> Iterator[str]:
    """A module's name, and those of the packages that it is in."""
    return itertools.accumulate(name.split("."), "{}.{}".format)


def _path(name: str, package: Path) -> Path:
    path = package.joinpath(*name.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _read(node: ast.AST, shape: list[str], imports: list[ast.Import | ast.ImportFrom]) -> None:
    """Append the parts of a syntax tree, in one form for all versions of Python; strings that stand alone are prose."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        imports.append(node)
    shape.append(type(node).__name__)
    for name, value in ast.iter_fields(node):
        if isinstance(value, list):
            shape.append(name)
            for part in value:
                if not isinstance(part, ast.AST):
                    shape.append(ascii(part))
                elif not (isinstance(part, ast.Expr) and _is_text(part.value)):
                    _read(part, shape, imports)
        elif isinstance(value, ast.AST):
            if not isinstance(value, ast.expr_context):  # its place says whether a name is read or assigned
                shape.append(name)
                _read(value, shape, imports)
        elif value is not None:
            shape.append(f"{name}={value!a}")
    shape.append(";")


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


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
