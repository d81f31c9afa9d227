"""The compiled engine: torch's compiler makes one program of a step of many replicas."""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Callable, Hashable

import torch
from torch import Tensor

from cclfp.engine.compiler import program
from cclfp.engine.group import Compile, Group, Step
from cclfp.engine.packages import Kind, Packages
from cclfp.engine.tables import Tables

WORTH = 3_000  # steps of one kind, over all replicas, that pay for a program: compiling takes about 15 seconds


class Steps:
    """Functions that take steps, by the shapes of their arguments. They are kept from task to task.

    A function is compiled if it is used often enough, or if ``packages`` has its program; but not once the compiler has
    ``failed``.
    """

    def __init__(self, packages: Packages | None = None) -> None:
        self._packages = packages or Packages(None)
        self._steps: dict[tuple[Hashable, ...], Step] = {}
        self._programs: dict[Hashable, Step] = {}
        self._loaded: set[Hashable] = set()  # the programs that come from packages
        self._used: Counter[Hashable] = Counter()  # steps of the cohort
        self.failed = False
        self.compile_seconds = 0.0
        self.on_compile: Callable[[], None] = lambda: None  # called before the compiler is

    def key(self, group: Group, tables: Tables, segment: range) -> Hashable:
        """What all steps of one function have in common: the kind of a step."""
        tensors = [*group.changing, *group.fixed, *tables.row(segment[0])]
        shapes = ((t.shape, t.stride(), t.dtype) for t in tensors)
        return (group.structure, tables.sizes[segment[0]][0], *shapes)

    def count(self, group: Group, tables: Tables) -> None:
        """Count the steps of a task by kind."""
        for segment in tables.segments():
            self._used[self.key(group, tables, segment)] += len(segment)

    def is_compiled(self, group: Group, tables: Tables, segment: range, worth: float) -> bool:
        """Whether to compile the steps of a segment: ``worth`` of their kind are counted, or they are compiled."""
        key = self.key(group, tables, segment)
        return not self.failed and (self._used[key] >= worth or self._packages.has(key))

    def get(self, group: Group, tables: Tables, segment: range, worth: float) -> Step:
        """A function for the steps of a segment."""
        key, compiled = self.key(group, tables, segment), self.is_compiled(group, tables, segment, worth)
        of_group = (key, compiled, *map(id, group.trainers))
        if of_group not in self._steps:
            self._steps[of_group] = group.make_step(tables, segment[0], self._compiler(key) if compiled else None)
        return self._steps[of_group]

    def discard(self, group: Group, tables: Tables, segment: range) -> bool:
        """Remove the program of a segment's steps if it comes from a package; return whether it does."""
        key = self.key(group, tables, segment)
        if key not in self._loaded:
            return False
        self._packages.remove(key)
        self._loaded.remove(key)
        del self._programs[key]
        self._steps = {of_group: step for of_group, step in self._steps.items() if of_group[0] != key}
        return True

    @property
    def has_compiled(self) -> bool:
        return bool(self._programs)

    def _compiler(self, key: Hashable) -> Compile:
        def compile(step: Step, *arguments: list[Tensor]) -> Step:
            if key not in self._programs:
                began = time.perf_counter()
                found = self._load(key)
                if found is None:
                    self.on_compile()
                    found = program(step, *arguments, keep=functools.partial(self._packages.keep, key))
                self._programs[key] = found
                self.compile_seconds += time.perf_counter() - began
            return self._programs[key]

        return compile

    def _load(self, key: Hashable) -> Step | None:
        loaded = self._packages.load(key)
        if loaded is not None:
            self._loaded.add(key)
        return loaded


class Programs:
    """Trains tasks with compiled programs. NotCompiled is raised before a step is taken.

    With ``compile=False`` the same steps run without the compiler, which is slow, and is for tests.
    """

    def __init__(
        self, note: Callable[[str], None] = lambda text: None, kind: Kind | None = None, *, compile: bool = True
    ) -> None:
        self.steps = Steps(Packages(kind, note))
        self.steps.failed = not compile
        self._compiles = compile
        self._note = note

    def train(self, group: Group, tables: Tables, progress: Callable[[int], None] = lambda step: None) -> bool:
        """Take all steps of a task and update the trainers. Where the steps are too few, do nothing and return False.

        Stacked but not compiled, they would be slower than one replica after the other.
        """
        worth = WORTH / len(group.trainers)
        self.steps.count(group, tables)
        if self._compiles and not any(self.steps.is_compiled(group, tables, s, worth) for s in tables.segments()):
            return False
        changing = group.changing
        with torch.no_grad():
            for segment in tables.segments():
                step = self._checked_step(group, tables, segment, worth)
                for i in segment:
                    changing = step(changing, group.fixed, tables.row(i))
                    progress(i + 1)
        group.write_back(changing, len(tables.sizes))
        return True

    def _checked_step(self, group: Group, tables: Tables, segment: range, worth: float) -> Step:
        """A function for the steps of a segment, compared with the step of each replica alone."""
        if self._compiles and not self.steps.is_compiled(group, tables, segment, worth):
            return group.make_steps_alone(tables, segment[0])  # few steps: torch.func would import the compiler
        step = self.steps.get(group, tables, segment, worth)
        try:
            group.check_step(step, tables, segment[0])
        except ValueError as error:
            if not self.steps.discard(group, tables, segment):
                raise
            self._note(f"a kept program is compiled again: {error}")
            step = self.steps.get(group, tables, segment, worth)
            group.check_step(step, tables, segment[0])
        return step
