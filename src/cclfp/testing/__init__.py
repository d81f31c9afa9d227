"""The contract that every method must keep, as a test that you can run on a method of your own.

The checks train the method in the two ways that users do: with ``observe``, and as ``cclfp run`` does, in cohorts of
the eager engine and of stacked replicas.

>>> from cclfp.testing import check_method
>>> check_method("er", quick=True)
"""

from __future__ import annotations

import contextlib
import linecache
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType

from cclfp.engine.replica import computing_threads
from cclfp.errors import InputError
from cclfp.methods import Method, get_method
from cclfp.testing.case import Case, same, stackable_psi, toy_psi, toy_stream, train_replicas
from cclfp.testing.contract import CHECKS, QUICK, first_sentence, is_not_disturbed_by_others, learns, repeats

__all__ = [
    "CHECKS",
    "QUICK",
    "Case",
    "check_method",
    "is_not_disturbed_by_others",
    "learns",
    "repeats",
    "same",
    "stackable_psi",
    "toy_psi",
    "toy_stream",
    "train_replicas",
]

CLEAR = (AssertionError, InputError)  # errors whose message says what the method does wrong


def check_method(
    method: str | type[Method],
    *,
    quick: bool = False,
    progress: Callable[[str], None] | None = None,
    **hyper: float,
) -> None:
    """Check that a method keeps the contract, in every scenario that it is defined for.

    AssertionError says which line of the method failed, in which check, and why. ``quick`` runs the checks that find
    most mistakes, in one scenario, in seconds. ``progress`` is called with the name of each check before it runs; by
    default the name is shown on a terminal. ``hyper`` are the hyperparameters to check the method with.
    """
    kind = get_method(method)
    scenarios = kind.scenarios()[:1] if quick else kind.scenarios()
    for scenario in scenarios:
        kind.hyper(scenario, **hyper)  # InputError for an unknown name or invalid value
    todo = [(scenario, check) for scenario in scenarios for check in (QUICK if quick else CHECKS)]
    # One thread: the tensors are small, and threads of a busy machine wait for each other.
    with computing_threads(1), _shown(progress) as show:
        for number, (scenario, check) in enumerate(todo):
            name = f"{kind.name}, {scenario} scenario, {check.__name__}"
            show(f"[{number + 1}/{len(todo)}] {name}")
            try:
                check(Case(kind, scenario, hyper))
            except Exception as error:  # noqa: BLE001  whatever a user's method may raise
                line, is_clear = _own_line(error, kind), isinstance(error, CLEAR) and str(error)
                said = first_sentence(str(error))
                cause = str(error) if is_clear else f"{type(error).__name__}{': ' if said else ''}{said}"
                text = f"{name}: {cause}" if line is None else f"{line}\n{name}: {cause}"
                raise AssertionError(text) from (None if is_clear or line is not None else error)


def _own_line(error: BaseException, method: type[Method]) -> str | None:
    """The last line in the method's own file that an error, or its cause, passed through."""
    of_cause = _own_line(error.__cause__, method) if error.__cause__ is not None else None
    files = set(_files(method))
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in files]
    if of_cause is not None or not frames:
        return of_cause
    frame, path, here = frames[-1], Path(frames[-1].filename), Path.cwd()
    text = linecache.getline(frame.filename, frame.lineno or 0).strip()
    return f"{path.relative_to(here) if path.is_relative_to(here) else path}:{frame.lineno}, in {frame.name}: {text}"


def _files(method: type[Method]) -> Iterator[str]:
    """The files of the functions that the method and its bases define; not those of bases that ship with cclfp."""
    kinds = method.__mro__[: method.__mro__.index(Method)]
    for kind in [kind for kind in kinds if not kind.__module__.startswith("cclfp.")] or kinds:
        for value in vars(kind).values():
            function = getattr(value, "__func__", value)
            if isinstance(function, FunctionType):
                yield function.__code__.co_filename


@contextlib.contextmanager
def _shown(progress: Callable[[str], None] | None) -> Iterator[Callable[[str], None]]:
    """What to call with each line of progress: by default it replaces the last one on a terminal."""
    if progress is not None or not sys.stderr.isatty():
        yield progress or (lambda line: None)
        return
    clear = "\r\033[K"
    try:
        yield lambda line: print(clear + line, end="", file=sys.stderr, flush=True)
    finally:
        print(clear, end="", file=sys.stderr, flush=True)
