"""Copies of the parameters in the precision that the kernels read, kept up to date during a step."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from cclfp.nets.stacking.cuda_streams import Event, events_now


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
        own, copy = self._copies.get(t.data_ptr(), (None, None))
        return copy if own is not None and (own.shape, own.stride()) == (t.shape, t.stride()) else None


_copies: Copies | None = None


@contextlib.contextmanager
def rounded(tensors: Sequence[Tensor], copies: Sequence[Tensor], arguments: Sequence[Tensor] = ()) -> Iterator[Copies]:
    """A step that reads these copies instead of the tensors. :class:`~cclfp.nets.stacking.update.Update` updates them.

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


def current_copies() -> Copies | None:
    """The copies of the step that runs now; None outside :func:`rounded`."""
    return _copies


def is_rounding() -> bool:
    """Whether there are copies to keep up to date."""
    return _copies is not None


def copy_of(t: Tensor) -> Tensor | None:
    """The copy of a tensor that convolutions read; None if it has no copy."""
    return None if _copies is None else _copies.get(t)


def round_all(tensors: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Copies of the tensors in another precision, made with one call."""
    new = [torch.empty_like(t, dtype=dtype) for t in tensors]
    if new:
        torch._foreach_copy_(new, list(tensors))
    return new
