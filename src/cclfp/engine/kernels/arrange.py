"""The tensors of stacked replicas: as the kernels read them, their copies in another precision, and side streams."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cclfp.engine.kernels import Layout, Parts

# -- work on a second CUDA stream, beside the current one --------------------------------------------------------------

Event = torch.cuda.Event


class SideStream:
    """A second stream of a GPU, or one of several, told apart by numbers. On other devices all runs in sequence.

    The caller must hold the tensors that it reads or writes until it is joined.
    """

    def __init__(self, device: torch.device, number: int = 0) -> None:
        self._stream = _side_stream(device, number) if device.type == "cuda" else None
        self._is_used = False

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


# -- copies in the precision that the kernels read ---------------------------------------------------------------------


class Copies:
    """The copies of tensors in another precision during one step, found by the address of the tensor.

    It also holds the tensors, so that no other tensor can get their address. ``arguments`` are the tensors that exist
    when the step begins.
    """

    def __init__(self, arguments: Sequence[Tensor] = ()) -> None:
        self._copies: dict[int, tuple[Tensor, Tensor]] = {}
        self._arguments = {t.data_ptr() for t in arguments}
        self._pass: tuple[Tensor, list[Event]] | None = None
        self._made: dict[int, tuple[Tensor, list[Event]]] = {}

    def begin_pass(self, x: Tensor) -> None:
        """Record that a training pass of x begins now."""
        self._pass = x, events_now(x)

    def beginning(self, x: Tensor, tensors: Iterable[Tensor]) -> list[Event]:
        """When the last training pass began, if it had the same x and the tensors existed then. Returned only once."""
        last, self._pass = self._pass, None
        is_there = last is not None and (last[0].data_ptr(), last[0].shape) == (x.data_ptr(), x.shape)
        if last is None or not is_there or any(t.data_ptr() not in self._arguments for t in tensors):
            return []
        return last[1]

    def make(self, grads: Sequence[Tensor], events: Sequence[list[Event]]) -> None:
        """Record the events after which each gradient is complete and its filters are not read any more."""
        self._made = {g.data_ptr(): (g, own) for g, own in zip(grads, events, strict=True)}

    def made(self, g: Tensor) -> list[Event]:
        """The events that :meth:`make` recorded for a gradient; empty if there are none."""
        return self._made.get(g.data_ptr(), (g, []))[1]

    def add(self, t: Tensor, copy: Tensor) -> None:
        self._copies[t.data_ptr()] = t, copy

    def get(self, t: Tensor) -> Tensor | None:
        """The copy of a tensor; None if it has none."""
        own, copy = self._copies.get(t.data_ptr(), (None, None))
        return copy if own is not None and (own.shape, own.stride()) == (t.shape, t.stride()) else None

    def of(self, tensors: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
        """The copies of tensors; those that are missing are made."""
        found = [self.get(t) for t in tensors]
        made = iter(round_all([t for t, copy in zip(tensors, found, strict=True) if copy is None], dtype))
        return [next(made) if copy is None else copy for copy in found]


_copies: Copies | None = None


@contextlib.contextmanager
def rounded(tensors: Sequence[Tensor], copies: Sequence[Tensor], arguments: Sequence[Tensor] = ()) -> Iterator[Copies]:
    """A step that reads these copies instead of the tensors; the update of SGD updates them.

    Inside, two kinds of work run concurrently with other work: a pass in eval mode that reads only the step's
    ``arguments`` runs beside the training pass before it, and an update in place runs beside the gradients of earlier
    layers.
    """
    global _copies
    before, _copies = _copies, Copies(arguments)
    for t, copy in zip(tensors, copies, strict=True):
        _copies.add(t, copy)
    try:
        yield _copies
    finally:
        _copies = before


def current_copies() -> Copies:
    """The copies of the step that runs now; none outside :func:`rounded`."""
    return _copies or Copies()


def round_all(tensors: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Copies of the tensors in another precision, made with one call."""
    new = [torch.empty_like(t, dtype=dtype) for t in tensors]
    if new:
        torch._foreach_copy_(new, list(tensors))
    return new


# -- under vmap, in memory, and as the kernels read them ---------------------------------------------------------------


def replicas_first(size: int, dims: Sequence[int | None], tensors: Sequence[Tensor]) -> list[Tensor]:
    """The tensors with the dimension of vmap first."""
    return [
        t.unsqueeze(0).expand(size, *t.shape) if dim is None else t.movedim(dim, 0)
        for t, dim in zip(tensors, dims, strict=True)
    ]


def lying_like(t: Tensor, model: Tensor) -> Tensor:
    """The tensor with the memory layout of the model, copied only if its strides differ."""
    strides = zip(t.shape, t.stride(), model.stride(), strict=True)
    return t if all(a == b for size, a, b in strides if size > 1) else torch.empty_like(model).copy_(t)


def parts_of(layout: Layout, tensors: Sequence[Tensor]) -> Parts:
    """The network's tensors, grouped by kind."""
    n = len(layout.layers)
    return [list(tensors[i : i + n]) for i in range(0, len(tensors), n)]


def convs_of(layout: Layout, side: int) -> list[Any]:
    """The shapes of all convolutions, for images of ``side`` pixels."""
    from cclfp.engine.kernels.triton_convolution import Conv

    shapes = (layer.shape for layer in layout.layers)
    return [Conv(C, K, ks, stride, side // shrunk) for C, K, ks, stride, shrunk in shapes]


def matrices_of(filters: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Filters (R, K, C, kh, kw) as the kernels read them: rounded, (R*K, taps*C)."""
    copies = current_copies().of(filters, dtype)
    return [w.permute(0, 1, 3, 4, 2).reshape(w.shape[0] * w.shape[1], -1) for w in copies]


def with_stem(filters: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Like :func:`matrices_of`. The first matrix is that of the stem: its 27 columns are padded to 32."""
    stem, *others = matrices_of(filters, dtype)
    return [F.pad(stem, (0, 5)), *others]


def as_filters(dw: Tensor, w: Tensor) -> Tensor:
    """A gradient as the kernels write it, in the shape of the filters w."""
    _, K, C, height, width = w.shape
    return dw[:, : C * height * width].reshape(-1, K, height, width, C).permute(0, 1, 4, 2, 3)


def side_by_side(t: Tensor) -> Tensor:
    """Move the replicas from the first dimension into the last one, side by side."""
    return t.movedim(0, -2).flatten(-2)


def apart(t: Tensor, R: int) -> Tensor:
    """The inverse of :func:`side_by_side`."""
    replicas: Tensor = t.unflatten(-1, (R, -1))
    return replicas.movedim(-2, 0)
