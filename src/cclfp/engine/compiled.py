"""The compiled engine: one step of all replicas as one program, made by torch's compiler."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Hashable

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from cclfp.engine.stack import Stack, Tables

Step = Callable[[list[Tensor], list[Tensor], list[Tensor]], list[Tensor]]

WORTH = 3_000  # replica-steps of one kind that pay for a program: it takes the compiler about ten seconds
LONGEST = 1_500  # operations of a step; the compiler's time grows with them


class Programs:
    """Steps by the shapes they are for, kept from task to task. Those that are used enough are compiled.

    ``note`` is told what cannot be compiled, and why.
    """

    def __init__(self, note: Callable[[str], None] = lambda text: None) -> None:
        self._note = note
        self._compiled: dict[Hashable, Step | None] = {}  # None: cannot be
        self._used: Counter[Hashable] = Counter()  # replica-steps
        self._failed = False  # the compiler: it is not asked again

    def train(self, stack: Stack, tables: Tables, progress: Callable[[int], None] = lambda step: None) -> None:
        """All steps of a task, which then are in the learners."""
        changing = stack.changing
        with torch.no_grad():
            for segment in tables.segments():
                step = self._step(stack, changing, tables, segment)
                for i in segment:
                    changing = step(changing, stack.fixed, list(tables.row(i)))
                    progress(i + 1)
        stack.put_back(changing, len(tables.sizes))

    def _step(self, stack: Stack, changing: list[Tensor], tables: Tables, segment: range) -> Step:
        current, row = tables.sizes[segment[0]][0], list(tables.row(segment[0]))

        def plain(changing: list[Tensor], fixed: list[Tensor], row: list[Tensor]) -> list[Tensor]:
            return stack.step(changing, fixed, row, current)

        shapes = ((t.shape, t.stride(), t.dtype) for t in [*changing, *stack.fixed, *row])
        key = (stack.structure, current, *shapes)
        self._used[key] += len(segment) * len(stack.learners)
        if key not in self._compiled and self._used[key] >= WORTH:
            self._compiled[key] = self._compile(plain, changing, stack.fixed, row)
        compiled = self._compiled.get(key)
        return plain if compiled is None else compiled

    def _compile(self, plain: Step, *arguments: list[Tensor]) -> Step | None:
        if self._failed:
            return None
        try:
            # Traced to plain tensor operations first: the compiler then sees no Python, of ours or of a user's method.
            graph = make_fx(plain)(*arguments)
            if len(graph.graph.nodes) > LONGEST:
                self._note(f"not compiled: a step is {len(graph.graph.nodes):,} operations, above {LONGEST:,}")
                return None
            step: Step = torch.compile(graph, dynamic=False, fullgraph=True)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the compiler's own, about itself
                changing, *others = arguments
                step([t.clone() for t in changing], *others)
        except Exception as error:  # noqa: BLE001  no compiler on this machine, or one that fails on this step
            self._note(f"not compiled, the compiler failed: {first_line(error)}")
            self._failed = True
            return None
        return step


def first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]
