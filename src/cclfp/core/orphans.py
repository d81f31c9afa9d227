"""How worker processes end when the process that started them is gone, killed perhaps: at once and silently.

Imports nothing but small modules of Python's own, so that a worker is watched before it imports the rest.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import threading
from typing import Any, NoReturn

LOOK_EVERY = 1000  # milliseconds


def end_with_parent() -> None:
    """Watch the parent from a thread, and end this process and its children when it is gone.

    The kernel says so at once, by hanging up stdin, which must be a pipe from the parent: unless a copy of the pipe's
    other end is still open, in a child that the parent has forked. So look at the parent's number too, now and then.
    """
    if hasattr(select, "poll"):  # Windows has none: there a worker notices when it reads or writes next
        threading.Thread(target=_watch, args=(os.getppid(),), daemon=True).start()


def _watch(parent: int) -> None:
    poll = select.poll()
    poll.register(0, 0)  # hang-ups alone
    while not poll.poll(LOOK_EVERY) and os.getppid() == parent:
        pass
    end_now()


def end_now() -> NoReturn:
    """End this worker, and what it has started, such as a compiler."""
    if hasattr(os, "killpg") and os.getpgid(0) == os.getpid():  # started as the leader of a group of its own
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def kill(process: subprocess.Popen[Any]) -> None:
    """Kill a worker that was started with ``start_new_session``, and what it has started."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # it ended just now
            if hasattr(os, "killpg"):
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
