"""Work on a second CUDA stream, beside the current one."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

import torch
from torch import Tensor

Event = torch.cuda.Event


class SideStream:
    """A second stream of a GPU, or one of several, told apart by their numbers. On other devices all runs in sequence.

    The caller must hold the tensors that it reads or writes until it is joined.
    """

    def __init__(self, device: torch.device, number: int = 0) -> None:
        self._stream = _side_stream(device, number) if device.type == "cuda" else None
        self._is_used = False

    @property
    def stream(self) -> torch.cuda.Stream:
        assert self._stream is not None
        return self._stream

    @contextlib.contextmanager
    def after(self, *events: Event) -> Iterator[None]:
        """Work launched inside waits only for these events and for earlier work on this stream."""
        if self._stream is None:
            yield
            return
        self._is_used = True
        for event in events:
            self._stream.wait_event(event)
        with torch.cuda.stream(self._stream):
            yield

    def join(self) -> None:
        """Make the current stream wait for all work on this one."""
        if self._stream is not None and self._is_used:
            torch.cuda.current_stream().wait_stream(self._stream)


@functools.cache
def _side_stream(device: torch.device, number: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def events_now(t: Tensor) -> list[Event]:
    """An event after all work so far on the current stream, if the tensor is on a GPU; otherwise nothing."""
    return [torch.cuda.current_stream().record_event()] if t.is_cuda else []
