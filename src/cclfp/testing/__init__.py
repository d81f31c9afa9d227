"""The contract that every method must keep, as a test that you can run on a method of your own.

The checks train the method in the two ways that users do: with ``observe``, and as ``cclfp run`` does, in cohorts of
the eager engine and of stacked replicas.

>>> from cclfp.testing import check_method
>>> check_method("er", quick=True)
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

import torch

from cclfp.methods import Method, get_method
from cclfp.testing.case import Case, _equal, same, stackable_psi, toy_psi, toy_stream, train_replicas
from cclfp.testing.checks import (
    CHECKS,
    QUICK,
    in_second_task,
    is_not_disturbed_by_others,
    learns,
    repeats,
)
from cclfp.testing.explaining import CLEAR, explain, own_line

__all__ = [
    "CHECKS",
    "QUICK",
    "Case",
    "_equal",
    "check_method",
    "in_second_task",
    "is_not_disturbed_by_others",
    "learns",
    "repeats",
    "same",
    "stackable_psi",
    "toy_psi",
    "toy_stream",
    "train_replicas",
]


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
    with _one_thread(), _shown(progress) as show:
        for number, (scenario, check) in enumerate(todo):
            name = f"{kind.name}, {scenario} scenario, {check.__name__}"
            show(f"[{number + 1}/{len(todo)}] {name}")
            try:
                check(Case(kind, scenario, hyper))
            except Exception as error:  # noqa: BLE001  whatever a user's method may raise
                is_clear = isinstance(error, CLEAR) or own_line(error, kind) is not None
                raise AssertionError(explain(error, kind, name)) from (None if is_clear else error)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Compute on one thread: the tensors are small, and threads of a busy machine wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


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
