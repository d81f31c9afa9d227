"""User code named as ``FILE.py:NAME``: a backbone or a method that a run in another process can load.

The content of the file is part of a run's key. The file must therefore be self-contained: whatever it imports must be
installed.
"""

from __future__ import annotations

import contextlib
import hashlib
import signal
import sys
import traceback
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cclfp.errors import InputError, Stopped, reason_of

Reference = dict[str, str]  # {"file": its path, "object": the name in it, "sha256": of the file}

_received: dict[str, bytes] = {}  # files of another machine, by their checksums
_modules: dict[tuple[Path, str], types.ModuleType] = {}  # the files that were run, by their paths and checksums


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
    """The object that a reference names. Its file must not have changed; it is run once per process and content."""
    path, name, digest = Path(reference["file"]), reference["object"], reference["sha256"]
    content = content_of(what, reference)
    if hashlib.sha256(content).hexdigest() != digest:
        raise InputError(f"{path} has changed since this run was requested: run the command again")
    if (path, digest) not in _modules:
        module = types.ModuleType(f"cclfp_user_{digest[:16]}")
        module.__file__ = str(path)
        sys.modules[module.__name__] = module  # where dataclasses look for it
        with running(f"{what} file {path} cannot be run"):
            exec(compile(content, str(path), "exec"), module.__dict__)  # the hashed content, not a cached compilation
        _modules[path, digest] = module
    module = _modules[path, digest]
    found = getattr(module, name, None)
    if not callable(found):
        names = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise InputError(f"{path} has no function or class {name!r}; it has: {', '.join(names) or 'none'}")
    return found


@contextlib.contextmanager
def running(what: str) -> Iterator[None]:
    """Turn what a user's code raises inside, even SystemExit, into an InputError. A signal, such as Ctrl-C, is none."""
    try:
        yield
    except Stopped:  # which the command line's handler raises instead of KeyboardInterrupt
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            raise
        text = "".join(traceback.format_exception_only(error)).strip()  # even if its __str__ fails
        if isinstance(error, ModuleNotFoundError):
            text = f"it needs {error.name}: install it, or put all code in one file"
        raise InputError(f"{what}: {text}") from error


def content_of(what: str, reference: Reference) -> bytes:
    """The content of the file of a reference, whether it is on this machine or was received from another."""
    return _received.get(reference["sha256"]) or _read(what, Path(reference["file"]))


def receive(content: bytes) -> None:
    """Use the content of a file of another machine, wherever a reference has its checksum."""
    _received[hashlib.sha256(content).hexdigest()] = content


def show_reference(reference: Reference) -> str:
    """The reference as users write it, without the folder."""
    return f"{Path(reference['file']).name}:{reference['object']}"


def _read(what: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{what} file {path} cannot be read: {reason_of(error)}") from error
