"""Cohorts on the user's Ray cluster, one task each. The driver alone writes the store; nodes answer with events."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import math
import os
import platform
import queue
import signal
import socket
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any

from cclfp.core.userfiles import content_of, receive
from cclfp.data.datasets import is_cached, pack, unpack
from cclfp.errors import InputError, RunError, first_line
from cclfp.events import Event, Failed, Finished, Note, OnEvent, Placed
from cclfp.runs.checkpoints import CLUSTER_LOCK, hold
from cclfp.runs.code import code, in_words
from cclfp.runs.execution import PATHS, Execution
from cclfp.runs.jobs import Job
from cclfp.runs.store import Store
from cclfp.runs.training import finish_stored, keep_record, train_cohort
from cclfp.streams import get_benchmark

CONNECT_SECONDS = 10.0
RETRIES = 3  # times that a cohort is trained again because its process or its node was lost
AHEAD = 32  # cohorts that are submitted before there is room for them, so that no node, also a new one, has to wait
LOOK_EVERY = 5.0  # seconds between two looks at the nodes
WAIT = 0.1  # seconds that Ray waits for an answer: it does not notice signals meanwhile
PATIENCE = 10.0  # seconds to wait for the end of cancelled tasks
ANSWER_EVERY = 0.25  # seconds between two answers of a node


@dataclasses.dataclass
class _Sent:
    """A cohort that was submitted."""

    left: dict[str, Job]  # those that have neither finished nor failed, by key
    attempt: int = 1
    node: str = "a node"  # its name as soon as it is known, or that of the attempt before


class RayCluster:
    """An executor on a Ray cluster, to which the module ``ray`` is connected."""

    def __init__(self, execution: Execution, ray: Any) -> None:
        self.execution, self.ray = execution, ray
        self.running: dict[Any, _Sent] = {}  # by the stream of a task's answers
        self.datasets: dict[str, list[Any]] = {}  # those that a node lacked, in Ray's object store

    @functools.cached_property
    def device(self) -> str:
        """cuda where a node has a GPU, unless the execution names the device."""
        device = self.execution.device
        if device == "auto":
            device = "cuda" if any(gpus for _, _, gpus in self._nodes()) else "cpu"
        self.execution.check_on(device)
        return device

    @property
    def workers(self) -> int:
        """How many cohorts can be trained at the same time; InputError where there is no room for any."""
        if room := self._room():
            return room
        wanted = f"{self.execution.threads} CPUs" + (f" and {self._share:g} GPUs" if self._share else "")
        found = "; ".join(f"{name} has {cpus:g} CPUs, {gpus:g} GPUs" for name, cpus, gpus in self._nodes())
        raise InputError(f"on={self.execution.on!r}: a cohort needs {wanted}, and no node has them ({found})")

    def _room(self) -> int:
        """How many cohorts the nodes that are alive can train at the same time."""
        threads, per_gpu = self.execution.threads, int(1 / self._share) if self._share else 0
        return sum(int(min(cpus // threads, per_gpu * gpus if per_gpu else cpus)) for _, cpus, gpus in self._nodes())

    @property
    def _share(self) -> float:
        """The share of a GPU that a cohort takes."""
        return 0.0 if self.device == "cpu" else self.execution.gpus_per_cohort or 1.0

    def _nodes(self) -> list[tuple[str, float, float]]:
        """The nodes that are alive: a name, CPUs and GPUs."""
        nodes = [(node["NodeManagerHostname"], node["Resources"]) for node in self.ray.nodes() if node["Alive"]]
        return [(name, resources.get("CPU", 0.0), resources.get("GPU", 0.0)) for name, resources in nodes]

    @functools.cached_property
    def task(self) -> Any:
        """The task that trains a cohort. The driver, and not Ray, starts it again where it is lost."""
        needs = {"num_cpus": self.execution.threads, "num_gpus": self._share}
        return self.ray.remote(**needs, name="cclfp cohort", max_retries=0, num_returns="streaming")(train_on_node)

    def run(self, cohorts: Sequence[Sequence[Job]], on_event: OnEvent) -> None:
        stdout = sys.stdout  # for results: whatever Ray prints goes to stderr

        def pass_on(event: Event) -> None:
            with contextlib.redirect_stdout(stdout):
                on_event(event)

        self.store, self.on_event = Store(self.execution.store), pass_on
        self.note = functools.cache(lambda text: pass_on(Note(text)))  # once per text: all nodes may say the same
        folder = self.execution.checkpoint_folder
        waiting = Note(f"another process trains on a cluster with {folder}: waiting for it")
        with contextlib.redirect_stdout(sys.stderr), hold(folder / CLUSTER_LOCK, waiting, pass_on):
            missing = [[job for job in jobs if not finish_stored(job, self.store, pass_on)] for jobs in cohorts]
            self._train(deque(jobs for jobs in missing if jobs))

    def _train(self, waiting: deque[list[Job]]) -> None:
        """Submit cohorts, store the records that come back, and submit again what is lost."""
        room, looked = 0, -LOOK_EVERY
        try:
            while waiting or self.running:
                if time.monotonic() - looked >= LOOK_EVERY:  # nodes join and leave
                    room, looked = self._room(), time.monotonic()
                    if not room:
                        self.note("no node of the cluster has room for a cohort: waiting for one")
                while waiting and len(self.running) < room + AHEAD:
                    self._submit(_Sent({job.key: job for job in waiting.popleft()}))
                for answers in self.ray.wait([*self.running], timeout=WAIT)[0]:
                    self._read(answers)
        except SystemError as error:  # what the handler of a signal raised while Ray waited
            raise error.__cause__ or error from None
        finally:
            for answers in self.running:
                self.ray.cancel(answers, force=True)
            if ends := [answers.completed() for answers in self.running]:
                self.ray.wait(ends, num_returns=len(ends), timeout=PATIENCE)
            self.running.clear()

    def _submit(self, sent: _Sent) -> None:
        order = order_of(list(sent.left.values()), self.device)
        self.running[self.task.remote(order, self.datasets.get(order.dataset, []))] = sent

    def _read(self, answers: Any) -> None:
        """Read what a task answers next, or how it has ended."""
        sent = self.running[answers]
        try:
            answer = self.ray.get(next(answers))
        except (StopIteration, self.ray.exceptions.RayError) as error:
            del self.running[answers]
            self._end(sent, error)
            return
        if isinstance(answer, str):
            if sent.attempt > 1:
                text = f"its process on {sent.node} was lost: attempt {sent.attempt} on {answer}"
                self.on_event(Note(text, next(iter(sent.left))))
            sent.node = answer
            self.on_event(Placed([*sent.left], answer, sent.attempt))
        else:
            for event in answer:
                self._pass_on(sent, event)

    def _pass_on(self, sent: _Sent, event: Event) -> None:
        """Pass on a node's event; the record of a finished run is stored first."""
        if isinstance(event, Finished):
            job = sent.left.pop(event.key)
            keep_record(job, event.record, self.store, self.on_event)
            if not job.has_learner():
                where = f"{sent.node} saved its learner in a folder {job.execution.save} of its own"
                text = f"the run is stored, but {where}: name a folder that all nodes share"
                self.on_event(Failed(event.key, InputError(text)))
        elif isinstance(event, Failed):
            sent.left.pop(event.key, None)  # it may have finished before: only its learner could not be saved
            self.on_event(Failed(event.key, type(event.error)(f"on {sent.node}: {event.error}")))
        elif isinstance(event, Note) and event.key is None:
            self.note(event.text)
        else:
            self.on_event(event)

    def _end(self, sent: _Sent, ended: Exception) -> None:
        """A task has ended. Its runs that have not are submitted again if it was lost, and fail otherwise."""
        error: Exception = RunError("its task ended without a result")
        if isinstance(ended, self.ray.exceptions.RayTaskError):
            if isinstance(ended.cause, NoDatasetError):
                (name,) = ended.cause.args
                self.datasets[name] = self.datasets.get(name) or [self.ray.put(pack(name))]
                self._submit(sent)
                return
            error = ended.cause if isinstance(ended.cause, InputError) else RunError(f"its task failed:\n{ended}")
        elif isinstance(ended, self.ray.exceptions.RayError):
            if sent.attempt <= RETRIES and sent.left:
                self._submit(_Sent(sent.left, sent.attempt + 1, sent.node))
                return
            text = f"its process on {sent.node} was lost in attempt {sent.attempt} ({first_line(ended)})"
            error = RunError(f"{text}. The same command continues from the last checkpoint")
        for key in sent.left:
            self.on_event(Failed(key, error))


# -- on a node ------------------------------------------------------------------------------------------------------


class NoDatasetError(Exception):
    """A node has not got the dataset of this name."""


@dataclasses.dataclass(frozen=True)
class Order:
    """A cohort to train, with what its node may lack."""

    jobs: Sequence[Job]
    files: list[bytes]  # the user's own methods and backbones
    dataset: str
    code: dict[str, str]  # the driver's: the node must have the same


def order_of(jobs: Sequence[Job], device: str) -> Order:
    """The order for a cohort. Paths are absolute, and the device is named."""
    execution, configuration = jobs[0].execution, jobs[0].configuration  # they differ in hyperparameters alone
    paths = {name: path.absolute() for name in PATHS if (path := getattr(execution, name)) is not None}
    there = {"on": "local", "device": device, "checkpoints": execution.checkpoint_folder.absolute(), **paths}
    jobs = [job.with_unchecked(**there) for job in jobs]
    own = {"method": configuration.method_file, "backbone": configuration.backbone}
    files = [content_of(what, reference) for what, reference in own.items() if reference and "file" in reference]
    return Order(jobs, files, get_benchmark(configuration.benchmark).dataset, code(configuration.to_dict()))


def train_on_node(order: Order, packed: list[Any]) -> Iterator[str | list[Event]]:
    """Train a cohort on this node: a Ray task. It answers with the node's name, then with events as they come.

    ``packed`` has a reference to the dataset, once a node has lacked it.
    """
    import ray

    node = f"{platform.node()}-{ray.get_runtime_context().get_node_id()[:6]}"
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    with tempfile.TemporaryDirectory(prefix="cclfp-") as folder, futures.ThreadPoolExecutor(1) as thread:
        try:
            jobs = _prepare(order, packed, node, Path(folder), events.put)
        except InputError as error:
            raise InputError(f"{error} (on {node})") from error
        yield node
        training = thread.submit(train_cohort, jobs, events.put, stores=False)  # the driver does
        while not training.done() or not events.empty():  # in this order: it ends with an event
            futures.wait([training], ANSWER_EVERY)
            if found := [events.get() for _ in range(events.qsize())]:
                yield found
        training.result()


def _prepare(order: Order, packed: list[Any], node: str, folder: Path, on_event: OnEvent) -> Sequence[Job]:
    """The jobs, after making sure that this node has what they need."""
    if order.code != (here := code(order.jobs[0].configuration.to_dict())):
        theirs, ours = in_words(here), in_words(order.code)
        raise InputError(f"this node has other code ({theirs}) than the driver ({ours}): install the same on both")
    for content in order.files:
        receive(content)
    if not is_cached(order.dataset):
        if not packed:
            raise NoDatasetError(order.dataset)
        import ray

        unpack(order.dataset, ray.get(packed[0]))
    jobs, shared = order.jobs, order.jobs[0].execution.checkpoint_folder
    if not (shared / CLUSTER_LOCK).exists():  # the driver holds it: this is another folder of the same name
        text = f"{node} has no folder {shared}: what it loses starts again from its beginning, unless "
        on_event(Note(text + "--checkpoints names a folder that all nodes share"))
        jobs = [job.with_unchecked(checkpoints=folder, checkpoint_every=math.inf) for job in jobs]
    return jobs


# -- the connection -------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def connected(on: str, address: str) -> Iterator[Any]:
    """The module ``ray``, connected to the cluster at an address; an empty one stands for that in ``RAY_ADDRESS``.

    A connection that the user has made is used, and stays.
    """
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # as later versions do: hide no GPU from CPU tasks
    import ray

    if ray.is_initialized():
        used = ray.get_runtime_context().gcs_address
        if address not in ("", "auto", used):
            raise InputError(f"on={on!r}: this process is connected to {used}: leave the address out, or disconnect")
        yield ray
        return
    address = address or os.environ.get("RAY_ADDRESS", "")
    _check_address(on, address)
    try:
        handler = signal.getsignal(signal.SIGTERM)  # which Ray replaces
        with contextlib.redirect_stdout(sys.stderr):
            try:
                ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
            except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
                raise InputError(f"on={on!r}: no Ray cluster can be used: {first_line(error)}") from error
        with contextlib.suppress(ValueError):  # Python allows handlers only in the main thread
            signal.signal(signal.SIGTERM, handler)
        yield ray
    finally:
        ray.shutdown()


def _check_address(on: str, address: str) -> None:
    """Refuse an address at which nothing listens. Ray itself would start a cluster, or wait for minutes."""
    host, _, port = address.rpartition(":")
    if address == "auto":
        return
    if not host or "/" in host or not (port.isascii() and port.isdigit()):
        text = f"on={on!r}: the address {address!r} is not HOST:PORT or auto, such as ray:10.0.0.1:6379"
        raise InputError(text if address else f"{text}, and RAY_ADDRESS names none either")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise InputError(f"on={on!r}: no Ray cluster can be reached at {address}: {error}") from error
