"""Code of a user's own, named as ``FILE.py:NAME``: a backbone or a method that a run in another process can load.

A run is known by what is in the file, so the file must stand alone: what it imports must be installed.
"""

from __future__ import annotations

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
    """Whether a text names something in a file: ``nets.py:make``."""
    return text.endswith(".py") or ".py:" in text


def refer(what: str, text: str) -> Reference:
    """The reference that ``FILE.py:NAME`` names, with the sum of the file as it is now."""
    file, _, name = text.rpartition(":")
    if not file.endswith(".py") or not name:
        raise InputError(f"{what} {text!r}: expected FILE.py:NAME, the name in the file to use")
    path = Path(file).expanduser().resolve()
    return {"file": str(path), "object": name, "sha256": hashlib.sha256(_read(what, path)).hexdigest()}


def resolve(what: str, reference: Reference) -> Any:
    """The object a reference stands for. The file is run, and must be as it was."""
    path, name, digest = Path(reference["file"]), reference["object"], reference["sha256"]
    content = _read(what, path)
    if hashlib.sha256(content).hexdigest() != digest:
        raise InputError(f"{path} was changed since this run was asked for: run the command again")
    module = types.ModuleType(f"cclfp_user_{digest[:16]}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # where dataclasses look for it
    try:
        exec(compile(content, str(path), "exec"), module.__dict__)  # what was hashed, not a cached compilation
    except ModuleNotFoundError as error:
        raise InputError(f"{what} file {path} needs {error.name}: install it, or have all in one file") from error
    except BaseException as error:  # sys.exit too must not end the command
        if is_interrupt(error):
            raise
        raise InputError(f"{what} file {path} cannot be run: {describe(error)}") from error
    found = getattr(module, name, None)
    if not callable(found):
        names = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise InputError(f"{path} has no function or class {name!r}; it has: {', '.join(names) or 'none'}")
    return found


def is_interrupt(error: BaseException) -> bool:
    """Whether an exception is a signal's, such as Ctrl-C, and not one that a user's code raised."""
    if isinstance(error, KeyboardInterrupt):  # the command line has another handler, which raises Stopped
        return signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return isinstance(error, Stopped)


def describe(error: BaseException) -> str:
    """An exception of a user's code in words, even where its own ``__str__`` fails."""
    return "".join(traceback.format_exception_only(error)).strip()


def show_reference(reference: Reference) -> str:
    """As users write it, without the folder."""
    return f"{Path(reference['file']).name}:{reference['object']}"


def _read(what: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{what} file {path} cannot be read: {error}") from error
