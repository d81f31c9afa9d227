"""Steps that a method takes at the end of a task, in CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from cclfp.engine.agreement import TOLERANCE, compare_steps, refuse_randomness
from cclfp.engine.capture import capture, overwrite
from cclfp.engine.compiler import first_line
from cclfp.methods.base import FoldStep, fold
from cclfp.nets.network import Tensors
from cclfp.nets.stacking.cuda_streams import SideStream, events_now

SHORTEST = 16  # steps that are worth recording and comparing


class Folds:
    """Takes the steps of :func:`cclfp.methods.base.fold` with a graph, except the first.

    Launching the small kernels of such a step from Python takes longer than running them. The first replay is compared
    with a step that is launched. Steps that cannot be recorded are taken one by one, and ``note`` is called once with
    the reason.
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._works = True

    def fold(self, step: FoldStep, carried: Tensors, rows: Tensor) -> Tensors:
        """``carried = step(carried, row)`` for each row."""
        if not (self._works and _is_on_gpu(rows)) or len(rows) < SHORTEST:
            return fold(step, carried, rows)
        side, reason = SideStream(rows.device, 2), ""
        with side.after(*events_now(rows)):  # also lets libraries allocate workspaces and choose kernels
            first = step(carried, rows[0])
        side.join()
        try:
            return _replayed(step, first, rows[1:], side)
        except Exception as error:  # noqa: BLE001  if it is the step's own error, the loop raises it again
            reason = first_line(error)
        # After the handler, where nothing refers to the tensors of the attempt any more:
        side.join()
        self._works = False
        self._note(f"the steps at the end of a task cannot be recorded ({reason}): they are taken one by one")
        return fold(step, first, rows[1:])


def _replayed(step: FoldStep, carried: Tensors, rows: Tensor, side: SideStream) -> Tensors:
    held, row = {name: t.clone() for name, t in carried.items()}, rows[0].clone()
    launched: list[Tensors] = []
    with side.after(*events_now(rows)):
        refuse_randomness(lambda: launched.append(step(held, row)), rows.device)
    side.join()
    _check_alike(held, launched[0])
    wanted = [launched[0][name].clone() for name in held]  # it may return what it was given, which a replay overwrites

    def take_step() -> None:
        new = step(held, row)
        overwrite(list(held.values()), [new[name] for name in held])

    graph = capture(take_step, side.stream)
    graph.replay()
    compare_steps([carried[name] for name in held], list(held.values()), wanted, TOLERANCE["tf32"])
    for each in rows[1:]:
        row.copy_(each)
        graph.replay()
    if rows.is_cuda:
        torch.cuda.current_stream(rows.device).synchronize()  # the graph and its memory must outlive its replays
    return held


def _check_alike(before: Tensors, after: Tensors) -> None:
    """ValueError where a step does not return tensors like those it was given."""
    kinds = [{name: (t.shape, t.dtype, t.device) for name, t in tensors.items()} for tensors in (before, after)]
    if kinds[0] != kinds[1]:
        differing = [name for name in {**before, **after} if kinds[0].get(name) != kinds[1].get(name)]
        raise ValueError(f"a step changes the shape, dtype or device of {differing[0]!r}, or returns other names")
    if others := [name for name, t in before.items() if not _is_on_gpu(t)]:
        raise ValueError(f"{others[0]!r} is not on the GPU")


def _is_on_gpu(t: Tensor) -> bool:
    return t.is_cuda
