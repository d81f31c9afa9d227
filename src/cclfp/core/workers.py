"""Worker processes of this machine: one pool of them, for decoding images and for training.

A worker is a new Python process. It is not forked, because a fork copies threads and GPUs in use, and not started by
``multiprocessing``, which would run the user's script again in it. It ends when its parent ends: it imports little
before it starts to watch its parent.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, NamedTuple, NoReturn, cast

CHECK_EVERY = 0.2  # seconds between two looks of a worker at whether its parent is there


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Died(NamedTuple):
    """The last answer to a piece of work whose worker has ended, or for which no worker could start."""

    how: str


def work(
    file: str, function: str, environments: Sequence[Mapping[str, str]], pieces: Iterable[Any]
) -> Generator[tuple[int, Any], None, None]:
    """Call a function of a file, ``function(piece, answer)``, for each piece of work, in a process per environment.

    Yields the number of a piece and an answer to it, as answers come, until all pieces are worked on. The processes run
    the file alone, without the package that it is in, and end when the generator is closed. Pieces and answers are
    pickled. A process has its ``environment`` besides that of this process.

    A piece is taken when a worker is free for it. When a worker ends, only the piece that it had is lost, and another
    worker replaces it, unless it ended before it was ready.
    """
    command = _command(file, function)
    workers: list[_Worker] = []
    try:
        for environment in environments:
            workers.append(_Worker(command, environment))
        waiting, is_empty = enumerate(pieces), False
        while True:
            for worker in workers:
                if worker.is_free and not is_empty:
                    following = next(waiting, None)
                    is_empty = following is None
                    if following is not None:
                        worker.give(*following)
            if is_empty and all(worker.piece is None for worker in workers):
                return
            readable = wait([worker.connection for worker in workers])
            for worker in [worker for worker in workers if worker.connection in readable]:
                try:
                    worker.is_free, answer = worker.connection.recv()
                except (EOFError, OSError):
                    workers.remove(worker)
                    how = worker.end(killed=False)
                    if worker.piece is not None:
                        yield worker.piece, Died(how)
                    if worker.has_started and not is_empty:
                        workers.append(_Worker(command, worker.environment))
                    continue
                if not worker.is_free:
                    yield cast(int, worker.piece), answer
                else:
                    worker.has_started, worker.piece = True, None
            if not workers:
                yield from ((number, Died(f"could not start (it {how})")) for number, _ in waiting)
                return
    finally:
        for worker in workers:
            worker.end(killed=True)


class _Worker:
    """A process, and the connection to it."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.environment = environment
        self.piece: int | None = None  # the number of the piece that it has
        self.has_started = self.is_free = False
        self.connection, theirs = Pipe()
        with theirs:
            self.process = subprocess.Popen(
                command,
                stdin=theirs.fileno(),
                stderr=None if sys.stderr else subprocess.DEVNULL,  # it may have been closed
                env={**os.environ, **environment},
                start_new_session=True,  # Ctrl-C is for the parent, which ends its workers
            )

    def give(self, number: int, piece: Any) -> None:
        self.piece, self.is_free = number, False
        with contextlib.suppress(OSError):  # it has ended, which shows when its answer is read
            self.connection.send(piece)

    def end(self, *, killed: bool) -> str:
        """Wait until it has ended, by itself or killed with the processes that it has started; return how it has."""
        if killed and self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # it has just ended
                os.killpg(self.process.pid, signal.SIGKILL)
        self.connection.close()
        code = self.process.wait()
        return f"was killed by signal {-code}, perhaps for lack of memory" if code < 0 else f"ended with code {code}"


# -- in a worker ---------------------------------------------------------------------------------------------------


def _command(file: str, function: str) -> list[str]:
    # A worker imports what this process would: its sys.path, without the current folder and what may lie there.
    path = [entry for entry in sys.path if entry]
    code = f"import sys; sys.path[:] = {path!r}; from cclfp.core.workers import serve; serve({file!r}, {function!r})"
    return [sys.executable, "-P", "-c", code]


def serve(file: str, name: str) -> NoReturn:
    """In a worker: call a function of a file for each piece of work that comes through stdin, a socket."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    connection = Connection(os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # so that no process that this one starts holds the connection
    os.dup2(2, 1)  # stdout is for the results of the command

    def send(answer: Any, is_ready: bool = False) -> None:
        try:
            connection.send((is_ready, answer))
        except OSError:  # the parent is gone
            _end_now()

    function = runpy.run_path(file)[name]
    while True:
        send(None, is_ready=True)
        try:
            piece = connection.recv()
        except (EOFError, OSError):  # the parent is gone, perhaps in the middle of a piece
            _end_now()
        function(piece, send)


def _end_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(CHECK_EVERY)
    _end_now()


def _end_now() -> NoReturn:
    """End this worker and the processes it has started, such as a compiler."""
    if os.getpgid(0) == os.getpid():  # this process leads its own group
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
