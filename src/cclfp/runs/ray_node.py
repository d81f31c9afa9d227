"""What runs on the nodes of a Ray cluster: a task per cohort and, on the driver's node, a mailbox for their events.

A task posts events to the mailbox while it trains, and returns those about finished and failed runs once more in the
end, so that nothing is lost with a mailbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
import os
import pickle
import platform
import secrets
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray

from cclfp.core.userfiles import content_of, receive
from cclfp.data.datasets import is_cached, pack, unpack
from cclfp.errors import InputError, portable
from cclfp.events import Event, Failed, Finished, Note, Step
from cclfp.runs.checkpoints import CLUSTER_LOCK
from cclfp.runs.code import code
from cclfp.runs.execution import PATHS
from cclfp.runs.jobs import Job
from cclfp.runs.training import train_cohort
from cclfp.streams import get_benchmark

POST_EVERY = 0.25  # seconds between two messages about progress


@dataclasses.dataclass(frozen=True)
class Order:
    """A cohort to train, with what its node may lack."""

    number: int  # of the cohort
    keys: list[str]  # of its runs
    jobs: bytes  # pickled, with changes of their execution: read once the node is known to have the same code
    files: list[bytes]  # the user's own methods and backbones
    dataset: str
    configuration: dict[str, Any]  # of the first run
    code: dict[str, str]  # the driver's: the node must have the same


@dataclasses.dataclass(frozen=True)
class Message:
    """Events of a cohort, from one attempt to train it on one node."""

    number: int  # of the cohort
    token: str  # of the attempt
    node: str
    events: list[Event]
    finished: dict[str, Event]  # in a cohort of several runs: those that are finished, with their events


def order_of(number: int, cohort: Sequence[Job], device: str) -> Order:
    """A cohort with what its node may lack. Paths are absolute, and the device is named."""
    execution = cohort[0].execution
    paths = {name: path.absolute() for name in PATHS if (path := getattr(execution, name)) is not None}
    there = {"on": "local", "device": device, "checkpoints": execution.checkpoint_folder.absolute(), **paths}
    jobs = pickle.dumps((list(cohort), there))
    configuration = cohort[0].configuration  # they differ in hyperparameters alone
    files = [
        content_of(what, reference)
        for what, reference in (("method", configuration.method_file), ("backbone", configuration.backbone))
        if reference is not None and "file" in reference
    ]
    keys, dataset = [job.key for job in cohort], get_benchmark(configuration.benchmark).dataset
    return Order(number, keys, jobs, files, dataset, configuration.to_dict(), code(configuration.to_dict()))


class Mailbox:
    """Keeps messages until the driver takes them, and gives datasets to nodes that lack them. It is a Ray actor."""

    def __init__(self, home: str | None) -> None:
        if home is not None:
            os.environ["CCLFP_HOME"] = home
        self.messages: list[Message] = []
        self.arrived = asyncio.Event()
        self.finished_runs: dict[int, dict[str, Event]] = {}  # by the number of the cohort
        self.parcels: dict[str, Any] = {}
        self.packing = asyncio.Lock()

    async def put(self, message: Message) -> None:
        self.messages.append(message)
        if message.finished:
            self.finished_runs.setdefault(message.number, {}).update(message.finished)
        self.arrived.set()

    async def take(self) -> list[Message]:
        """All messages since the last call; it waits for one."""
        await self.arrived.wait()
        self.arrived.clear()
        taken, self.messages = self.messages, []
        return taken

    async def finished(self, number: int) -> dict[str, Event]:
        """The runs of a cohort that an attempt has finished before it was lost, with their events."""
        return self.finished_runs.get(number, {})

    async def dataset(self, name: str) -> list[Any]:
        """A reference to the dataset in Ray's object store, in a list, which Ray does not look into."""
        async with self.packing:
            if name not in self.parcels:
                self.parcels[name] = ray.put(await asyncio.to_thread(pack, name))
        return [self.parcels[name]]


def train_on_node(order: Order, mailbox: Any) -> Message:
    """Train a cohort on this node: a Ray task. Returns the events that end its runs."""
    post = Post(order, mailbox)
    with tempfile.TemporaryDirectory(prefix="cclfp-") as folder:
        try:
            jobs = _prepare(order, mailbox, Path(folder), post)
        except InputError as error:
            for key in order.keys:
                post.send(Failed(key, error))
        else:
            if jobs:
                train_cohort(jobs, post.send, None)  # the driver has the store
    return post.last()


def _prepare(order: Order, mailbox: Any, folder: Path, post: Post) -> list[Job]:
    """The jobs that are not finished, after making sure that this node has what they need."""
    if order.code != (here := code(order.configuration)):
        raise InputError(f"this node has other code, {here}, than the driver, {order.code}: install the same on both")
    for content in order.files:
        receive(content)
    if not is_cached(order.dataset):
        (parcel,) = ray.get(mailbox.dataset.remote(order.dataset))
        unpack(ray.get(parcel))
    finished: dict[str, Event] = {}
    if len(order.keys) > 1:  # an attempt that was lost may have finished some of them
        with contextlib.suppress(ray.exceptions.RayActorError):  # the driver has noted that its mailbox is lost
            finished = ray.get(mailbox.finished.remote(order.number))
    post.kept += finished.values()
    cohort, changes = pickle.loads(order.jobs)
    jobs: list[Job] = [job.with_execution(**changes) for job in cohort if job.key not in finished]
    shared = None if not jobs else jobs[0].execution.checkpoint_folder
    if shared is not None and not (shared / CLUSTER_LOCK).exists():  # the driver holds it, unless the folder is ours
        text = f"{post.node} has no folder {shared}: what it loses starts again from its beginning, unless "
        post.send(Note(text + "--checkpoints names a folder that all nodes share"))
        jobs = [job.with_execution(checkpoints=folder, checkpoint_every=math.inf) for job in jobs]
    return jobs


class Post:
    """Sends the events of one attempt to the mailbox, steps now and then and only the newest of each run."""

    def __init__(self, order: Order, mailbox: Any) -> None:
        self.order, self.mailbox = order, mailbox
        self.token = secrets.token_hex(8)
        self.node = f"{platform.node()}-{ray.get_runtime_context().get_node_id()[:6]}"
        self.steps: dict[str, Event] = {}  # the newest of each run
        self.others: list[Event] = []
        self.kept: list[Event] = []  # notes, and events that end runs: they are sent again in the end
        self.finished: dict[str, Event] = {}
        self.last_post = 0.0
        self.on_its_way: Any = None
        self._post()

    def send(self, event: Event) -> None:
        if isinstance(event, Failed):
            event = Failed(event.key, portable(event.error))
        if isinstance(event, Step):
            self.steps[event.key] = event
        else:
            self.others.append(event)
        if isinstance(event, Finished | Failed | Note):
            self.kept.append(event)
        if isinstance(event, Finished | Failed) and len(self.order.keys) > 1:
            self.finished[event.key] = event
        if isinstance(event, Note) or time.monotonic() - self.last_post > POST_EVERY:
            self._post()

    def last(self) -> Message:
        """The events that end runs, all notes, which may still be on their way, and what was not posted."""
        rest = [event for event in self.others if not isinstance(event, Finished | Failed | Note)]
        return self._message([*rest, *self.kept])

    def _post(self) -> None:
        """Post what is waiting, unless the mailbox has not got the message before this one."""
        if self.on_its_way is not None and not ray.wait([self.on_its_way], timeout=0)[0]:
            return
        self.on_its_way = self.mailbox.put.remote(self._message([*self.others, *self.steps.values()]))
        self.others, self.steps, self.last_post = [], {}, time.monotonic()

    def _message(self, events: list[Event]) -> Message:
        return Message(self.order.number, self.token, self.node, events, dict(self.finished))
