"""The compiled engine: torch's compiler makes one program of a step of many replicas."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
import warnings
from collections import Counter
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from cclfp.core.files import home
from cclfp.engine.group import Compile, Group, Step
from cclfp.engine.tables import Tables

WORTH = 3_000  # steps of one kind, over all replicas, that pay for a program: compiling takes about ten seconds
MAX_OPERATIONS = 1_500  # of a step that is compiled: the compiler's time grows with their number


class Steps:
    """Functions that take steps, by the shapes of their arguments. They are kept from task to task.

    Those that are used often enough are compiled, unless the compiler has ``failed``.
    """

    def __init__(self) -> None:
        self._steps: dict[Hashable, Step] = {}
        self._programs: dict[Hashable, Step] = {}
        self._used: Counter[Hashable] = Counter()  # steps of the cohort
        self.failed = False
        self.compile_seconds = 0.0

    def key(self, group: Group, tables: Tables, segment: range) -> Hashable:
        """What all steps of one function have in common: the kind of a step."""
        tensors = [*group.changing, *group.fixed, *tables.row(segment[0])]
        shapes = ((t.shape, t.stride(), t.dtype) for t in tensors)
        return (group.structure, tables.sizes[segment[0]][0], *shapes)

    def count(self, group: Group, tables: Tables) -> int:
        """Count the steps of a task by kind, and return how many of the most frequent kind there have been so far."""
        for segment in tables.segments():
            self._used[self.key(group, tables, segment)] += len(segment)
        return max(self._used[self.key(group, tables, segment)] for segment in tables.segments())

    def get(self, group: Group, tables: Tables, segment: range, worth: float) -> Step:
        """A function for the steps of a segment. It is compiled if ``worth`` steps of its kind have been counted."""
        key = self.key(group, tables, segment)
        compiled = self._used[key] >= worth and not self.failed
        of_group = (key, compiled, *map(id, group.trainers))
        if of_group not in self._steps:
            self._steps[of_group] = group.make_step(tables, segment[0], self._compiler(key) if compiled else None)
        return self._steps[of_group]

    @property
    def has_compiled(self) -> bool:
        return bool(self._programs)

    def _compiler(self, key: Hashable) -> Compile:
        def compile(step: Step, *arguments: list[Tensor]) -> Step:
            if key not in self._programs:
                began = time.perf_counter()
                self._programs[key] = program(step, *arguments)
                self.compile_seconds += time.perf_counter() - began
            return self._programs[key]

        return compile


def cache() -> Path:
    """Where compiled programs are kept from run to run, unless the user's environment names another place."""
    return home() / "compiler"


def is_known(kind: str) -> bool:
    """Whether the programs of this kind of cohort have been compiled here before."""
    return _mark(kind).exists()


def remember(kind: str) -> None:
    """Record that the programs of this kind of cohort have been compiled."""
    with contextlib.suppress(OSError):  # without the mark, the next run only expects a longer compilation
        _mark(kind).parent.mkdir(parents=True, exist_ok=True)
        _mark(kind).touch()


def _mark(kind: str) -> Path:
    where = os.environ.get("TORCHINDUCTOR_CACHE_DIR", "")
    return cache() / "known" / hashlib.sha256(f"{where} {kind}".encode()).hexdigest()[:32]


class NotCompiled(Exception):
    """A step that the compiler cannot compile, or that is not worth compiling."""


def program(step: Step, *arguments: list[Tensor]) -> Step:
    """The step, compiled for arguments of these shapes."""
    lengths = [len(argument) for argument in arguments]

    def flat(*tensors: Tensor) -> list[Tensor]:
        parts = iter(tensors)
        new = step(*([next(parts) for _ in range(length)] for length in lengths))
        # The next step takes what this one returns, so the results need the memory layout of the arguments.
        return [
            t if t.stride() == before.stride() else torch.empty_like(before).copy_(t)
            for before, t in zip(tensors, new, strict=False)
        ]

    def given() -> list[Any]:
        changing, *others = arguments
        return [*(t.clone() for t in changing), *(t for argument in others for t in argument)]

    try:
        # Traced to plain tensor operations first, so that the compiler sees no Python code, ours or a user's.
        graph = make_fx(flat)(*given())
        if len(graph.graph.nodes) > MAX_OPERATIONS:
            raise NotCompiled(f"a step is {len(graph.graph.nodes):,} operations, above {MAX_OPERATIONS:,}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the compiler's warnings about itself
            # Not torch.compile, which checks the shapes of all arguments at every call: they never change.
            compiled = _compiler().compile(graph, given())
            compiled(*given())
    except NotCompiled:
        raise
    except Exception as error:  # no compiler on this machine, or one that fails on this step
        raise NotCompiled(f"the compiler failed: {first_line(error)}") from error

    def run(changing: list[Tensor], fixed: list[Tensor], row: list[Tensor]) -> list[Tensor]:
        return compiled(*changing, *fixed, *row)  # type: ignore[no-any-return]

    return run


def _compiler() -> Any:
    with contextlib.suppress(OSError):  # the compiler then uses a place of its own
        cache().mkdir(parents=True, exist_ok=True)
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache()))
    import torch._inductor  # which sets the variable, if it is not set

    return torch._inductor


class Programs:
    """Trains tasks with compiled programs. NotCompiled is raised before a step is taken.

    With ``compile=False`` the same steps run without the compiler, which is slow, and is for tests.
    """

    def __init__(self, note: Callable[[str], None] = lambda text: None, *, compile: bool = True) -> None:
        self.steps = Steps()
        self.steps.failed = not compile
        self._compiles = compile

    def train(self, group: Group, tables: Tables, progress: Callable[[int], None] = lambda step: None) -> bool:
        """Take all steps of a task and update the trainers. Where the steps are too few, do nothing and return False.

        Stacked but not compiled, they would be slower than one replica after the other.
        """
        worth = WORTH / len(group.trainers) if self._compiles else 0
        if self.steps.count(group, tables) < worth:
            return False
        changing = group.changing
        with torch.no_grad():
            for segment in tables.segments():
                step = self.steps.get(group, tables, segment, worth)
                group.check_step(step, tables, segment[0])
                for i in segment:
                    changing = step(changing, group.fixed, tables.row(i))
                    progress(i + 1)
        group.write_back(changing, len(tables.sizes))
        return True


def first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]
