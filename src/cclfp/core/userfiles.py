"""User code named as ``FILE.py:NAME``: a backbone or a method that a run in another process can load.

The content of the file is part of a run's key. The file must therefore be self-contained: whatever it imports must be
installed.
"""

from __future__ import annotations

import ast
import hashlib
import signal
import sys
import traceback
import types
from pathlib import Path
from typing import Any

from cclfp.errors import InputError, Stopped

Reference = dict[str, str]  # {"file": its path, "object": the name in it, "sha256": of the file}


def is_reference(text: str) -> bool:
    """Whether a text has the form of a reference, such as ``nets.py:make``."""
    return text.endswith(".py") or ".py:" in text


def refer(what: str, text: str) -> Reference:
    """The reference for ``FILE.py:NAME``, with the current checksum of the file."""
    file, _, name = text.rpartition(":")
    if not file.endswith(".py") or not name:
        raise InputError(f"{what} {text!r}: expected FILE.py:NAME, with the name of a function or class in the file")
    path = Path(file).expanduser().resolve()
    return {"file": str(path), "object": name, "sha256": hashlib.sha256(_read(what, path)).hexdigest()}


def resolve(what: str, reference: Reference) -> Any:
    """Run the file of a reference, which must not have changed, and return the object that the reference names."""
    path, name, digest = Path(reference["file"]), reference["object"], reference["sha256"]
    content = _read(what, path)
    if hashlib.sha256(content).hexdigest() != digest:
        raise InputError(f"{path} has changed since this run was requested: run the command again")
    module = types.ModuleType(f"cclfp_user_{digest[:16]}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # where dataclasses look for it
    try:
        exec(compile(content, str(path), "exec"), module.__dict__)  # the hashed content, not a cached compilation
    except ModuleNotFoundError as error:
        raise InputError(f"{what} file {path} needs {error.name}: install it, or put all code in one file") from error
    except BaseException as error:  # not even sys.exit may end the command
        if is_interrupt(error):
            raise
        raise InputError(f"{what} file {path} cannot be run: {describe(error)}") from error
    found = getattr(module, name, None)
    if not callable(found):
        names = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise InputError(f"{path} has no function or class {name!r}; it has: {', '.join(names) or 'none'}")
    return found


def imported_by(reference: Reference) -> set[str]:
    """The packages that the file of a reference imports, such as ``torch``; a dot for those beside the file."""
    tree = ast.parse(_read("imported", Path(reference["file"])))
    found = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    relative = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    found += ["." if node.level or node.module is None else node.module for node in relative]
    return {name.partition(".")[0] or "." for name in found}


def is_interrupt(error: BaseException) -> bool:
    """Whether an exception comes from a signal, such as Ctrl-C, and not from the user's code."""
    if isinstance(error, KeyboardInterrupt):  # the command line installs a handler that raises Stopped instead
        return signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return isinstance(error, Stopped)


def describe(error: BaseException) -> str:
    """The text of an exception from user code, even if its ``__str__`` fails."""
    return "".join(traceback.format_exception_only(error)).strip()


def show_reference(reference: Reference) -> str:
    """The reference as users write it, without the folder."""
    return f"{Path(reference['file']).name}:{reference['object']}"


def _read(what: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{what} file {path} cannot be read: {error}") from error
