"""What ``run`` tells its listener before it trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import Cli

import cclfp
from cclfp.runs.events import Event, Planned

RUN = ["run", "finetune,er", "split-mnist", "--seeds", "2", "--engine", "eager", "--device", "cpu"]


@pytest.mark.slow
def test_the_number_of_runs_is_shown_where_they_are_many(
    small_mnist: Path, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "runs.sqlite"
    monkeypatch.setattr("cclfp.runs.run.SHOWN_ONE_BY_ONE", 4)
    assert "configurations" not in cli(*RUN, "--store", store).err
    monkeypatch.setattr("cclfp.runs.run.SHOWN_ONE_BY_ONE", 3)
    shown = "4 runs (configurations: 2, seeds: 2)"
    assert cli(*RUN, "--store", store).err.startswith(f"{shown}\n4 of 4 runs are in the store")
    shard = cli(*RUN, "--store", tmp_path / "other.sqlite", "--shard", "1/4")
    assert shard.err.startswith(f"{shown}, 1 of them in this shard\n")


@pytest.mark.slow
@pytest.mark.parametrize("few", [3, 4])
def test_many_runs_have_costs(few: int, small_mnist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cclfp.runs.run.SHOWN_ONE_BY_ONE", few)
    events: list[Event] = []
    options: dict[str, Any] = {"engine": "eager", "device": "cpu", "store": tmp_path / "runs.sqlite"}
    cclfp.run(["finetune", "er"], "split-mnist", seeds=2, on_event=events.append, **options)
    (planned,) = (event for event in events if isinstance(event, Planned))
    costs = {} if planned.costs is None else {planned.labels[key]: cost for key, cost in planned.costs.items()}
    if few == 4:
        assert not costs
    else:
        assert costs.keys() == set(planned.labels.values())
        assert costs["er seed 0"] == costs["er seed 1"] > costs["finetune seed 0"]
