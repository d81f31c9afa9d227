"""A Ray cluster of a head without CPUs and two nodes on this machine: the numbers of a local run, whatever is lost."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import alive, children, listening_addresses, wait_until
from torture.material import write_little_dataset
from training import texts

import cclfp
from cclfp.data import import_images
from cclfp.errors import InputError, RunError
from cclfp.runs.events import Event, Failed, Finished, Placed, Step
from cclfp.runs.ray_connection import PRIVATE
from cclfp.runs.record import Record
from cclfp.runs.run import Result
from cclfp.runs.store import Store

pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")]

# A lost node is noticed within a second or two, not half a minute.
HEALTH = {"health_check_initial_delay_ms": 500, "health_check_period_ms": 300, "health_check_failure_threshold": 4}


class RayNodes:
    """The cluster. Each node has a home of its own, with a little MNIST; the driver is on the head."""

    def __init__(self, folder: Path) -> None:
        from ray.cluster_utils import Cluster

        self.folder = folder
        head = {"num_cpus": 0, "include_dashboard": False, "_system_config": HEALTH, "object_store_memory": 10**8}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.nodes = [self.add(name) for name in ("a", "b")]

    @property
    def on(self) -> str:
        return f"ray:{self.cluster.address}"

    def add(self, name: str) -> Any:
        home = self.folder / name
        if not home.exists():
            write_little_dataset(home, "mnist", 10, (1, 28, 28), train=1500, test=200)
        return self.cluster.add_node(num_cpus=1, object_store_memory=10**8, env_vars={"CCLFP_HOME": str(home)})

    def tasks(self, node: int) -> list[int]:
        """The processes that train on a node."""
        (raylet,) = self.nodes[node].all_processes["raylet"]
        return [pid for pid in children(raylet.process.pid) if b"cclfp cohort" in Path(f"/proc/{pid}/cmdline").read_bytes()]

    def all_tasks(self) -> list[int]:
        return [pid for node in range(len(self.nodes)) for pid in self.tasks(node)]

    def number(self, name: str) -> int:
        """Which node an event names."""
        return next(i for i, node in enumerate(self.nodes) if name.endswith(node.node_id[:6]))


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayNodes]:
    before = {name: os.environ.get(name) for name in PRIVATE}
    os.environ.update(PRIVATE)
    import ray

    made = RayNodes(tmp_path_factory.mktemp("nodes"))
    # One connection for all tests, so that the workers import torch once.
    ray.init(made.cluster.address, log_to_driver=False, logging_level="ERROR")
    try:
        yield made
    finally:
        ray.shutdown()
        made.cluster.shutdown()
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def result(record: Record) -> dict[str, Any]:
    """What must not depend on where a run was trained."""
    return {name: record[name] for name in ("key", "seed", "configuration", "accuracy_matrix", "average_accuracy")}  # type: ignore[literal-required]


def results(records: list[Record]) -> list[dict[str, Any]]:
    return sorted(map(result, records), key=lambda one: str(one["key"]))


def options(folder: Path, name: str, **more: Any) -> dict[str, Any]:
    return {"engine": "eager", "device": "cpu", "checkpoint_every": 0.0, "store": folder / f"{name}.sqlite", **more}


@pytest.mark.usefixtures("small_mnist")
def test_a_study_gives_the_numbers_of_a_local_one(nodes: RayNodes, tmp_path: Path) -> None:
    events: list[Event] = []
    study: dict[str, Any] = {"benchmarks": "split-mnist", "methods": ["finetune", "er"], "seeds": 2}
    cclfp.study("accuracy", **study, **options(tmp_path, "ray", on=nodes.on), on_event=events.append)
    cclfp.study("accuracy", **study, **options(tmp_path, "local"))
    store, local = Store(tmp_path / "ray.sqlite"), Store(tmp_path / "local.sqlite")
    assert results(store.records()) == results(local.records())
    assert len(store.records()) == 8
    placed = [event for event in events if isinstance(event, Placed)]
    assert len({event.node for event in placed}) == 2
    assert {event.attempt for event in placed} == {1}
    assert any(isinstance(event, Step) for event in events)
    # The store logs the nodes, the records do not.
    assert sorted(attempt.key for attempt in store.attempts()) == sorted(r["key"] for r in store.records())
    assert {attempt.node for attempt in store.attempts()} == {event.node for event in placed}
    names = [name.removesuffix(f"-{node.node_id[:6]}") for node in nodes.nodes for name in {p.node for p in placed}]
    assert all(node.node_id[:6] not in json.dumps(store.records()) for node in nodes.nodes), names
    assert list(store.checkpoints.iterdir()) == []
    events.clear()
    cclfp.study("accuracy", **study, **options(tmp_path, "ray", on=nodes.on), on_event=events.append)
    assert not [event for event in events if isinstance(event, Placed | Finished)]


@pytest.mark.usefixtures("small_mnist")
def test_what_a_node_lacks_travels_with_the_cohort(nodes: RayNodes, tmp_path: Path) -> None:
    """Images and a method of the user's own; a method that fails names the node, and the others finish."""
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 4
    images = (rng.integers(0, 60, (60, 12, 12, 3)) + 60 * labels[:, None, None, None]).astype(np.uint8)
    np.savez(tmp_path / "mine.npz", train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    name = import_images(tmp_path / "mine.npz")
    (tmp_path / "mine.py").write_text(
        "from cclfp.methods.er import ER\nclass Mine(ER):\n    name = 'mine'\n"
        "class Bad(ER):\n    name = 'bad'\n    def loss(self, *_): raise RuntimeError('it does not work')"
    )
    methods = [f"{tmp_path / 'mine.py'}:{kind}" for kind in ("Mine", "Bad")]
    events: list[Event] = []
    settings: dict[str, Any] = {"tasks": 2, "backbone": "mlp", "seeds": 2, "on_event": events.append}
    with pytest.raises(RunError, match=r"bad seed [01] failed on .*-[0-9a-f]{6}: Traceback[\s\S]*it does not work"):
        cclfp.run(methods, name, **settings, **options(tmp_path, "ray", on=nodes.on))
    assert sum(isinstance(event, Failed) for event in events) == 2
    local = cclfp.run(methods[0], name, **settings, **options(tmp_path, "local"))
    assert results(Store(tmp_path / "ray.sqlite").records()) == results(local[0].runs)
    for home in ("a", "b"):
        arrays = nodes.folder / home / "data" / name / "arrays"
        assert not arrays.exists() or (arrays / "sums.json").exists()
    assert any((nodes.folder / home / "data" / name / "arrays").exists() for home in ("a", "b"))


LONG: dict[str, Any] = {"seeds": 3, "settings": {"epochs": 6}}


def train_long(folder: Path, name: str, on_event: Callable[[Event], None], **more: Any) -> list[Result]:
    return cclfp.run("er", "split-mnist", **LONG, **options(folder, name, **more), on_event=on_event)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The results of the long runs, trained on this machine."""
    folder = tmp_path_factory.mktemp("expected")
    write_little_dataset(folder, "mnist", 10, (1, 28, 28), train=1500, test=200)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CCLFP_HOME", str(folder))
        (found,) = train_long(folder, "local", lambda event: None)
    return results(found.runs)


class Saboteur:
    """A listener that does harm when a run is in its third task: there is a checkpoint of it."""

    def __init__(self, harm: Callable[[str], None]) -> None:
        self.harm, self.events = harm, list[Event]()
        self.nodes: dict[str, str] = {}

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, Placed):
            self.nodes |= dict.fromkeys(event.keys, event.node)
        if isinstance(event, Step) and event.task == 3 and self.harm is not None:
            harm, self.harm = self.harm, None  # type: ignore[assignment]
            harm(self.nodes[event.key])


def check_survival(store: Store, saboteur: Saboteur, expected: list[dict[str, Any]]) -> None:
    assert results(store.records()) == expected
    notes = texts(saboteur.events)
    assert any("was lost: attempt 2 on" in text for text in notes), notes
    assert any("continuing from the checkpoint after task" in text for text in notes), notes
    finished = [event.key for event in saboteur.events if isinstance(event, Finished)]
    assert len(finished) == len(set(finished)) == 3
    again = [attempt for attempt in store.attempts() if attempt.attempt == 2]
    assert len(again) == 1, store.attempts()
    assert list(store.checkpoints.iterdir()) == []


@pytest.mark.usefixtures("small_mnist")
def test_a_worker_is_killed(nodes: RayNodes, tmp_path: Path, expected: list[dict[str, Any]]) -> None:
    def kill(name: str) -> None:
        for pid in nodes.tasks(nodes.number(name)):
            os.kill(pid, signal.SIGKILL)

    saboteur = Saboteur(kill)
    train_long(tmp_path, "ray", saboteur, on=nodes.on)
    check_survival(Store(tmp_path / "ray.sqlite"), saboteur, expected)


@pytest.mark.usefixtures("small_mnist")
def test_a_node_is_lost(nodes: RayNodes, tmp_path: Path, expected: list[dict[str, Any]]) -> None:
    lost: list[int] = []

    def remove(name: str) -> None:
        number = nodes.number(name)
        lost.extend(nodes.tasks(number))
        nodes.cluster.remove_node(nodes.nodes[number], allow_graceful=False)
        nodes.nodes[number] = nodes.add("ab"[number])

    saboteur = Saboteur(remove)
    train_long(tmp_path, "ray", saboteur, on=nodes.on)
    check_survival(Store(tmp_path / "ray.sqlite"), saboteur, expected)
    assert lost
    assert wait_until(lambda: not any(map(alive, lost)), 10)


@pytest.mark.usefixtures("small_mnist")
def test_the_driver_is_killed_and_starts_again(
    nodes: RayNodes, tmp_path: Path, expected: list[dict[str, Any]]
) -> None:
    """By SIGKILL, then by Ctrl-C: no process is left, and what is stored is not trained again."""
    store = tmp_path / "ray.sqlite"
    arguments = ["run", "er", "split-mnist", "epochs=6", "--seeds", "3", "--engine", "eager", "--checkpoint-every", "0"]
    command = [sys.executable, "-m", "cclfp", *arguments, "--on", nodes.on, "--store", str(store), "--json"]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    for number, code in ((signal.SIGKILL, -9), (signal.SIGINT, 130)):
        process = subprocess.Popen(command, **pipes)
        stored = len(Store(store).records())
        assert wait_until(lambda: has_begun(store, nodes, stored), 60)  # noqa: B023
        tasks = nodes.all_tasks()
        before = {r["key"]: r for r in Store(store).records()}
        process.send_signal(number)
        _, said = process.communicate(timeout=30)
        assert process.returncode == code, said
        assert wait_until(lambda: not any(map(alive, tasks)), 20)  # noqa: B023
        assert not nodes.all_tasks()
    done = subprocess.run(command, check=True, capture_output=True)
    assert b"continuing from the checkpoint" in done.stderr
    records = Store(store).records()
    assert results(records) == expected
    assert [r for r in records if r["key"] in before] == list(before.values())
    assert [run["seed"] for run in json.loads(done.stdout)["configurations"][0]["runs"]] == [0, 1, 2]


def has_begun(store: Path, nodes: RayNodes, stored: int) -> bool:
    """Whether a checkpoint was written after the first record, or there was none before."""
    return bool(nodes.all_tasks()) and bool(list(Store(store).checkpoints.glob("*.ckpt")))


@pytest.mark.usefixtures("small_mnist")
def test_a_private_cluster_is_out_of_reach(tmp_path: Path) -> None:
    """``--on ray`` without a cluster: nothing listens to other machines, and nothing is left in the end."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    arguments = ["run", "finetune", "split-mnist", "--seeds", "2", "--engine", "eager", "--on", "ray", "--json"]
    command = [sys.executable, "-m", "cclfp", *arguments, "--store", str(tmp_path / "runs.sqlite")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    seen: set[int] = set()
    addresses: set[str] = set()
    while process.poll() is None:
        family = children(process.pid)
        family += [pid for child in family for pid in children(child)]
        seen |= set(family)
        addresses |= listening_addresses([process.pid, *family])
        time.sleep(0.2)
    out, said = process.communicate()
    assert process.returncode == 0, said
    assert json.loads(out)["configurations"][0]["method"] == "finetune"
    assert addresses == {"127.0.0.1"}
    assert len(seen) > 3
    assert wait_until(lambda: not any(map(alive, seen)), 10)


@pytest.mark.usefixtures("small_mnist")
def test_more_than_any_node_has(nodes: RayNodes, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"a cohort needs 2 CPUs, and no node has them \(.* has 1 CPUs, 0 GPUs"):
        cclfp.run("finetune", "split-mnist", seeds=1, **options(tmp_path, "ray", on=nodes.on, threads=2))
    with pytest.raises(InputError, match="a cohort needs 1 CPUs and 1 GPUs, and no node has them"):
        cclfp.run("finetune", "split-mnist", seeds=1, **options(tmp_path, "ray", on=nodes.on) | {"device": "cuda"})
    with pytest.raises(InputError, match="engine graph is for device cuda, not cpu"):
        cclfp.run("finetune", "split-mnist", seeds=1, **options(tmp_path, "ray", on=nodes.on) | {"engine": "graph"})
    with contextlib.suppress(FileNotFoundError):
        assert list((tmp_path / "ray.sqlite.checkpoints").iterdir()) == []
