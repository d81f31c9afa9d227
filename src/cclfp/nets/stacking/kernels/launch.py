"""Launching kernels, compiling them in parallel beforehand, and the constants of their block sizes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import triton

COLUMNS = 64  # channels per program of a BatchNorm kernel
ROWS = 64  # pixels per program, or twice as many in the kernels that sum
MULTIPROCESSORS = 132  # of an H100 or H200: block sizes are chosen so that this many programs have work

_compile_only = False


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """Inside, launches only compile their kernels, on all processors in parallel."""
    global _compile_only
    _compile_only = True
    try:
        with ThreadPoolExecutor(os.cpu_count()) as threads, triton.AsyncCompileMode(threads):
            yield
    finally:
        _compile_only = False


def launch(kernel, grid, *arguments, **settings):
    """Run the kernel on the grid or, inside :func:`compiling`, compile it."""
    if _compile_only:
        kernel.warmup(*arguments, grid=grid, **settings)
    else:
        kernel[grid](*arguments, **settings)
