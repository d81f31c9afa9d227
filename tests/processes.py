"""Processes of this machine, as /proc shows them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path


def children(pid: int) -> list[int]:
    """The processes that a process has started, with any of its threads, and that are not gone."""
    found: list[int] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has ended
            found += map(int, file.read_text().split())
    return found


def command_of(pid: int) -> str:
    """The command line of a process; empty where it has ended, also of a zombie."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    return ""


def alive(pid: int) -> bool:
    return command_of(pid) != ""


def wait_until(is_so: Callable[[], object], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True
