"""The exceptions of the package. The command line prints an InputError without a traceback and exits with code 2."""

from __future__ import annotations

import difflib
import errno
import traceback
from collections.abc import Iterable


class InputError(ValueError):
    """Invalid input. The message names the value, what was expected and, where it helps, what to do."""


class DataError(InputError):
    """A dataset that cannot be downloaded or read, or that differs from the published one."""


class DamagedError(InputError):
    """A file whose content differs from what was written."""


class DivergenceError(InputError):
    """A step or ``end_task`` produced NaN or infinite numbers. The learner keeps its state from before the call."""


class RunError(RuntimeError):
    """A run failed in its own process, and not because of invalid input. The command line exits with code 1."""


class Stopped(BaseException):
    """A signal asked this process to stop. No Exception, so that handlers of failed runs do not catch it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def shortage(error: Exception) -> str | None:
    """A message for an error that reports a lack of memory or of file descriptors; None for any other error.

    The error may have come while one of these was handled.

    >>> shortage(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"))
    'there is not enough memory, on this machine or within the limits of this process'
    """
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.EMFILE, errno.ENFILE):
        return "too many open files: raise the limit of this process (ulimit -n)"
    texts = ("allocate memory", "out of memory", "failed to map segment")  # of torch, and of the loader of libraries
    from_text = isinstance(error, RuntimeError | ImportError) and any(text in str(error) for text in texts)
    if from_text or isinstance(error, MemoryError) or number == errno.ENOMEM:
        return "there is not enough memory, on this machine or within the limits of this process"
    earlier = error.__context__  # torch.save raises another error while it closes its file
    return shortage(earlier) if isinstance(earlier, Exception) else None


def reason_of(error: Exception) -> str:
    """Why something failed, without the name of the file where the system says it: the sentence has that already.

    >>> reason_of(FileNotFoundError(2, "No such file or directory", "a.png"))
    'No such file or directory'
    """
    return getattr(error, "strerror", None) or str(error)


def first_line(error: Exception) -> str:
    """The first line of an error's message, shortened; its type if the message is empty."""
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:300]


def named(error: Exception) -> str:
    """The type of an error and the first line of its message."""
    return f"{type(error).__name__}: {first_line(error)}" if str(error).strip() else first_line(error)


def visible(text: str) -> str:
    """A text with escapes in the place of what a terminal would take for a command, such as a colour.

    >>> print(visible("a\\x1b[31mred.png"))
    a\\x1b[31mred.png
    """
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)


def portable(error: Exception) -> InputError | RunError:
    """An error for another process, which may lack its class and its traceback: both become text."""
    for kind in (InputError, RunError):
        if isinstance(error, kind):
            return kind(str(error))
    return RunError(shortage(error) or "\n".join([named(error), *traceback.format_exception(error)]))


def unknown(kind: str, name: str, known: Iterable[str], unlisted: Iterable[str] = ()) -> InputError:
    """The error for an unknown name. It suggests the most similar known name.

    Of the names that are ``unlisted``, which may be many, only those similar to the unknown one are shown.

    >>> print(unknown("method", "ccl-pf", ["er", "ccl-fp"]))
    unknown method 'ccl-pf'. Did you mean 'ccl-fp'? Known: er, ccl-fp
    >>> print(unknown("benchmark", "pets-1", ["split-mnist"], ["pets-1a2b", "birds-3c4d"]))
    unknown benchmark 'pets-1'. Did you mean 'pets-1a2b'? Known: split-mnist, pets-1a2b
    """
    known, unlisted = list(known), list(unlisted)
    folded = {candidate.casefold(): candidate for candidate in (*known, *unlisted)}
    close = [folded[match] for match in difflib.get_close_matches(name.casefold(), folded, n=3, cutoff=0.5)]
    hint = f" Did you mean {close[0]!r}?" if close else ""
    listed = [*known, *(match for match in close if match not in known)]
    return InputError(f"unknown {kind} {name!r}.{hint} Known: {', '.join(listed)}")
