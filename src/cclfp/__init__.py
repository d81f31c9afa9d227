"""Contrastive continual learning with feature propagation.

``make`` and ``load`` give a learner for your own loop; ``run`` trains methods on benchmarks, as the
command ``cclfp run`` does; ``Method`` is the base of a method of your own, ``cclfp.testing.check_method`` its test.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from cclfp._version import __version__
from cclfp.errors import DataError, InputError

if TYPE_CHECKING:
    from cclfp.learner import Learner as Learner
    from cclfp.learner import load as load
    from cclfp.learner import make as make
    from cclfp.methods import Method as Method
    from cclfp.paper.study import study as study
    from cclfp.paper.tuning import tune as tune
    from cclfp.runs.execution import Execution as Execution
    from cclfp.runs.problem import Problem as Problem
    from cclfp.runs.results import Result as Result
    from cclfp.runs.run import run as run

# torch takes two seconds to import; the command line's help should not wait for it.
_LAZY = {
    "Learner": "learner",
    "load": "learner",
    "make": "learner",
    "Method": "methods",
    "Result": "runs.results",
    "run": "runs.run",
    "Execution": "runs.execution",
    "Problem": "runs.problem",
    "study": "paper.study",
    "tune": "paper.tuning",
}

_MODULES = ("data", "losses", "metrics", "methods", "nets", "schedules", "paper", "streams", "testing", "transforms")

__all__ = ["DataError", "InputError", "__version__", *_LAZY]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(f"cclfp.{_LAZY[name]}"), name)
    if name in _MODULES:
        return importlib.import_module(f"cclfp.{name}")
    raise AttributeError(f"module 'cclfp' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES])
