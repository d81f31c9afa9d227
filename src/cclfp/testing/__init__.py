"""The contract that every method must keep, as a test that you can run on a method of your own.

The checks train the method in the two ways that users do: with ``observe``, and as ``cclfp run`` does, in cohorts of
the eager engine and of stacked replicas.

>>> from cclfp.testing import check_method
>>> check_method("er", quick=True)
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from types import FunctionType

from cclfp.engine.replica import computing_threads
from cclfp.errors import InputError, named
from cclfp.methods import Method, get_method
from cclfp.testing.case import Case, same, stackable_psi, toy_psi, toy_stream, train_replicas
from cclfp.testing.contract import CHECKS, QUICK

__all__ = ["CHECKS", "QUICK", "Case", "check_method"]
__all__ += ["same", "stackable_psi", "toy_psi", "toy_stream", "train_replicas"]  # for other tests of a method

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
    show = progress or _show
    try:
        # One thread: the tensors are small, and threads of a busy machine wait for each other.
        with computing_threads(1):
            for number, (scenario, check) in enumerate(todo, start=1):
                name = f"{kind.name}, {scenario} scenario, {check.__name__}"
                show(f"[{number}/{len(todo)}] {name}")
                _run(check, name, Case(kind, scenario, hyper))
    finally:
        if progress is None:
            _show("")


def _show(line: str) -> None:
    """Show a line in place of the last one, on a terminal."""
    if sys.stderr.isatty():
        print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)


def _run(check: Callable[[Case], None], name: str, case: Case) -> None:
    """Run a check; AssertionError where it fails, with the line of the method's own file first."""
    try:
        check(case)
    except Exception as error:  # noqa: BLE001  whatever a user's method may raise
        line, is_clear = _own_line(error, case.method), isinstance(error, CLEAR) and str(error)
        text = f"{name}: {error if is_clear else named(error)}"
        shown = text if line is None else f"{line}\n{text}"
        raise AssertionError(shown) from (None if is_clear or line is not None else error)


def _own_line(error: BaseException, method: type[Method]) -> str | None:
    """The last line in a user's own file of the method that an error, or its cause, passed through."""
    if error.__cause__ is not None and (of_cause := _own_line(error.__cause__, method)) is not None:
        return of_cause
    own = [kind for kind in method.__mro__ if issubclass(kind, Method) and not kind.__module__.startswith("cclfp.")]
    functions = [getattr(value, "__func__", value) for kind in own for value in vars(kind).values()]
    files = {function.__code__.co_filename for function in functions if isinstance(function, FunctionType)}
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in files]
    last = frames[-1] if frames else None
    return last and f"{os.path.relpath(last.filename)}:{last.lineno}, in {last.name}: {last.line}"
