"""What the driver makes of messages from a cluster, without one."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.util
import pickle
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import Cli
from stores import attempts, configuration, record
from training import make_job, texts

from cclfp.core.userfiles import receive, refer, resolve
from cclfp.errors import InputError, RunError
from cclfp.runs import ray as ray_driver
from cclfp.runs.checkpoints import CLUSTER_LOCK
from cclfp.runs.events import Event, Failed, Finished, Note, OnEvent, Placed, Step
from cclfp.runs.execution import Execution
from cclfp.runs.jobs import Job
from cclfp.runs.ray import RETRIES, RayCluster, _Driver, _Sent, connected
from cclfp.runs.settings import configurations
from cclfp.runs.store import Store


class Lost(Exception):
    """Stands for Ray's errors."""


@pytest.fixture
def jobs(tmp_path: Path) -> list[Job]:
    (configuration,) = configurations(["er"], "split-mnist")
    return [make_job(configuration, seed, tmp_path / "runs.sqlite") for seed in range(2)]


class Driven:
    """A driver with one cohort that was submitted, and its events."""

    def __init__(self, jobs: list[Job]) -> None:
        errors = SimpleNamespace(RayTaskError=type("RayTaskError", (Lost,), {}), RayError=Lost)
        cluster: Any = SimpleNamespace(ray=SimpleNamespace(exceptions=errors), start_mailbox=lambda: None)
        self.events: list[Event] = []
        self.store = Store(jobs[0].execution.store)
        self.driver = _Driver(cluster, self.store, self.events.append)
        self.sent = self.driver.running[7] = _Sent({job.key: job for job in jobs}, None)

    def message(self, token: str, node: str, *events: Event) -> Any:
        from cclfp.runs.ray_node import Message

        return Message(7, token, node, list(events), {})

    def read(self, token: str, node: str, *events: Event) -> list[Event]:
        """The events that a message causes."""
        before = len(self.events)
        self.driver._read(self.sent, self.message(token, node, *events))
        return self.events[before:]

    def end(self, result: Any) -> list[Event]:
        """The events that the end of the task causes, with a result or an error."""
        before, future = len(self.events), Future[Any]()
        future.set_exception(result) if isinstance(result, Exception) else future.set_result(result)
        self.driver._end(7, future)
        return self.events[before:]


def step(job: Job, number: int) -> Step:
    return Step(job.key, 1, 5, number, 100, None)


def finished(job: Job) -> Finished:
    made: Any = {**record(job.seed), "key": job.key}
    return Finished(job.key, made)


def test_an_attempt_that_was_lost_does_not_confuse_the_driver(jobs: list[Job]) -> None:
    driven, keys = Driven(jobs), [job.key for job in jobs]
    first, second = jobs
    assert driven.read("x", "a", step(first, 1)) == [Placed(keys, "a", 1), step(first, 1)]
    assert driven.read("y", "b") == [
        Note("its process on a was lost: attempt 2 with 1 more on b", keys[0]),
        Placed(keys, "b", 2),
    ]
    assert driven.read("y", "b", step(first, 2)) == [step(first, 2)]
    assert driven.read("x", "a", step(first, 90)) == []  # it was still on its way
    assert driven.read("x", "a", finished(first)) == [finished(first)]  # a result is a result
    assert driven.read("y", "b", finished(first), finished(second)) == [finished(second)]
    assert driven.end(driven.message("y", "b", finished(first), finished(second))) == []
    assert driven.driver.running == {}
    driven.driver._write_log(at_least=1)
    assert [(a.key, a.node, a.attempt) for a in attempts(driven.store.path)] == [
        *((key, "a", 1) for key in keys),
        *((key, "b", 2) for key in keys),
    ]
    assert len(driven.store.rows()) == 2


def test_a_cohort_that_is_lost_too_often_fails(jobs: list[Job]) -> None:
    driven = Driven(jobs)
    driven.read("x", "a", finished(jobs[0]))
    (failed,) = driven.end(Lost("The node died\nand more"))
    assert isinstance(failed, Failed)
    assert failed.key == jobs[1].key
    assert str(failed.error) == (
        "er seed 1: its process on a was lost in attempt 1 (The node died). The same command continues from the last "
        "checkpoint"
    )


def test_a_cohort_that_ray_starts_for_ever_is_cancelled(jobs: list[Job]) -> None:
    """Ray does not count the attempts that it ends because memory is short."""
    driven, cancelled = Driven(jobs), list[Any]()
    driven.driver.cluster.ray.cancel = lambda task, force: cancelled.append((task, force))
    driven.sent.task = "the task"
    for attempt in range(RETRIES + 1):
        driven.read(str(attempt), "a")
    assert cancelled == []
    driven.read("one more", "a")
    assert cancelled == [("the task", True)]


def test_errors_name_the_node(jobs: list[Job]) -> None:
    driven = Driven(jobs)
    for job, error in zip(jobs, (InputError("a bad value"), RunError("Traceback")), strict=True):
        failed = driven.read("x", "a", Failed(job.key, error))[-1]
        assert isinstance(failed, Failed)
        assert type(failed.error) is type(error)
        assert str(failed.error) == f"{job.label()} failed on a: {error}"
    assert driven.end(driven.message("x", "a", *(Failed(job.key, RunError("Traceback")) for job in jobs))) == []


def test_a_task_that_fails_outside_of_training(jobs: list[Job]) -> None:
    driven = Driven(jobs)
    error = driven.driver.cluster.ray.exceptions.RayTaskError("No module named 'cclfp'")
    failed = [event for event in driven.end(error) if isinstance(event, Failed)]
    assert [str(event.error) for event in failed] == [
        f"{job.label()}: its task failed:\nNo module named 'cclfp'" for job in jobs
    ]


def test_a_note_about_a_run_is_passed_on_once(jobs: list[Job]) -> None:
    driven, note = Driven(jobs), Note("the run has diverged", jobs[0].key)
    assert note in driven.read("x", "a", note)
    assert driven.read("x", "a", note) == []  # again in the last message


def test_a_note_about_no_run_is_passed_on_once(jobs: list[Job]) -> None:
    driven = Driven(jobs)
    driven.read("x", "a", Note("no shared folder"))
    driven.read("x", "a", Note("no shared folder"), Note("about a run", jobs[0].key))
    assert texts(driven.events) == ["no shared folder", "about a run"]


def test_a_learner_that_stayed_on_its_node_is_an_error(jobs: list[Job], tmp_path: Path) -> None:
    driven = Driven([job.with_execution(save=tmp_path / "learners") for job in jobs])
    *_, done, failed = driven.read("x", "a", finished(jobs[0]))
    assert isinstance(done, Finished)
    assert isinstance(failed, Failed)
    assert "name a folder that all nodes share" in str(failed.error)


def test_the_mailbox_gives_each_message_once() -> None:
    from cclfp.runs.ray_node import Mailbox, Message

    async def use() -> None:
        mailbox = Mailbox(None)
        taking = asyncio.create_task(mailbox.take())
        await asyncio.sleep(0)
        its: Event = Note("its event")
        messages = [Message(number, "x", "a", [], {"a run": its} if number else {}) for number in range(3)]
        for message in messages:
            await mailbox.put(message)
        assert await taking == messages
        await mailbox.put(messages[0])
        assert await mailbox.take() == messages[:1]
        assert [await mailbox.finished(number) for number in range(4)] == [
            {},
            {"a run": its},
            {"a run": its},
            {},
        ]

    asyncio.run(use())


def test_an_order_has_what_a_node_may_lack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text("from cclfp.methods.er import ER\nclass Mine(ER):\n    name = 'mine'")
    (configuration,) = configurations([f"{tmp_path / 'mine.py'}:Mine"], "split-mnist")
    monkeypatch.chdir(tmp_path)
    from cclfp.runs.ray_node import order_of

    order = order_of(3, [make_job(configuration, 0, Path("runs.sqlite"), save="kept")], "cuda")
    assert order.files == [(tmp_path / "mine.py").read_bytes()]
    assert order.dataset == "mnist"
    _, execution = pickle.loads(order.jobs)
    assert (execution["on"], execution["device"]) == ("local", "cuda")
    paths = [execution[name] for name in ("store", "save", "checkpoints")]
    assert paths == [tmp_path / name for name in ("runs.sqlite", "kept", "runs.sqlite.checkpoints")]


def test_a_file_of_another_machine_is_used_by_its_content(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("def make(shape):\n    return 'the network'\n")
    reference = refer("backbone", f"{tmp_path / 'net.py'}:make")
    content = (tmp_path / "net.py").read_bytes()
    (tmp_path / "net.py").unlink()
    with pytest.raises(InputError, match="cannot be read"):
        resolve("backbone", reference)
    receive(content)
    assert resolve("backbone", reference)(()) == "the network"


@pytest.mark.parametrize("wrong", ["foo", "ray:", "ray://10.0.0.1:10001", "rays", "", "local:1"])
def test_places_that_do_not_exist(wrong: str, cli: Cli) -> None:
    answer = cli("run", "er", "split-mnist", f"--on={wrong}")
    assert answer.code == 2
    assert f"on='{wrong}': expected local, ray or ray:ADDRESS" in answer.err
    with pytest.raises(InputError, match="expected local, ray or ray:ADDRESS"):
        Execution(on=wrong)


def test_what_is_refused_before_ray_is_asked(monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    assert "expected auto, cpu or cuda on Ray" in cli("run", "er", "split-mnist", "--on=ray", "--device=cuda:0").err
    assert "gpus_per_cohort=0.0: expected more than 0" in cli("run", "er", "split-mnist", "--gpus-per-cohort=0").err
    assert Execution("cuda", "graph", on="ray").engine == "graph"  # this machine need not have a GPU
    for address, message in (
        ("10.0.0.1", "is not HOST:PORT or auto"),
        ("127.0.0.1:1", "no Ray cluster"),
    ):
        with pytest.raises(InputError, match=message):
            ray_driver._check_address("ray", address)
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    answer = cli("study", "accuracy", "--on", "ray")
    assert answer.code == 2
    assert "on='ray' needs Ray: pip install 'cclfp[ray]'" in answer.err


@pytest.mark.slow
def test_ray_is_imported_only_for_it() -> None:
    code = "import sys; sys.modules['ray'] = None; import cclfp, cclfp.runs.run, cclfp.cli.app, cclfp.runs.ray"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_attempt_leaves_out_what_the_one_before_has_finished(
    jobs: list[Job], small_mnist: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from cclfp.runs import ray_node
    from cclfp.runs.ray_node import order_of

    def call(answer: Any) -> Any:
        return SimpleNamespace(remote=lambda *_: answer)

    mailbox = SimpleNamespace(finished=call({jobs[0].key: "its event"}))
    post: Any = SimpleNamespace(node="a", send=lambda event: None, kept=[])
    monkeypatch.setattr("cclfp.runs.ray_node.ray.get", lambda answer: answer)
    order = order_of(3, jobs, "cpu")
    (job,) = ray_node._prepare(order, mailbox, tmp_path, post)
    assert job.key == jobs[1].key
    assert post.kept == ["its event"]  # the driver may not have got it from the mailbox yet
    assert job.execution.checkpoints == tmp_path  # the folder beside the store does not exist
    shared = jobs[0].execution.checkpoint_folder
    shared.mkdir()
    (job,) = ray_node._prepare(order, mailbox, tmp_path, post)
    assert job.execution.checkpoints == tmp_path  # it exists, but the driver's lock is not in it: it is the node's own
    (shared / CLUSTER_LOCK).touch()
    (job,) = ray_node._prepare(order, mailbox, tmp_path, post)
    assert job.execution.checkpoints == shared
    mailbox.finished = call({job.key: "its event" for job in jobs})
    assert ray_node._prepare(order, mailbox, tmp_path, post) == []
    with pytest.raises(InputError, match="this node has other code"):
        ray_node._prepare(dataclasses.replace(order, code={"cclfp": "0"}), mailbox, tmp_path, post)


@pytest.mark.parametrize("event", [finished, lambda job: Failed(job.key, RunError("its loss is not a number"))])
def test_a_run_that_has_ended_is_not_trained_again_when_its_node_is_lost(
    event: Callable[[Job], Event], jobs: list[Job], small_mnist: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also one that failed: it would fail again."""
    from cclfp.runs import ray_node
    from cclfp.runs.ray_node import order_of

    mailbox, sent = ray_node.Mailbox(None), list[Any]()
    context = SimpleNamespace(get_node_id=lambda: "0a1b2c3d")
    ray = SimpleNamespace(
        get_runtime_context=lambda: context,
        wait=lambda several, timeout: (several, []),
        get=asyncio.run,
        exceptions=SimpleNamespace(RayActorError=Lost),
    )
    monkeypatch.setattr(ray_node, "ray", ray)
    monkeypatch.setattr(ray_node, "POST_EVERY", -1.0)  # everything is posted at once

    def put(message: Any) -> None:
        sent.append(message)
        asyncio.run(mailbox.put(message))

    calls: Any = SimpleNamespace(put=SimpleNamespace(remote=put), finished=SimpleNamespace(remote=mailbox.finished))
    order = order_of(7, jobs, "cpu")
    ray_node.Post(order, calls).send(event(jobs[0]))  # and then the node is lost
    again = ray_node.Post(order, calls)
    assert [job.key for job in ray_node._prepare(order, calls, tmp_path, again)] == [jobs[1].key]
    driven = Driven(jobs)
    for message in [*sent, again.last()]:
        driven.driver._read(driven.sent, message)
    assert [type(e) for e in driven.events if isinstance(e, Finished | Failed)] == [type(event(jobs[0]))]
    assert [placed.keys for placed in driven.events if isinstance(placed, Placed)][-1] == [jobs[1].key]


def test_what_another_process_has_finished_is_not_submitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    submitted: list[list[str]] = []

    class Driver:
        def __init__(self, cluster: RayCluster, store: Store, on_event: OnEvent) -> None: ...

        def run(self, cohorts: list[list[Job]]) -> None:
            submitted.extend([job.key for job in cohort] for cohort in cohorts)

    monkeypatch.setattr(ray_driver, "_Driver", Driver)
    first, second = (make_job(configuration(), seed, tmp_path / "runs.sqlite") for seed in range(2))
    cluster, events = RayCluster(first.execution), list[Event]()
    Store(first.execution.store).add(record(seed=0))
    cluster.run([[first, second]], events.append)
    assert submitted == [[second.key]]
    assert [event.key for event in events if isinstance(event, Finished)] == [first.key]
    cluster.run([[first]], events.append)
    assert submitted == [[second.key]]  # nothing is left


def test_a_cohort_is_trained_though_the_mailbox_is_lost(
    jobs: list[Job], small_mnist: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from ray.exceptions import RayActorError

    from cclfp.runs import ray_node
    from cclfp.runs.ray_node import order_of

    def fail(answer: Any) -> Any:
        raise RayActorError

    mailbox = SimpleNamespace(finished=SimpleNamespace(remote=lambda number: None))
    post: Any = SimpleNamespace(node="a", send=lambda event: None, kept=[])
    monkeypatch.setattr("cclfp.runs.ray_node.ray.get", fail)
    prepared = ray_node._prepare(order_of(3, jobs, "cpu"), mailbox, tmp_path, post)
    assert [job.key for job in prepared] == [job.key for job in jobs]


def test_a_connection_to_another_cluster_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = SimpleNamespace(
        is_initialized=lambda: True, get_runtime_context=lambda: SimpleNamespace(gcs_address="10.0.0.1:6379")
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    with connected("ray:10.0.0.1:6379", "10.0.0.1:6379") as found:
        assert found is ray
    with connected("ray", "") as found:
        assert found is ray
    with (
        pytest.raises(InputError, match=r"on='ray:10.0.0.2:6379': this process is connected to 10.0.0.1:6379"),
        connected("ray:10.0.0.2:6379", "10.0.0.2:6379"),
    ):
        pass
