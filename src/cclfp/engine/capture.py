"""Recording work as a CUDA graph."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from cclfp.nets.network import copy_all


def capture(work: Callable[[], None], stream: torch.cuda.Stream, pool: Any = None) -> torch.cuda.CUDAGraph:
    """A graph of what ``work`` launches on a stream, without running it. The graph's memory is in the pool.

    If it raises, nothing is left of the attempt.
    """
    graph, pool = torch.cuda.CUDAGraph(), pool or torch.cuda.graph_pool_handle()
    here, generator = torch.cuda.current_stream(stream.device), torch.cuda.default_generators[stream.device_index]
    drawn, reason = generator.get_state(), None
    try:
        with torch.cuda.graph(graph, pool=pool, stream=stream):
            try:
                work()
            except BaseException as error:
                reason = error
                raise
    except BaseException as error:  # noqa: BLE001  raised again
        if error is not reason:  # torch's own beginning or end failed: it does not clean up then, and hides the reason
            torch.cuda.set_stream(here)
            with contextlib.suppress(RuntimeError):  # raised if the recording had ended: the graph releases its pool
                torch._C._cuda_endAllocateToPool(stream.device_index, pool)
                torch._C._cuda_releasePool(stream.device_index, pool)
            # The generator still takes part in the recording, and cannot be drawn from: give it a new state.
            generator.graphsafe_set_state(torch.Generator(stream.device).graphsafe_get_state())
            generator.set_state(drawn)
        try:
            raise (error if reason is None else reason) from None
        finally:
            reason = None  # or it would keep this frame, and the tensors of the attempt, until a garbage collection
    return graph


def overwrite(arguments: Sequence[Tensor], new: Sequence[Tensor]) -> None:
    """Copy what a step returned to the tensors that it read."""
    places = {t.untyped_storage().data_ptr() for t in arguments if t.numel()}
    pairs = [(ours, t) for ours, t in zip(arguments, new, strict=True) if t.numel() and not _same(ours, t)]
    # A result that is one of the step's own arguments is copied before that argument is overwritten.
    sources = [t.clone() if t.untyped_storage().data_ptr() in places else t for _, t in pairs]
    copy_all([ours for ours, _ in pairs], sources)


def _same(a: Tensor, b: Tensor) -> bool:
    return a.data_ptr() == b.data_ptr() and a.stride() == b.stride()
