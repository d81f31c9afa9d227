"""Ends worker processes immediately and silently when their parent process is gone, for example killed.

It imports only small modules of the standard library, so that a worker watches its parent before it imports the rest.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import threading
from typing import Any, NoReturn

CHECK_EVERY = 1000  # milliseconds


def end_with_parent() -> None:
    """Watch the parent from a thread, and end this process and its children when the parent is gone.

    Stdin must be a pipe from the parent: the kernel then signals a hang-up as soon as the parent ends. It does not if
    another child of the parent has inherited the other end of the pipe, so the parent's process id is also checked
    regularly.
    """
    if hasattr(select, "poll"):  # not on Windows, where a worker notices at its next read or write
        threading.Thread(target=_watch, args=(os.getppid(),), daemon=True).start()


def _watch(parent: int) -> None:
    poll = select.poll()
    poll.register(0, 0)  # only hang-ups
    while not poll.poll(CHECK_EVERY) and os.getppid() == parent:
        pass
    end_now()


def end_now() -> NoReturn:
    """End this worker and the processes it has started, such as a compiler."""
    if hasattr(os, "killpg") and os.getpgid(0) == os.getpid():  # this process leads its own group
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def kill(process: subprocess.Popen[Any]) -> None:
    """Kill a worker that was started with ``start_new_session``, and the processes it has started."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # it has just ended
            if hasattr(os, "killpg"):
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
