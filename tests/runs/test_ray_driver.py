"""What the driver makes of the answers from a cluster, and what a node does first, without one."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import Cli
from records import configuration, record
from training import make_job, texts

from cclfp.core.userfiles import receive, refer, resolve
from cclfp.errors import InputError, RunError
from cclfp.events import Event, Failed, Finished, Note, Placed, Step
from cclfp.runs import ray as ray_driver
from cclfp.runs.checkpoints import CLUSTER_LOCK
from cclfp.runs.execution import Execution
from cclfp.runs.jobs import Job
from cclfp.runs.ray import RETRIES, NoDatasetError, Order, RayCluster, connected, order_of
from cclfp.runs.settings import configurations
from cclfp.runs.store import Store


class Lost(Exception):
    """Stands for Ray's errors."""


class TaskError(Lost):
    """Stands for the error of a task, as its cause."""

    @property
    def cause(self) -> Any:
        return self.args[0]


class Cluster(RayCluster):
    """A cluster of one node whose tasks answer what a test says: a node's name, events or an error, one by one."""

    def __init__(self, execution: Execution, *tasks: list[Any]) -> None:
        self.tasks, self.orders = iter(tasks), list[Order]()
        node = {"NodeManagerHostname": "a", "Alive": True, "Resources": {"CPU": 4.0}}

        def get(answer: Any) -> Any:
            if isinstance(answer, Exception):
                raise answer
            return answer

        def remote(order: Order, packed: list[Any]) -> Iterator[Any]:
            self.orders.append(order)
            return iter(next(self.tasks))

        errors = SimpleNamespace(RayTaskError=TaskError, RayError=Lost)
        ray = {"nodes": lambda: [node], "wait": lambda several, **options: (several[:1], several[1:])}
        super().__init__(execution, SimpleNamespace(exceptions=errors, get=get, **ray))
        vars(self)["task"] = SimpleNamespace(remote=remote)


@pytest.fixture
def jobs(tmp_path: Path) -> list[Job]:
    return [make_job(configuration(), seed, tmp_path / "runs.sqlite") for seed in range(2)]


def run(jobs: list[Job], *tasks: list[Any]) -> tuple[list[Event], Cluster]:
    """The events of a cohort whose attempts answer this."""
    cluster, events = Cluster(jobs[0].execution, *tasks), list[Event]()
    cluster.run([jobs], events.append)
    return events, cluster


def finished(job: Job) -> Finished:
    return Finished(job.key, record(job.seed))


def errors(events: list[Event]) -> list[str]:
    return [str(event.error) for event in events if isinstance(event, Failed)]


def test_what_a_lost_node_had_not_finished_is_trained_by_another(jobs: list[Job]) -> None:
    """Neither what it had finished nor what had failed: that would fail again."""
    (first, second), keys = jobs, [job.key for job in jobs]
    step = Step(second.key, 1, 5, 1, 100, None)
    failed = Failed(first.key, RunError("its loss is not a number"))
    for ended, kind in ((finished(first), Finished), (failed, Failed)):
        once, again = ["a", [ended, step], Lost("gone")], ["b", [finished(second)]]
        events, cluster = run(jobs, once, again)
        assert events[0] == Placed(keys, "a", 1)
        assert isinstance(events[1], kind)
        assert events[2:] == [
            step,
            Note("its process on a was lost: attempt 2 on b", second.key),
            Placed([second.key], "b", 2),
            finished(second),
        ]
        assert [len(order.jobs) for order in cluster.orders] == [2, 1]
        Store(first.execution.store).delete(Store(first.execution.store).rows())


def test_a_cohort_that_is_lost_too_often_fails(jobs: list[Job]) -> None:
    lost = Lost("The node died\nand more")
    events, cluster = run(jobs, ["a", [finished(jobs[0])], lost], *[["b", lost]] * RETRIES)
    assert errors(events) == [
        "its process on b was lost in attempt 4 (The node died). The same command continues from the last checkpoint"
    ]
    assert len(cluster.orders) == RETRIES + 1


def test_errors_name_the_node(jobs: list[Job]) -> None:
    for error, text in (
        (TaskError(InputError("other code (on a)")), "other code (on a)"),
        (TaskError(ImportError("No module")), "its task failed:\nNo module"),
    ):
        assert errors(run(jobs, [error])[0]) == [text] * len(jobs)
    unsaved = [finished(jobs[0]), Failed(jobs[0].key, InputError("a full disk"))]
    events, _ = run(jobs, ["a", [*unsaved, Failed(jobs[1].key, RunError("Traceback"))]])
    assert errors(events) == ["on a: a full disk", "on a: Traceback"]
    assert [type(event.error) for event in events if isinstance(event, Failed)] == [InputError, RunError]


def test_a_note_about_no_run_is_passed_on_once(jobs: list[Job]) -> None:
    events, _ = run(jobs, ["a", [Note("no folder")], [Note("no folder"), Note("about a run", jobs[0].key)]])
    assert texts(events) == ["no folder", "about a run"]


def test_a_learner_that_stayed_on_its_node_is_an_error(jobs: list[Job], tmp_path: Path) -> None:
    events, _ = run([job.with_unchecked(save=tmp_path / "kept") for job in jobs[:1]], ["a", [finished(jobs[0])]])
    assert isinstance(events[-2], Finished)
    assert "name a folder that all nodes share" in errors(events)[0]


def test_what_another_process_has_finished_is_not_submitted(jobs: list[Job]) -> None:
    Store(jobs[0].execution.store).add(finished(jobs[0]).record)
    events, cluster = run(jobs, ["a", [finished(jobs[1])]])
    assert [[job.key for job in order.jobs] for order in cluster.orders] == [[jobs[1].key]]
    assert [event.key for event in events if isinstance(event, Finished)] == [job.key for job in jobs]
    assert run(jobs)[1].orders == []  # nothing is left


def test_an_order_has_what_a_node_may_lack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text("from cclfp.methods.er import ER\nclass Mine(ER):\n    name = 'mine'")
    (mine,) = configurations([f"{tmp_path / 'mine.py'}:Mine"], "split-mnist")
    monkeypatch.chdir(tmp_path)
    order = order_of([make_job(mine, 0, Path("runs.sqlite"), save="kept")], "cuda")
    assert order.files == [(tmp_path / "mine.py").read_bytes()]
    assert order.dataset == "mnist"
    execution = order.jobs[0].execution
    assert (execution.on, execution.device) == ("local", "cuda")
    paths = [getattr(execution, name) for name in ("store", "save", "checkpoints")]
    assert paths == [tmp_path / name for name in ("runs.sqlite", "kept", "runs.sqlite.checkpoints")]


def test_a_node_uses_the_drivers_folder_of_checkpoints_alone(
    jobs: list[Job], small_mnist: Path, tmp_path: Path
) -> None:
    order, shared, own = order_of(jobs, "cpu"), jobs[0].execution.checkpoint_folder, tmp_path / "own"
    for prepare, folder in ((lambda: None, own), (shared.mkdir, own), ((shared / CLUSTER_LOCK).touch, shared)):
        prepare()  # without the driver's lock in it, it is a folder of the node's
        notes: list[Event] = []
        prepared = ray_driver._prepare(order, [], "a", own, notes.append)
        assert {job.execution.checkpoints for job in prepared} == {folder}
        assert len(notes) == (folder == own)
    with pytest.raises(InputError, match=r"other code \(cclfp .*, source .*\) than the driver \(cclfp 0\): install"):
        ray_driver._prepare(dataclasses.replace(order, code={"cclfp": "0"}), [], "a", own, notes.append)
    with pytest.raises(NoDatasetError):
        ray_driver._prepare(dataclasses.replace(order, dataset="cifar10"), [], "a", own, notes.append)


def test_a_file_of_another_machine_is_used_by_its_content(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("def make(shape):\n    return 'the network'\n")
    reference = refer("backbone", f"{tmp_path / 'net.py'}:make")
    content = (tmp_path / "net.py").read_bytes()
    (tmp_path / "net.py").unlink()
    with pytest.raises(InputError, match="cannot be read"):
        resolve("backbone", reference)
    receive(content)
    assert resolve("backbone", reference)(()) == "the network"


@pytest.mark.parametrize(
    ("execution", "message"),
    [
        ({"threads": 5}, "a cohort needs 5 CPUs, and no node has them (a has 4 CPUs, 0 GPUs)"),
        ({"device": "cuda"}, "a cohort needs 1 CPUs and 1 GPUs, and no node has them"),
        ({"device": "auto", "engine": "graph"}, "engine graph is for device cuda, not cpu"),
    ],
)
def test_more_than_any_node_has(execution: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        _ = Cluster(Execution(**{"on": "ray", **execution})).workers


def test_what_is_refused_before_ray_is_asked(monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    assert Execution("cuda", "graph", on="ray").engine == "graph"  # this machine need not have a GPU
    for address, message in (
        ("", "is not HOST:PORT or auto, .*RAY_ADDRESS names none"),
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


def test_a_connection_to_another_cluster_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = SimpleNamespace(
        is_initialized=lambda: True, get_runtime_context=lambda: SimpleNamespace(gcs_address="10.0.0.1:6379")
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    for address in ("10.0.0.1:6379", ""):
        with connected("ray", address) as found:
            assert found is ray
    with (
        pytest.raises(InputError, match=r"on='ray:10.0.0.2:6379': this process is connected to 10.0.0.1:6379"),
        connected("ray:10.0.0.2:6379", "10.0.0.2:6379"),
    ):
        pass
