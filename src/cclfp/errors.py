"""Errors a user can cause and mend. The command line prints them and exits with code 2."""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable


class InputError(ValueError):
    """What was given, what was expected, and what to do about it."""


class DataError(InputError):
    """A dataset that cannot be had, or is not what was published."""


class DamagedError(InputError):
    """A file that is not as it was written."""


class DivergenceError(InputError):
    """A step, or a task's end, that made weights or a state with NaN or infinite numbers. The learner is as it was."""


class RunError(RuntimeError):
    """A run that failed in its own process, through no mistake of the user's. The command line exits with code 1."""


class Stopped(BaseException):
    """A signal asked this process to stop. No Exception, so that nothing on the way takes it for a failed run."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def shortage(error: Exception) -> str | None:
    """What an error says that there is too little of, memory or open files; None where it says something else.

    >>> shortage(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"))
    'there is not enough memory, on this machine or within the limits of this process'
    """
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.EMFILE, errno.ENFILE):
        return "too many open files: raise the limit of this process, ulimit -n"
    is_torchs = isinstance(error, RuntimeError) and ("allocate memory" in str(error) or "out of memory" in str(error))
    if isinstance(error, MemoryError) or number == errno.ENOMEM or is_torchs:
        return "there is not enough memory, on this machine or within the limits of this process"
    return None


def unknown(kind: str, name: str, known: Iterable[str]) -> InputError:
    """The error for a name that does not exist, with the nearest one that does.

    >>> print(unknown("method", "ccl-pf", ["er", "ccl-fp"]))
    unknown method 'ccl-pf'. Did you mean 'ccl-fp'? Known: er, ccl-fp
    """
    known = list(known)
    folded = {candidate.casefold(): candidate for candidate in known}
    close = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=0.5)
    hint = f" Did you mean {folded[close[0]]!r}?" if close else ""
    return InputError(f"unknown {kind} {name!r}.{hint} Known: {', '.join(known)}")
