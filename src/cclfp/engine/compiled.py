"""The compiled engine: torch's compiler makes one program of a step of many replicas.

Importing the compiler takes seconds, so that happens only where it is called.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import torch
from torch import Tensor

from cclfp.core.torch_private import missing
from cclfp.engine.groups import Group, Step
from cclfp.engine.plan import StepTables
from cclfp.engine.programs import KeptPrograms, Kind, building_folder, load, working_folder
from cclfp.errors import named

WORTH = 3_000  # steps of one kind, over all replicas, that pay for a program: compiling takes about 15 seconds


class Programs:
    """Trains tasks with compiled programs. NotCompiled is raised before a step is taken.

    Functions that take steps are kept from task to task, by the shapes of their arguments. One is compiled if it is
    used often enough, or if its program is kept from an earlier run. With ``compiles=False`` the same steps run without
    the compiler, which is slow, and is for tests.
    """

    def __init__(
        self, note: Callable[[str], None] = lambda text: None, kind: Kind | None = None, *, compiles: bool = True
    ) -> None:
        self.compile_seconds = 0.0
        self.on_compile: Callable[[], None] = lambda: None  # called before the compiler is
        self._note, self._compiles = note, compiles
        self._kept = KeptPrograms(kind, note)
        self._steps: dict[tuple[Hashable, ...], Step] = {}
        self._programs: dict[Hashable, Step] = {}
        self._used: Counter[Hashable] = Counter()  # steps of the cohort by kind

    @property
    def has_compiled(self) -> bool:
        return bool(self._programs)

    def train(self, group: Group, tables: StepTables, progress: Callable[[int], None] = lambda step: None) -> bool:
        """Take all steps of a task and update the learners. Where the steps are too few, do nothing and return False.

        Stacked but not compiled, they would be slower than one replica after the other.
        """
        self.count(group, tables)
        if self._compiles and not any(self.is_compiled(group, tables, segment) for segment in tables.segments()):
            return False
        changing = group.changing
        with torch.no_grad():
            for segment in tables.segments():
                step = self._checked_step(group, tables, segment)
                for i in segment:
                    changing = step(changing, group.fixed, tables.row(i))
                    progress(i + 1)
        group.write_back(changing, len(tables.sizes))
        return True

    def _checked_step(self, group: Group, tables: StepTables, segment: range) -> Step:
        """A function for the steps of a segment, compared with the step of each replica alone."""
        if self._compiles and not self.is_compiled(group, tables, segment):
            return group.make_steps_alone(tables, segment[0])  # few steps: torch.func would import the compiler
        step = self.step(group, tables, segment)
        try:
            group.check_step(step, tables, segment[0])
        except ValueError:
            self._kept.remove()  # so that the next cohort compiles them again
            raise
        return step

    def worth(self, group: Group) -> float:
        """How many steps of one kind pay for a program."""
        return WORTH / len(group.learners)

    def key(self, group: Group, tables: StepTables, segment: range) -> Hashable:
        """What all steps of one function have in common: the kind of a step."""
        tensors = [*group.changing, *group.fixed, *tables.row(segment[0])]
        shapes = ((t.shape, t.stride(), t.dtype) for t in tensors)
        return (group.structure, tables.sizes[segment[0]][0], *shapes)

    def count(self, group: Group, tables: StepTables) -> None:
        """Count the steps of a task by kind."""
        for segment in tables.segments():
            self._used[self.key(group, tables, segment)] += len(segment)

    def is_compiled(self, group: Group, tables: StepTables, segment: range) -> bool:
        """Whether to compile the steps of a segment: enough of their kind are counted, or there is a program."""
        key = self.key(group, tables, segment)
        return self._compiles and (self._used[key] >= self.worth(group) or self._kept.has(key))

    def step(self, group: Group, tables: StepTables, segment: range) -> Step:
        """A function for the steps of a segment."""
        key, compiled = self.key(group, tables, segment), self.is_compiled(group, tables, segment)
        of_group = (key, compiled, *map(id, group.learners))
        if of_group not in self._steps:
            compiler = functools.partial(self._compile, key) if compiled else None
            self._steps[of_group] = group.make_step(tables, segment[0], compiler)
        return self._steps[of_group]

    def _compile(self, key: Hashable, step: Step, *arguments: list[Tensor]) -> Step:
        if key not in self._programs:
            began = time.perf_counter()
            found = self._kept.load(key)
            if found is None:
                self.on_compile()
                found = program(step, *arguments, keep=functools.partial(self._kept.keep, key))
            self._programs[key] = found
            self.compile_seconds += time.perf_counter() - began
        return self._programs[key]


# -- from a step to native code, with torch's compiler -----------------------------------------------------------------

MAX_OPERATIONS = 1_500  # of a step that is compiled: the compiler's time grows with their number
# Less to write: headers that are compiled in advance take longer than they save, and nobody debugs the programs.
OPTIONS: dict[str, Any] = {"precompile_headers": False, "enable_line_tables": False, "compile_wrapper_opt_level": "O0"}

NOT_IN_LIBRARIES = "aten._linalg_solve_ex.default"  # an operation which GEM's step uses, and a library cannot call
COMPILER_FOLDER = "TORCHINDUCTOR_CACHE_DIR"

Keep = Callable[..., None]  # called as keep(library, has_constants=...)


class NotCompiled(Exception):
    """A step that the compiler cannot compile, or that is not worth compiling."""


def program(step: Step, *arguments: list[Tensor], keep: Keep = lambda library, has_constants: None) -> Step:
    """The step, compiled for arguments of these shapes.

    On the CPU that gives a library, which ``keep`` may copy, unless the step needs an operation that libraries lack.
    """
    try:
        with warnings.catch_warnings(), _compiler_folder():
            warnings.simplefilter("ignore")  # the compiler's warnings about itself
            if lacking := missing("compiler"):
                raise NotCompiled(f"torch {torch.__version__} has no {lacking}")
            graph = trace(step, *arguments)
            if len(graph.graph.nodes) > MAX_OPERATIONS:
                raise NotCompiled(f"a step is {len(graph.graph.nodes):,} operations, above {MAX_OPERATIONS:,}")
            given = _join(*arguments)
            operations = {str(node.target) for node in graph.graph.nodes}
            in_process = any(t.is_cuda for t in given) or NOT_IN_LIBRARIES in operations
            compiled = _in_process(graph, given) if in_process else _as_library(graph, given, keep)
            compiled([t.clone() for t in arguments[0]], *arguments[1:])
    except NotCompiled:
        raise
    except Exception as error:  # no compiler on this machine, or one that fails on this step
        raise NotCompiled(f"the compiler failed: {named(error)}") from error
    return compiled


@contextlib.contextmanager
def _compiler_folder() -> Iterator[None]:
    """Let the compiler keep its own files in a private folder inside, unless the user names one."""
    chosen = os.environ.get(COMPILER_FOLDER)
    if chosen is None:
        os.environ[COMPILER_FOLDER] = str(working_folder() / "compiler")
    try:
        yield
    finally:
        if chosen is None:
            os.environ.pop(COMPILER_FOLDER, None)


def trace(step: Step, *arguments: list[Tensor]) -> torch.fx.GraphModule:
    """The step as plain tensor operations, so that the compiler sees no Python code, ours or a user's."""
    from torch.fx.experimental.proxy_tensor import make_fx

    lengths = [len(argument) for argument in arguments]

    def flat(*tensors: Tensor) -> list[Tensor]:
        parts = iter(tensors)
        new = step(*([next(parts) for _ in range(length)] for length in lengths))
        # The next step takes what this one returns, so the results need the memory layout of the arguments.
        return [
            t if t.stride() == before.stride() else torch.empty_like(before).copy_(t)
            for before, t in zip(tensors, new, strict=False)
        ]

    graph: torch.fx.GraphModule = make_fx(flat)(*_join(*arguments))
    return graph


def _join(changing: list[Tensor], *others: list[Tensor]) -> list[Tensor]:
    """All arguments in one list, with copies of those that a step may change in place."""
    return [*(t.clone() for t in changing), *(t for argument in others for t in argument)]


def _as_library(graph: torch.fx.GraphModule, given: list[Tensor], keep: Keep) -> Step:
    """The step of a graph, compiled as a library and loaded."""
    import torch._inductor as compiler
    from torch._inductor import config

    constants = has_constants(graph)
    for node in graph.graph.nodes:
        node.meta.clear()  # make_fx and the compiler each have fake tensors of their own
    with building_folder() as folder:
        library = folder / "program.so"
        options = {"output_path": str(library), **OPTIONS}
        known = {f"aot_inductor.{name}": options[name] for name in options if hasattr(config.aot_inductor, name)}
        compiler.aot_compile(graph, tuple(given), options=known)
        loaded = load(library)
        keep(library, has_constants=constants)
    return loaded


def has_constants(graph: torch.fx.GraphModule) -> bool:
    """Whether a step uses tensors that are neither its arguments nor computed from them."""
    return any(node.op == "get_attr" for node in graph.graph.nodes)


def _in_process(graph: torch.fx.GraphModule, given: list[Any]) -> Step:
    """The step of a graph, compiled for this process only."""
    import torch._inductor as compiler

    # Not torch.compile, which checks the shapes of all arguments at every call: they never change.
    compiled = compiler.compile(graph, given)

    def step(changing: list[Tensor], fixed: list[Tensor], row: list[Tensor]) -> list[Tensor]:
        return compiled(*changing, *fixed, *row)  # type: ignore[no-any-return]

    return step
