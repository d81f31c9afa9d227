"""What is particular to A-GEM; tests/methods/test_papers.py compares it with its equations."""

from __future__ import annotations

import copy
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from by_hand import stream_of, tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import cclfp
from cclfp.core.files import write_tensors
from cclfp.engine.replica import Replica
from cclfp.errors import InputError
from cclfp.learner.saving import FORMAT, learner_state
from cclfp.methods.a_gem import AGEM, project
from cclfp.runs.configuration import USUAL, Configuration
from cclfp.runs.execution import Execution
from cclfp.runs.jobs import into_cohorts, make_jobs
from cclfp.runs.record import check_record
from cclfp.runs.settings import configurations, read_presets
from cclfp.schedules import PastRing
from cclfp.testing import same, toy_psi, toy_stream
from cclfp.testing.case import TASKS, train_replicas

# -- the projection -------------------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32), st.floats(-15, 15), st.sampled_from([torch.float32, torch.float64]), st.booleans())
def test_the_projected_gradient_agrees(seed: int, exponent: float, dtype: torch.dtype, opposite: bool) -> None:
    g = torch.Generator().manual_seed(seed)
    grads = {name: torch.randn(3, 2, dtype=dtype, generator=g) for name in "ab"}
    reference = {name: 10**exponent * torch.randn(3, 2, dtype=dtype, generator=g) for name in "ab"}
    if opposite:
        reference = {name: -(10**exponent) * g for name, g in grads.items()}
    x = project(grads, reference)
    inner = sum(float((grads[name].double() * reference[name].double()).sum()) for name in "ab")
    size = sum(float(reference[name].double().square().sum()) for name in "ab")
    for name in "ab":
        expected = grads[name].double() - min(inner, 0) / size * reference[name].double()
        torch.testing.assert_close(x[name].double(), expected, rtol=1e-5, atol=1e-5)
        if inner > 1e-5 * size**0.5:
            assert torch.equal(x[name], grads[name])


def test_a_reference_gradient_of_zero_changes_nothing() -> None:
    grads = {"a": torch.full((5,), -1.0), "b": torch.full((2, 2), -3.0)}
    for zero in (0.0, -0.0, 1e-30):  # the last one disagrees, and its square is 0 in float32
        x = project(grads, {name: torch.full_like(g, zero) for name, g in grads.items()})
        assert all(torch.equal(x[name], g) for name, g in grads.items())


# -- the memory -----------------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(
    st.integers(1, 12),
    st.integers(1, 30),
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 25)), min_size=1, max_size=6),
    st.integers(1, 5),
)
def test_as_many_examples_are_drawn_at_every_step_of_a_task(
    size: int, k: int, stream: list[tuple[int, int]], batch: int
) -> None:
    """The shapes of a task are fixed, whatever passes between the shares of tasks."""
    ring = PastRing(size, seed=0)
    for task, n in stream:
        drawn = []
        for start in range(0, n, batch):
            drawn.append(ring.draw(k, [task]))
            assert set(drawn[-1]) <= {slot for other, slots in ring.slots.items() if other != task for slot in slots}
            ring.place([task] * min(batch, n - start))
        assert len({len(slots) for slots in drawn}) == 1


@pytest.mark.parametrize("engine", ["eager", "traced"])
def test_engines_take_the_reference_examples_that_observe_takes(engine: str) -> None:
    for reference in (10, 256):
        stream = toy_stream("class")
        case: dict[str, Any] = {"num_classes": 6, "memory": 150, "tasks": TASKS, "reference": reference}
        trained = cclfp.make(AGEM, psi=toy_psi(random=False), transform=stream.transform, **case)
        replica = Replica(trained, stream)
        for task, past in enumerate((0, 75, 100)):  # of 150, what is left when the new task has its share
            assert set(next(replica.plans()).sizes[:-1]) == {(10, min(reference, past))}
            train_replicas([replica], engine, tasks=task + 1)


# -- records and files of before ------------------------------------------------------------------------------------


def shipped() -> dict[str, Any]:
    """A record that was made before the setting was there."""
    with (Path(__file__).parents[2] / "results" / "earlier" / "mnist.jsonl").open(encoding="utf-8") as lines:
        return next(record for record in map(json.loads, lines) if record["method"] == "a-gem")


def test_a_record_without_the_setting_means_the_replay_size_and_keeps_its_key() -> None:
    record = shipped()
    assert "reference" not in record["configuration"]["hyperparameters"]
    assert check_record(copy.deepcopy(record)) == record
    configuration = Configuration.from_dict(record["configuration"])
    assert configuration.hyperparameters["reference"] == 10
    assert configuration.key(record["seed"]) == record["key"]
    lr, place = [configuration.hyperparameters["lr"]], (record["benchmark"], record["scenario"])
    ten, other = configurations(["a-gem"], *place, settings={"lr": lr, "reference": [10, 256]})
    assert ten == configuration
    assert other.key(record["seed"]) != record["key"]
    assert Configuration.from_dict(other.to_dict()) == other
    replayed = Configuration.from_dict({**record["configuration"], "replay": 128})  # which could be set then
    assert replayed.hyperparameters["reference"] == 128
    said = {name: value for name, value in record["configuration"].items() if value != USUAL.get(name, "always said")}
    then = json.dumps({**said, "replay": 128, "seed": 0}, sort_keys=True)
    assert replayed.key(0) == hashlib.sha256(then.encode()).hexdigest()


def test_settings_that_are_refused() -> None:
    with pytest.raises(InputError, match=r"reference=2.5: expected a whole number in \[1, inf\)"):
        cclfp.make("a-gem", psi=nn.Flatten(), num_classes=2, reference=2.5)
    with pytest.raises(InputError, match="unknown setting of a-gem 'replay'"):
        cclfp.run("a-gem", "split-mnist", replay=20)
    lacking = {**shipped()["configuration"], "hyperparameters": {"reference": 10.0}}
    with pytest.raises(InputError, match="hyperparameters lack lr"):
        Configuration.from_dict(lacking)


def test_runs_with_other_sizes_of_batches_do_not_train_together(tmp_path: Path) -> None:
    several = configurations(["a-gem"], "split-mnist", settings={"reference": [10, 256], "lr": [0.1, 0.3]})
    jobs = make_jobs(several, [0], Execution("cpu", "traced", store=tmp_path / "runs.sqlite"))
    assert into_cohorts(jobs, 1, "cpu") == [jobs[:2], jobs[2:]]


def test_a_file_of_presets_without_the_setting_means_the_replay_size(tmp_path: Path) -> None:
    preset = {"method": "a-gem", "benchmark": "split-mnist", "scenario": "class", "augment": False, "chosen": "before"}
    (tmp_path / "presets.json").write_text(json.dumps([preset | {"hyperparameters": {"lr": 0.3}}]))
    (read,) = read_presets(tmp_path / "presets.json")
    assert read.hyperparameters == {"lr": 0.3, "reference": 10}


def test_a_learner_saved_without_the_setting_continues_with_its_replay_size(tmp_path: Path) -> None:
    learner, again = (tiny("a-gem", reference=3) for _ in range(2))
    stream = stream_of()
    for one in (learner, again):
        one.observe(*stream[0][0], 0)
        one.end_task()
    state = learner_state(learner)
    del state["hyper"]["reference"]
    write_tensors(tmp_path / "old", {"format": FORMAT, "cclfp": "0.1.0", **state})
    loaded = cclfp.load(tmp_path / "old", psi=tiny("er").psi, transform=learner.transform)
    for one in (loaded, again):
        one.observe(*stream[1][0], 1)
    assert loaded.replay == 3
    assert same(loaded, again)
