"""What runs on the nodes of a Ray cluster: a task per cohort and, on the driver's node, a mailbox for their events.

Events travel as JSON. A task posts them to the mailbox while it trains, and returns those about finished and failed
runs once more in the end, so that nothing is lost with a mailbox.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import os
import platform
import secrets
import tempfile
import time
from pathlib import Path
from typing import Any

import ray

POST_EVERY = 0.25  # seconds between two messages about progress


@dataclasses.dataclass(frozen=True)
class Order:
    """A cohort to train, with what its node may lack."""

    number: int  # of the cohort
    keys: list[str]  # of its runs
    jobs: list[dict[str, Any]]
    files: list[bytes]  # the user's own methods and backbones
    datasets: list[str]
    code: dict[str, str]  # the driver's: the node must have the same

    @property
    def has_several(self) -> bool:
        """Whether an attempt that is lost may have finished some of the runs."""
        return len(self.keys) > 1


@dataclasses.dataclass(frozen=True)
class Message:
    """Events of a cohort, from one attempt to train it on one node."""

    number: int  # of the cohort
    token: str  # of the attempt
    node: str
    events: list[str]
    finished: dict[str, str]  # in a cohort of several runs: those that are finished, with their events


class Mailbox:
    """Keeps messages until the driver takes them, and gives datasets to nodes that lack them. It is a Ray actor."""

    def __init__(self, home: str | None) -> None:
        if home is not None:
            os.environ["CCLFP_HOME"] = home
        self.messages: list[Message] = []
        self.arrived = asyncio.Event()
        self.finished_runs: dict[int, dict[str, str]] = {}  # by the number of the cohort
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

    async def finished(self, number: int) -> dict[str, str]:
        """The runs of a cohort that an attempt has finished before it was lost, with their events."""
        return self.finished_runs.get(number, {})

    async def dataset(self, name: str) -> list[Any]:
        """A reference to the dataset in Ray's object store, in a list, which Ray does not look into."""
        from cclfp.data.datasets import pack  # takes seconds

        async with self.packing:
            if name not in self.parcels:
                self.parcels[name] = ray.put(await asyncio.to_thread(pack, name))
        return [self.parcels[name]]


def train_on_node(order: Order, mailbox: Any) -> Message:
    """Train a cohort on this node: a Ray task. Returns the events that end its runs."""
    from cclfp.errors import InputError
    from cclfp.runs.events import Failed
    from cclfp.runs.training import train_cohort

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


def _prepare(order: Order, mailbox: Any, folder: Path, post: Post) -> Any:
    """The jobs that are not finished, after making sure that this node has what they need."""
    from cclfp.core.userfiles import receive
    from cclfp.data.datasets import is_cached, unpack
    from cclfp.errors import InputError
    from cclfp.runs.checkpoints import CLUSTER_LOCK
    from cclfp.runs.code import code
    from cclfp.runs.events import Note
    from cclfp.runs.jobs import Job

    if order.code != (here := code(order.jobs[0]["configuration"])):
        raise InputError(f"this node has other code, {here}, than the driver, {order.code}: install the same on both")
    for content in order.files:
        receive(content)
    for name in order.datasets:
        if not is_cached(name):
            (parcel,) = ray.get(mailbox.dataset.remote(name))
            unpack(ray.get(parcel))
    finished = _finished_before(order, mailbox)
    post.endings += finished.values()
    jobs = [Job.from_dict(values) for key, values in zip(order.keys, order.jobs, strict=True) if key not in finished]
    if not jobs:
        return jobs
    shared = jobs[0].execution.checkpoint_folder
    if not (shared / CLUSTER_LOCK).exists():  # which the driver holds; a folder of this name may be the node's own
        text = f"{post.node} has no folder {shared}: what it loses starts again from its beginning, unless "
        post.send(Note(text + "--checkpoints names a folder that all nodes share"))
        jobs = [job.with_execution(checkpoints=folder, checkpoint_every=math.inf) for job in jobs]
    return jobs


def _finished_before(order: Order, mailbox: Any) -> dict[str, str]:
    """The runs that an attempt which was lost has finished, as events, by key."""
    if not order.has_several:
        return {}
    try:
        found: dict[str, str] = ray.get(mailbox.finished.remote(order.number))
        return found
    except ray.exceptions.RayActorError:  # the driver has noted that its mailbox is lost
        return {}


class Post:
    """Sends the events of one attempt to the mailbox, steps now and then and only the newest of each run."""

    def __init__(self, order: Order, mailbox: Any) -> None:
        self.order, self.mailbox = order, mailbox
        self.token = secrets.token_hex(8)
        self.node = f"{platform.node()}-{ray.get_runtime_context().get_node_id()[:6]}"
        self.steps: dict[str, str] = {}  # the newest of each run
        self.others: list[str] = []
        self.endings: list[str] = []
        self.notes: list[str] = []
        self.finished: dict[str, str] = {}
        self.last_post = 0.0
        self.on_its_way: Any = None
        self._post()

    def send(self, event: Any) -> None:
        from cclfp.runs.events import Failed, Finished, Note, Step, to_json

        line = to_json(event)
        if isinstance(event, Step):
            self.steps[event.key] = line
        else:
            self.others.append(line)
        if isinstance(event, Finished | Failed):
            self.endings.append(line)
        if isinstance(event, Finished | Failed) and self.order.has_several:
            self.finished[event.key] = line
        if isinstance(event, Note):
            self.notes.append(line)
        if isinstance(event, Note) or time.monotonic() - self.last_post > POST_EVERY:
            self._post()

    def last(self) -> Message:
        """The events that end runs, all notes, which may still be on their way, and what was not posted."""
        again = {*self.notes, *self.endings}
        rest = [line for line in self.others if line not in again]
        return self._message([*rest, *self.notes, *self.endings])

    def _post(self) -> None:
        """Post what is waiting, unless the mailbox has not got the message before this one."""
        if self.on_its_way is not None and not ray.wait([self.on_its_way], timeout=0)[0]:
            return
        self.on_its_way = self.mailbox.put.remote(self._message([*self.others, *self.steps.values()]))
        self.others, self.steps, self.last_post = [], {}, time.monotonic()

    def _message(self, events: list[str]) -> Message:
        return Message(self.order.number, self.token, self.node, events, self.finished)
