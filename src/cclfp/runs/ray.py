"""Cohorts on a Ray cluster, one task each: the connection to it, and the driver, which alone writes the store.

The cluster is the user's, or a private one on this machine that nobody else can reach.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import os
import queue
import secrets
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from cclfp.core.files import home
from cclfp.core.workers import cores
from cclfp.data.source import first_line
from cclfp.errors import InputError, RunError
from cclfp.events import Event, Failed, Finished, Note, OnEvent, Placed
from cclfp.runs.checkpoints import alone_in, make_folder, remove_checkpoint
from cclfp.runs.execution import Execution
from cclfp.runs.jobs import Job
from cclfp.runs.store import Attempt, Store
from cclfp.runs.training import finish_stored, keep_record

if TYPE_CHECKING:
    from cclfp.runs.ray_node import Message

LOOPBACK = "127.0.0.1"
CONNECT_SECONDS = 10.0
POSTPONED = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
# With this variable Ray's processes listen on the loopback interface alone, and not on every one. Ray reads it when it
# is imported. It is meant for other platforms than Linux, where it is the default.
PRIVATE = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
RETRIES = 3  # times that a cohort is trained again because its process or its node was lost
AHEAD = 32  # cohorts that are submitted before there is room for them, so that no node waits for the driver
LOOK_EVERY = 5.0  # seconds between two looks at what the nodes have room for
PATIENCE = 10.0  # seconds to wait for the end of cancelled tasks
LOG_TOGETHER = 100  # attempts that are logged in one transaction

Node = tuple[str, float, float]  # a name, CPUs and GPUs


class RayCluster:
    """An executor on the Ray cluster that an execution names. It connects when it is first used."""

    def __init__(self, execution: Execution) -> None:
        self.execution = execution
        self._connection = contextlib.ExitStack()
        self._stdout = sys.stdout

    @functools.cached_property
    def ray(self) -> Any:
        """The module, connected."""
        return self._connection.enter_context(connected(self.execution.on, self.execution.ray_address or ""))

    @functools.cached_property
    def device(self) -> str:
        """cuda where a node has a GPU, unless the execution names the device."""
        device = self.execution.device
        if device == "auto":
            device = "cuda" if any(gpus for _, _, gpus in self._nodes()) else "cpu"
        self.execution.check_on(device)
        return device

    @property
    def gpus_per_cohort(self) -> float:
        return 0.0 if self.device == "cpu" else self.execution.gpus_per_cohort or 1.0

    @property
    def workers(self) -> int:
        if room := self.room():
            return room
        wanted = f"{self.execution.threads} CPUs"
        wanted += f" and {self.gpus_per_cohort:g} GPUs" if self.gpus_per_cohort else ""
        found = "; ".join(f"{name} has {cpus:g} CPUs, {gpus:g} GPUs" for name, cpus, gpus in self._nodes())
        raise InputError(f"on={self.execution.on!r}: a cohort needs {wanted}, and no node has them ({found})")

    def room(self) -> int:
        """How many cohorts the nodes that are alive can train at the same time."""
        threads, share = self.execution.threads, self.gpus_per_cohort
        per_gpu = int(1 / share) if share else 0
        return sum(int(min(cpus // threads, per_gpu * gpus if share else cpus)) for _, cpus, gpus in self._nodes())

    def _nodes(self) -> list[Node]:
        nodes = [(node["NodeManagerHostname"], node["Resources"]) for node in self.ray.nodes() if node["Alive"]]
        return [(name, resources.get("CPU", 0.0), resources.get("GPU", 0.0)) for name, resources in nodes]

    def run(self, cohorts: Sequence[Sequence[Job]], on_event: OnEvent) -> None:
        def pass_on(event: Event) -> None:
            with contextlib.redirect_stdout(stdout):
                on_event(event)

        stdout = self._stdout
        folder = self.execution.checkpoint_folder
        make_folder(folder)
        with alone_in(folder, pass_on):
            store = Store(self.execution.store)
            with store.kept_open():
                _Driver(self, store, pass_on).run(_without_finished(cohorts, store, pass_on))

    @functools.cached_property
    def task(self) -> Any:
        """The task that trains a cohort. Only the loss of its process or its node starts it again."""
        from cclfp.runs.ray_node import train_on_node

        options = {"num_cpus": self.execution.threads, "num_gpus": self.gpus_per_cohort, "name": "cclfp cohort"}
        return self.ray.remote(**options, max_retries=RETRIES, retry_exceptions=False)(train_on_node)

    def start_mailbox(self) -> Any:
        """The actor that gets the events of all nodes. It is on the driver's node, and lost only with the driver."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        from cclfp.runs.ray_node import Mailbox

        here = NodeAffinitySchedulingStrategy(self.ray.get_runtime_context().get_node_id(), soft=False)
        return self.ray.remote(num_cpus=0, scheduling_strategy=here)(Mailbox).remote(str(home().absolute()))

    def close(self) -> None:
        self._connection.close()


def _without_finished(cohorts: Sequence[Sequence[Job]], store: Store, on_event: OnEvent) -> list[list[Job]]:
    """The jobs that another process has not finished in the meantime."""
    missing = [[job for job in cohort if not finish_stored(job, store, on_event)] for cohort in cohorts]
    return [cohort for cohort in missing if cohort]


@dataclasses.dataclass
class _Sent:
    """A cohort that was submitted."""

    jobs: dict[str, Job]  # by key
    task: Any  # Ray's reference
    tokens: list[str] = dataclasses.field(default_factory=list)  # of the attempts to train it
    nodes: list[str] = dataclasses.field(default_factory=list)  # of the same attempts
    ended: set[tuple[str, type[Event]]] = dataclasses.field(default_factory=set)  # runs that have finished, or failed
    notes: list[Note] = dataclasses.field(default_factory=list)  # that were passed on

    @property
    def unfinished(self) -> list[Job]:
        keys = {key for key, _ in self.ended}
        return [job for key, job in self.jobs.items() if key not in keys]


class _Driver:
    """Submits cohorts and deals with what comes back."""

    def __init__(self, cluster: RayCluster, store: Store, on_event: OnEvent) -> None:
        self.cluster, self.store, self.on_event = cluster, store, on_event
        self.mailbox = cluster.start_mailbox()
        self.inbox: queue.SimpleQueue[tuple[int | None, Future[Any]]] = queue.SimpleQueue()  # None: from the mailbox
        self.running: dict[int, _Sent] = {}
        self.log: list[Attempt] = []
        self.notes: set[str] = set()  # those about no run in particular, each of which is passed on once
        self.room, self.last_look = 0, -LOOK_EVERY

    def run(self, cohorts: Sequence[Sequence[Job]]) -> None:
        waiting = deque(enumerate(cohorts))
        try:
            self._listen(None, self.mailbox.take.remote())
            while waiting or self.running:
                self._look()
                while waiting and len(self.running) < self.room + AHEAD:
                    self._submit(*waiting.popleft())
                with contextlib.suppress(queue.Empty):
                    number, future = self.inbox.get(timeout=LOOK_EVERY)
                    if number is None:
                        self._read_mail(future)
                    else:
                        self._end(number, future)
                self._write_log(at_least=1 if self.inbox.empty() else LOG_TOGETHER)
        finally:
            self._cancel()
            self._write_log(at_least=1)

    def _look(self) -> None:
        """See how many cohorts the nodes have room for: nodes join and leave."""
        if time.monotonic() - self.last_look >= LOOK_EVERY:
            self.last_look, self.room = time.monotonic(), self.cluster.room()
            if not self.room:
                self._note_once("no node of the cluster has room for a cohort: waiting for one")

    def _submit(self, number: int, cohort: Sequence[Job]) -> None:
        from cclfp.runs.ray_node import order_of

        task = self.cluster.task.remote(order_of(number, cohort, self.cluster.device), self.mailbox)
        self.running[number] = _Sent({job.key: job for job in cohort}, task)
        self._listen(number, task)

    def _listen(self, number: int | None, reference: Any) -> None:
        reference.future().add_done_callback(lambda future: self.inbox.put((number, future)))

    def _read_mail(self, future: Future[Any]) -> None:
        try:
            messages: list[Message] = future.result()
        except self.cluster.ray.exceptions.RayError as error:
            self._note_once(f"progress is no longer shown: {first_line(error)}")
            return
        self._listen(None, self.mailbox.take.remote())
        for message in messages:
            if (sent := self.running.get(message.number)) is not None:
                self._read(sent, message)

    def _end(self, number: int, future: Future[Any]) -> None:
        """A task has ended: all its runs have ended too, or fail now."""
        sent = self.running[number]
        try:
            self._read(sent, future.result())
            error = RunError("its task ended without a result")
        except self.cluster.ray.exceptions.RayTaskError as raised:
            error = RunError(f"its task failed:\n{raised}")
        except self.cluster.ray.exceptions.RayError as raised:
            where = f" on {sent.nodes[-1]}" if sent.nodes else ""
            error = RunError(
                f"its process{where} was lost in attempt {max(1, len(sent.tokens))} ({first_line(raised)}). "
                "The same command continues from the last checkpoint"
            )
        del self.running[number]
        for job in sent.unfinished:
            self.on_event(Failed(job.key, RunError(f"{job.label()}: {error}")))

    def _read(self, sent: _Sent, message: Message) -> None:
        if message.token not in sent.tokens:
            self._begin_attempt(sent, message)
        for event in message.events:
            if isinstance(event, Finished | Failed):
                self._end_run(sent, event, message.node)
            elif isinstance(event, Note) and event.key is None:
                self._note_once(event.text)
            elif isinstance(event, Note):
                if event not in sent.notes:  # the last message of an attempt has all its notes again
                    sent.notes.append(event)
                    self.on_event(event)
            elif message.token == sent.tokens[-1]:  # what an attempt that was lost says about progress is outdated
                self.on_event(event)

    def _begin_attempt(self, sent: _Sent, message: Message) -> None:
        jobs, attempt = sent.unfinished, len(sent.tokens) + 1
        if not jobs:
            return
        if attempt > 1:
            others = f" with {len(jobs) - 1} more" if len(jobs) > 1 else ""
            text = f"its process on {sent.nodes[-1]} was lost: attempt {attempt}{others} on {message.node}"
            self.on_event(Note(text, jobs[0].key))
        sent.tokens.append(message.token)
        sent.nodes.append(message.node)
        if attempt > RETRIES + 1:  # Ray counts no retries of processes that it killed for want of memory
            self.cluster.ray.cancel(sent.task, force=True)
            return
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self.log += [Attempt(job.key, message.node, attempt, now) for job in jobs]
        self.on_event(Placed([job.key for job in jobs], message.node, attempt))

    def _end_run(self, sent: _Sent, event: Finished | Failed, node: str) -> None:
        if (event.key, type(event)) in sent.ended:  # it came by mail before
            return
        sent.ended.add((event.key, type(event)))
        job = sent.jobs[event.key]
        if isinstance(event, Failed):
            text = f"{job.label()} failed on {node}: {event.error}"
            self.on_event(Failed(event.key, type(event.error)(text)))
            return
        record = keep_record(job, event.record, self.store, self.on_event)
        remove_checkpoint(job, self.on_event)
        self.on_event(Finished(event.key, record))
        if not job.has_learner():
            text = f"the run is stored, but {node} saved its learner in a folder {job.execution.save} of its own"
            self.on_event(Failed(event.key, InputError(f"{text}: name a folder that all nodes share")))

    def _note_once(self, text: str) -> None:
        if text not in self.notes:
            self.notes.add(text)
            self.on_event(Note(text))

    def _write_log(self, at_least: int) -> None:
        if len(self.log) >= at_least:
            self.store.log_attempts(self.log)
            self.log = []

    def _cancel(self) -> None:
        """End all tasks that still run, and the mailbox."""
        tasks = [sent.task for sent in self.running.values()]
        for task in tasks:
            self.cluster.ray.cancel(task, force=True)
        if tasks:
            self.cluster.ray.wait(tasks, num_returns=len(tasks), timeout=PATIENCE)
        self.cluster.ray.kill(self.mailbox)


# -- the connection -------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def connected(on: str, address: str) -> Iterator[Any]:
    """The module ``ray``, connected to the cluster at an address.

    An empty address means the one in ``RAY_ADDRESS`` or, without that variable, a private cluster. A connection that
    the user has made is used, and stays. During our own, whatever Ray prints goes to stderr: stdout is for results.
    """
    named, address = address, address or os.environ.get("RAY_ADDRESS", "")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # as later versions do: hide no GPU from CPU tasks
    if not address and "ray" not in sys.modules:
        os.environ.update(PRIVATE)
        os.environ.setdefault("RAY_AUTH_MODE", "token")  # other users of this machine do not know the token
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    import ray

    if ray.is_initialized():
        used = ray.get_runtime_context().gcs_address
        if named not in ("", "auto", used):
            raise InputError(f"on={on!r}: this process is connected to {used}: leave the address out, or disconnect")
        yield ray
        return
    with contextlib.redirect_stdout(sys.stderr):
        try:
            with _postponed_signals():
                _connect(ray, on, address)
            yield ray
        finally:
            ray.shutdown()


def _connect(ray: Any, on: str, address: str) -> None:
    """Connect to the cluster at an address, or start a private one."""
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address:
        _check_address(on, address)
    else:
        if ray.util.get_node_ip_address() != LOOPBACK:
            raise InputError(
                f"on={on!r}: Ray was imported before, and would now listen to other machines: call ray.init() yourself "
                "if you want that, and its cluster is used"
            )
        options |= {"num_cpus": cores(), "include_dashboard": False}
    try:
        ray.init(address or "local", **options)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"on={on!r}: no Ray cluster can be used: {reason}") from error


def _check_address(on: str, address: str) -> None:
    """Refuse an address at which nothing listens. Ray itself would wait for minutes."""
    host, _, port = address.rpartition(":")
    if address == "auto":
        return
    if not host or "/" in host or not (port.isascii() and port.isdigit()):
        raise InputError(f"on={on!r}: the address {address!r} is not HOST:PORT or auto, such as 10.0.0.1:6379")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise InputError(f"on={on!r}: no Ray cluster can be reached at {address}: {error}") from error


@contextlib.contextmanager
def _postponed_signals() -> Iterator[None]:
    """Keep this process's signal handlers, which Ray replaces, and call them after the context.

    A start that is interrupted in the middle would leave some of Ray's processes behind.
    """
    if threading.current_thread() is not threading.main_thread():  # Python allows handlers only there
        yield
        return
    received: list[int] = []
    handlers = {number: signal.getsignal(number) for number in POSTPONED}
    for number, handler in handlers.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, lambda number, frame: received.append(number))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number in received[:1]:
            signal.raise_signal(number)
