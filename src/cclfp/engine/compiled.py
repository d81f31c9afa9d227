"""The compiled engine: a step of many replicas as one program, made by torch's compiler."""

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
from cclfp.engine.stack import Compile, Step, Tables, Together

WORTH = 3_000  # replica-steps of one kind that pay for a program: it takes the compiler about ten seconds
LONGEST = 1_500  # operations of a step; the compiler's time grows with them


class Steps:
    """Functions that take steps, by the shapes they are for, kept from task to task.

    Those that are used often enough are compiled, unless the compiler has ``failed``.
    """

    def __init__(self) -> None:
        self._steps: dict[Hashable, Step] = {}
        self._programs: dict[Hashable, Step] = {}
        self._used: Counter[Hashable] = Counter()  # steps of the cohort
        self.failed = False
        self.compile_seconds = 0.0

    def key(self, stack: Together, tables: Tables, segment: range) -> Hashable:
        """What steps must have in common to be taken by the same function."""
        tensors = [*stack.changing, *stack.fixed, *tables.row(segment[0])]
        shapes = ((t.shape, t.stride(), t.dtype) for t in tensors)
        return (stack.structure, tables.sizes[segment[0]][0], *shapes)

    def count(self, stack: Together, tables: Tables) -> int:
        """Count the steps of a task, each with its kind; how many of the most frequent kind there were so far."""
        for segment in tables.segments():
            self._used[self.key(stack, tables, segment)] += len(segment)
        return max(self._used[self.key(stack, tables, segment)] for segment in tables.segments())

    def get(self, stack: Together, tables: Tables, segment: range, worth: float) -> Step:
        """A function for the steps of a segment, compiled once ``worth`` steps of its kind were counted."""
        key = self.key(stack, tables, segment)
        compiled = self._used[key] >= worth and not self.failed
        mine = (key, compiled, *map(id, stack.learners))
        if mine not in self._steps:
            self._steps[mine] = stack.stepper(tables, segment[0], self._compiler(key) if compiled else None)
        return self._steps[mine]

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
    """Where compiled programs are kept from run to run, unless the user's environment says where."""
    return home() / "compiler"


def is_known(kind: str) -> bool:
    """Whether the programs of this kind of cohort have been compiled here before."""
    return _mark(kind).exists()


def remember(kind: str) -> None:
    """Know from now on that the programs of this kind of cohort have been compiled."""
    with contextlib.suppress(OSError):  # then it is only not known
        _mark(kind).parent.mkdir(parents=True, exist_ok=True)
        _mark(kind).touch()


def _mark(kind: str) -> Path:
    where = os.environ.get("TORCHINDUCTOR_CACHE_DIR", "")
    return cache() / "known" / hashlib.sha256(f"{where} {kind}".encode()).hexdigest()[:32]


class NotCompiled(Exception):
    """A step that the compiler cannot do, or should not."""


def program(step: Step, *arguments: list[Tensor]) -> Step:
    """The step, compiled for arguments of these shapes."""
    lengths = [len(argument) for argument in arguments]

    def flat(*tensors: Tensor) -> list[Tensor]:
        parts = iter(tensors)
        new = step(*([next(parts) for _ in range(length)] for length in lengths))
        # What a step gives is what the next one takes, and must lie in memory as this one's did.
        return [
            t if t.stride() == before.stride() else torch.empty_like(before).copy_(t)
            for before, t in zip(tensors, new, strict=False)
        ]

    def given() -> list[Any]:
        changing, *others = arguments
        return [*(t.clone() for t in changing), *(t for argument in others for t in argument)]

    try:
        # Traced to plain tensor operations first: the compiler then sees no Python, of ours or of a user's method.
        graph = make_fx(flat)(*given())
        if len(graph.graph.nodes) > LONGEST:
            raise NotCompiled(f"a step is {len(graph.graph.nodes):,} operations, above {LONGEST:,}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the compiler's own, about itself
            # Not torch.compile, which would look at all arguments again at every call: they never change in kind.
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
    with contextlib.suppress(OSError):  # it has another place then
        cache().mkdir(parents=True, exist_ok=True)
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache()))
    import torch._inductor  # which sets the variable itself, if nobody has

    return torch._inductor


class Programs:
    """Trains tasks by compiled programs. What cannot be compiled raises NotCompiled before a step is taken."""

    def __init__(self, note: Callable[[str], None] = lambda text: None) -> None:
        self.steps = Steps()

    def train(self, stack: Together, tables: Tables, progress: Callable[[int], None] = lambda step: None) -> bool:
        """All steps of a task, which then are in the learners; False, and nothing done, where they are too few.

        Stacked but not compiled they would be slower than one replica after the other.
        """
        if self.steps.count(stack, tables) < WORTH / len(stack.learners):
            return False
        changing = stack.changing
        with torch.no_grad():
            for segment in tables.segments():
                step = self.steps.get(stack, tables, segment, WORTH / len(stack.learners))
                stack.check(step, tables, segment[0])
                for i in segment:
                    changing = step(changing, stack.fixed, tables.row(i))
                    progress(i + 1)
        stack.put_back(changing, len(tables.sizes))
        return True


def first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]
