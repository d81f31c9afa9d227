"""A Ray cluster of a head without CPUs and two nodes on this machine: the numbers of a local run, whatever is lost."""

from __future__ import annotations

import functools
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from processes import alive, children, command_of, wait_until
from torture.material import put_arrays, write_little_dataset
from training import texts

import cclfp
from cclfp.data import import_images
from cclfp.errors import RunError, Stopped
from cclfp.paper.study import plan
from cclfp.runs.events import Event, Failed, Finished, OnEvent, Placed, Step
from cclfp.runs.execution import Execution
from cclfp.runs.jobs import make_jobs
from cclfp.runs.pool import Pool
from cclfp.runs.record import Record
from cclfp.runs.run import run_jobs
from cclfp.runs.settings import configurations
from cclfp.runs.store import Store

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

    def tasks(self, *numbers: int) -> list[int]:
        """The processes that train, on these nodes or on all."""
        nodes = [self.nodes[number] for number in numbers] or self.nodes
        raylets = [process.process.pid for node in nodes for process in node.all_processes["raylet"]]
        return [pid for raylet in raylets for pid in children(raylet) if "cclfp cohort" in command_of(pid)]

    def number(self, name: str) -> int:
        """Which node an event names."""
        return next(i for i, node in enumerate(self.nodes) if name.endswith(node.node_id[:6]))


def test_a_cluster(tmp_path: Path, small_mnist: Path) -> None:
    """One test, because processes that run tests side by side would each start a cluster."""
    import ray

    nodes = RayNodes(tmp_path / "nodes")
    # One connection for all scenarios, so that the workers import torch once.
    ray.init(nodes.cluster.address, log_to_driver=False, logging_level=logging.ERROR)
    try:
        for scenario in SCENARIOS:
            folder = tmp_path / scenario.__name__
            folder.mkdir()
            scenario(nodes, folder)
    finally:
        ray.shutdown()
        nodes.cluster.shutdown()


def results(records: Iterable[Record]) -> Any:
    """What must not depend on where runs were trained, as JSON has it."""
    names = ("key", "seed", "configuration", "accuracy_matrix", "average_accuracy")
    found = [{name: dict(record)[name] for name in names} for record in records]
    return json.loads(json.dumps(sorted(found, key=lambda one: str(one["key"]))))


def options(folder: Path, name: str, **more: Any) -> dict[str, Any]:
    return {"engine": "eager", "device": "cpu", "checkpoint_every": 0.0, "store": folder / f"{name}.sqlite", **more}


def a_study_gives_the_numbers_of_a_local_one(nodes: RayNodes, folder: Path) -> None:
    events: list[Event] = []
    study: dict[str, Any] = {"benchmarks": "split-mnist", "methods": ["finetune", "er"], "seeds": 2}
    cclfp.study("accuracy", **study, **options(folder, "ray", on=nodes.on), on_event=events.append)
    local = plan("accuracy", **study, execution=Execution(**options(folder, "local")))
    store = Store(folder / "ray.sqlite")
    assert results(store.records()) == results(run_jobs(local.jobs, executor=Pool()).values())
    assert len(store.records()) == 8
    placed = [event for event in events if isinstance(event, Placed)]
    assert len({event.node for event in placed}) == 2
    assert {event.attempt for event in placed} == {1}
    assert any(isinstance(event, Step) for event in events)
    assert not any(event.node in json.dumps(store.records()) for event in placed)
    assert list(Execution(store=store.path).checkpoint_folder.iterdir()) == []
    events.clear()
    cclfp.study("accuracy", **study, **options(folder, "ray", on=nodes.on), on_event=events.append)
    assert not [event for event in events if isinstance(event, Placed | Finished)]


def what_a_node_lacks_travels_with_the_cohort(nodes: RayNodes, folder: Path) -> None:
    """Images and a method of the user's own; a method that fails names the node, and the others finish."""
    put_arrays(folder)
    name = import_images(folder / "pets.npz")
    (folder / "mine.py").write_text(
        "from cclfp.methods.er import ER\nclass Mine(ER):\n    name = 'mine'\n"
        "class Bad(ER):\n    name = 'bad'\n    def loss(self, *_): raise RuntimeError('it does not work')"
    )
    methods = [f"{folder / 'mine.py'}:{kind}" for kind in ("Mine", "Bad")]
    events: list[Event] = []
    settings: dict[str, Any] = {"tasks": 3, "backbone": "mlp", "seeds": 1, "on_event": events.append}
    wanted = r"bad seed 0 failed: on .*-[0-9a-f]{6}: RuntimeError: it does not work\nTraceback"
    with pytest.raises(RunError, match=wanted):
        cclfp.run(methods, name, **settings, **options(folder, "ray", on=nodes.on))
    assert sum(isinstance(event, Failed) for event in events) == 1
    local = cclfp.run(methods[0], name, **settings, **options(folder, "local"))
    assert results(Store(folder / "ray.sqlite").records()) == results(local[0].runs)
    used = {event.node[-6:] for event in events if isinstance(event, Placed)}
    stored = [(nodes.folder / home / "data" / name / "arrays" / "sums.json").exists() for home in ("a", "b")]
    assert stored == [node.node_id[:6] in used for node in nodes.nodes]


# A method that takes three seconds on every machine, however busy: 150 steps in five tasks.
SLOW = """
import os, time
from cclfp.methods.er import ER

class Slow(ER):
    name = "slow"

    def loss(self, *arguments):
        time.sleep(float(os.environ.get("SLOW_STEP", "0.02")))
        return super().loss(*arguments)
"""


def slow_method(nodes: RayNodes) -> str:
    file = nodes.folder / "slow.py"
    file.write_text(SLOW, encoding="utf-8")
    return f"{file}:Slow"


def train_slowly(nodes: RayNodes, folder: Path, on_event: OnEvent) -> Store:
    """Train three runs on the two nodes."""
    cclfp.run(slow_method(nodes), "split-mnist", seeds=3, on_event=on_event, **options(folder, "ray", on=nodes.on))
    return Store(folder / "ray.sqlite")


@functools.cache
def expected(nodes: RayNodes) -> Any:
    """The results of these runs, trained in this process without delay."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLOW_STEP", "0")
        jobs = make_jobs(
            configurations([slow_method(nodes)], "split-mnist"), range(3), Execution(**options(Path(folder), "local"))
        )
        return results(run_jobs(jobs, executor=Pool()).values())


class Saboteur:
    """A listener that does harm when a run is in its third task: there is a checkpoint of it."""

    def __init__(self, harm: Callable[[str], None]) -> None:
        self.harms, self.events = [harm], list[Event]()
        self.nodes: dict[str, str] = {}

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, Placed):
            self.nodes |= dict.fromkeys(event.keys, event.node)
        if isinstance(event, Step) and event.task == 3 and self.harms:
            self.harms.pop()(self.nodes[event.key])


def a_worker_and_then_a_node_is_lost(nodes: RayNodes, folder: Path) -> None:
    lost: list[int] = []

    def kill(name: str) -> None:
        for pid in nodes.tasks(nodes.number(name)):
            os.kill(pid, signal.SIGKILL)

    def remove(name: str) -> None:
        number = nodes.number(name)
        lost.extend(nodes.tasks(number))
        nodes.cluster.remove_node(nodes.nodes[number], allow_graceful=False)
        nodes.nodes[number] = nodes.add("ab"[number])

    for harm in (kill, remove):
        saboteur = Saboteur(harm)
        (folder / harm.__name__).mkdir()
        store = train_slowly(nodes, folder / harm.__name__, saboteur)
        assert results(store.records()) == expected(nodes)
        notes = texts(saboteur.events)
        assert any("was lost: attempt 2 on" in text for text in notes), notes
        assert any("continuing from the checkpoint after task" in text for text in notes), notes
        finished = [event.key for event in saboteur.events if isinstance(event, Finished)]
        assert len(finished) == len(set(finished)) == 3
        assert [event.attempt for event in saboteur.events if isinstance(event, Placed)].count(2) == 1
        assert list(Execution(store=store.path).checkpoint_folder.iterdir()) == []
    assert lost
    assert wait_until(lambda: not any(map(alive, lost)), 10)


def an_interrupt_cancels_what_runs(nodes: RayNodes, folder: Path) -> None:
    tasks: list[int] = []

    def stop(number: int, frame: object) -> None:
        raise Stopped(number)

    def interrupt(name: str) -> None:
        tasks.extend(nodes.tasks())
        signal.setitimer(signal.ITIMER_REAL, 0.3)  # while the driver waits for an answer

    signal.signal(signal.SIGALRM, stop)
    with pytest.raises(Stopped):
        train_slowly(nodes, folder, Saboteur(interrupt))
    assert tasks
    assert wait_until(lambda: not any(map(alive, tasks)), 10)
    assert not nodes.tasks()
    assert Store(folder / "ray.sqlite").records() == []


def the_driver_is_killed_and_starts_again(nodes: RayNodes, folder: Path) -> None:
    """No process is left, and what is stored is not trained again."""
    store = Store(folder / "ray.sqlite")
    arguments = ["run", slow_method(nodes), "split-mnist", "--seeds", "3", "--engine", "eager"]
    arguments += ["--checkpoint-every", "0", "--on", nodes.on, "--store", str(store.path), "--json"]
    command = [sys.executable, "-m", "cclfp", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert wait_until(lambda: store.records() and nodes.tasks(), 60)
    tasks = nodes.tasks()
    process.kill()
    _, said = process.communicate()
    assert process.returncode == -signal.SIGKILL, said
    assert wait_until(lambda: not any(map(alive, tasks)), 20)
    assert not nodes.tasks()
    stored = store.records()
    assert 1 <= len(stored) < 3
    done = subprocess.run(command, check=True, capture_output=True)
    records = store.records()
    assert results(records) == expected(nodes)
    assert [record for record in records if record in stored] == stored
    assert [run["seed"] for run in json.loads(done.stdout)["configurations"][0]["runs"]] == [0, 1, 2]


SCENARIOS = (
    a_study_gives_the_numbers_of_a_local_one,
    what_a_node_lacks_travels_with_the_cohort,
    a_worker_and_then_a_node_is_lost,
    an_interrupt_cancels_what_runs,
    the_driver_is_killed_and_starts_again,
)
