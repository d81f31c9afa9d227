"""From a step to native code, with torch's compiler. Importing it takes seconds, so that happens only here."""

from __future__ import annotations

import functools
import os
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cclfp.core.files import NotPrivate, building_folder, private_folder
from cclfp.engine.group import Step
from cclfp.engine.packages import load

MAX_OPERATIONS = 1_500  # of a step that is compiled: the compiler's time grows with their number
# Less to write: headers that are compiled in advance take longer than they save, and nobody debugs the programs.
OPTIONS: dict[str, Any] = {"precompile_headers": False, "enable_line_tables": False, "compile_wrapper_opt_level": "O0"}

NOT_IN_LIBRARIES = torch.ops.aten._linalg_solve_ex.default  # which GEM's step uses, and a library cannot call

Keep = Callable[..., None]  # called as keep(library, has_constants=...)


class NotCompiled(Exception):
    """A step that the compiler cannot compile, or that is not worth compiling."""


def program(step: Step, *arguments: list[Tensor], keep: Keep = lambda library, has_constants: None) -> Step:
    """The step, compiled for arguments of these shapes.

    On the CPU that gives a library, which ``keep`` may copy, unless the step needs an operation that libraries lack.
    """
    _place_files()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the compiler's warnings about itself
            graph = trace(step, *arguments)
            if len(graph.graph.nodes) > MAX_OPERATIONS:
                raise NotCompiled(f"a step is {len(graph.graph.nodes):,} operations, above {MAX_OPERATIONS:,}")
            given = _join(*arguments)
            in_process = any(t.is_cuda for t in given) or any(n.target is NOT_IN_LIBRARIES for n in graph.graph.nodes)
            compiled = _in_process(graph, given) if in_process else _as_library(graph, given, keep)
            compiled([t.clone() for t in arguments[0]], *arguments[1:])
    except NotCompiled:
        raise
    except Exception as error:  # no compiler on this machine, or one that fails on this step
        raise NotCompiled(f"the compiler failed: {first_line(error)}") from error
    return compiled


def _place_files() -> None:
    """Give the compiler a private folder for its own files, unless the user's environment names one."""
    try:
        folder = private_folder() / "compiler"
    except NotPrivate:
        folder = Path(_temporary_folder().name)
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder))  # read when the compiler is imported


@functools.cache
def _temporary_folder() -> tempfile.TemporaryDirectory[str]:
    """A folder that is removed when this process ends."""
    return tempfile.TemporaryDirectory(prefix="cclfp-")


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


def first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]
