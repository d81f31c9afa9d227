"""Worker processes of this machine: one pool of them, for decoding images and for training.

A worker is a new Python process. It is not forked, because a fork copies threads and GPUs in use, and not started by
``multiprocessing``, which would run the user's script again in it. It ends when its parent ends: it imports little
before it starts to watch its parent.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import queue
import runpy
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import IO, Any, NamedTuple, NoReturn, cast

CHECK_EVERY = 1000  # milliseconds
ROOM = 1 << 24  # bytes of memory that a worker's thread in this process takes at most


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Died(NamedTuple):
    """The last answer to a piece of work whose worker has ended, or for which no worker could start."""

    how: str
    has_started: bool


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
    command, messages = _command(file, function), _Messages()
    workers: list[_Worker] = []
    waiting, is_empty = enumerate(pieces), False
    try:
        for environment in environments:
            workers.append(_Worker(command, environment, messages))
        while True:
            for worker in workers:
                if worker.is_ready and worker.piece is None and not is_empty:
                    following = next(waiting, None)
                    is_empty = following is None
                    if following is not None:
                        worker.give(*following)
            if is_empty and all(worker.piece is None for worker in workers):
                return
            worker, message = messages.get()
            if message is not None:
                is_ready, answer = message
                if is_ready:
                    worker.is_ready, worker.piece = True, None
                else:
                    yield cast(int, worker.piece), answer
                continue
            workers.remove(worker)
            how = worker.end()
            if worker.piece is not None:
                yield worker.piece, Died(how, has_started=True)
            if worker.is_ready and not is_empty:
                workers.append(_Worker(command, worker.environment, messages))
            elif not workers:
                yield from ((number, Died(how, has_started=False)) for number, _ in waiting)
                is_empty = True
    finally:
        for worker in workers:
            worker.kill()
        for worker in workers:
            worker.end()


class _Worker:
    """A process, and a thread that reads its answers."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], messages: _Messages) -> None:
        mmap.mmap(-1, ROOM).close()  # without memory for a thread, Thread.start can wait without end
        self.environment, self.messages = environment, messages
        self.piece: int | None = None  # the number of the piece that it has
        self.is_ready = False  # whether it has started, and could be given a piece
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if sys.stderr else subprocess.DEVNULL,  # it may have been closed
            env={**os.environ, **environment},
            start_new_session=True,  # Ctrl-C is for the parent, which ends its workers
        )
        self.input, self.output = cast(IO[bytes], self.process.stdin), cast(IO[bytes], self.process.stdout)
        self.thread = threading.Thread(target=self._listen, daemon=True)
        self.thread.start()

    def give(self, number: int, piece: Any) -> None:
        self.piece = number
        with contextlib.suppress(BrokenPipeError):  # it has ended: its thread will say so
            pickle.dump(piece, self.input)
            self.input.flush()

    def _listen(self) -> None:
        try:
            while True:
                self.messages.put((self, pickle.load(self.output)))
        except EOFError:
            self.process.wait()
        except (OSError, pickle.UnpicklingError):  # it was killed while it wrote, or something else wrote there
            pass
        finally:
            self.kill()
            self.messages.put((self, None))

    def kill(self) -> None:
        """Kill it and the processes that it has started."""
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # it has just ended
                if hasattr(os, "killpg"):
                    os.killpg(self.process.pid, signal.SIGKILL)
                else:
                    self.process.kill()

    def end(self) -> str:
        """Release what is held for it after its end, and return how it has ended."""
        self.thread.join()
        for pipe in (self.input, self.output):
            with contextlib.suppress(OSError):  # what it was not sent
                pipe.close()
        code = self.process.wait()
        return f"was killed by signal {-code}, perhaps for lack of memory" if code < 0 else f"ended with code {code}"


# An answer, or that the worker is ready for a piece of work; None: it has ended.
_Messages = queue.SimpleQueue[tuple[_Worker, tuple[bool, Any] | None]]


# -- in a worker ---------------------------------------------------------------------------------------------------


def _command(file: str, function: str) -> list[str]:
    # A worker imports what this process would: its sys.path, without the current folder and what may lie there.
    path = [entry for entry in sys.path if entry]
    code = f"import sys; sys.path[:] = {path!r}; from cclfp.core.workers import serve; serve({file!r}, {function!r})"
    return [sys.executable, "-P", "-c", code]


def serve(file: str, name: str) -> NoReturn:
    """In a worker: call a function of a file for each piece of work that comes on stdin. Answers go to stdout."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    end_with_parent()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever else prints does not disturb the answers

    def send(answer: Any, is_ready: bool = False) -> None:
        try:
            pickle.dump((is_ready, answer), answers)
            answers.flush()
        except OSError:  # nobody listens
            end_now()

    function = runpy.run_path(file)[name]
    while True:
        send(None, is_ready=True)
        try:
            piece = pickle.load(sys.stdin.buffer)
        except (EOFError, pickle.UnpicklingError):  # the parent is gone, perhaps in the middle of a piece
            end_now()
        function(piece, send)


def end_with_parent() -> None:
    """Watch the parent from a thread, and end this process and its children when the parent is gone.

    Stdin is a pipe from the parent: the kernel signals a hang-up as soon as the parent ends, unless another child of it
    has inherited the other end of the pipe. So its process id is also checked regularly.
    """
    parent = os.getppid()

    def watch() -> None:
        poll = select.poll()
        poll.register(0, 0)  # only hang-ups
        while not poll.poll(CHECK_EVERY) and os.getppid() == parent:
            pass
        end_now()

    if hasattr(select, "poll"):  # not on Windows, where a worker notices at its next read or write
        threading.Thread(target=watch, daemon=True).start()


def end_now() -> NoReturn:
    """End this worker and the processes it has started, such as a compiler."""
    if hasattr(os, "killpg") and os.getpgid(0) == os.getpid():  # this process leads its own group
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
