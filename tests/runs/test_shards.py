"""Parts of a grid: none is trained twice, none is left out, and together they are the whole."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from conftest import Cli
from hypothesis import given
from hypothesis import strategies as st
from records import made_up

import cclfp
from cclfp.errors import InputError
from cclfp.runs.execution import Execution
from cclfp.runs.jobs import Job, cost_of, cut, make_jobs, take_shard
from cclfp.runs.settings import configurations
from cclfp.runs.store import Store

METHODS = ["finetune", "er", "gem", "hal", "ccl-fp+"]


def grid(methods: list[str], seeds: int, engine: str = "auto", **more: Any) -> list[Job]:
    chosen = configurations(methods, "split-mnist", settings={"lr": [0.03, 0.1]})
    return make_jobs(chosen, range(seeds), Execution("cpu", engine, **more))


@given(
    methods=st.lists(st.sampled_from(METHODS), min_size=1, max_size=5, unique=True),
    seeds=st.integers(1, 12),
    count=st.integers(1, 9),
    engine=st.sampled_from(["auto", "eager"]),
)
def test_every_job_is_in_one_part_and_the_parts_are_balanced(
    methods: list[str], seeds: int, count: int, engine: str
) -> None:
    jobs = grid(methods, seeds, engine)
    parts = cut(jobs, count)
    assert parts == cut(jobs, count)
    assert len(parts) == count
    assert sorted(job.key for part in parts for job in part) == sorted(job.key for job in jobs)
    loads = sorted(map(cost_of, parts))
    if engine == "eager":  # every run is a cohort: no part has more than a run more than another
        assert loads[-1] - loads[0] <= 1.000001 * max(cost_of([job]) for job in jobs)
    assert loads[-1] <= 2 * sum(loads) / count + max(cost_of([job]) for job in jobs)


MATRIX: Any = [[None] * 5] * 5 + [[50.0] * 5]


def test_what_the_store_has_is_in_no_part(tmp_path: Path) -> None:
    store = tmp_path / "runs.sqlite"
    jobs = grid(["er"], 2, store=store)
    Store(store).add(made_up(jobs[0].configuration, 0, MATRIX))
    parts = [take_shard([job.with_unchecked(shard=f"{i}/2") for job in jobs]) for i in (1, 2)]
    assert sorted(job.key for part in parts for job in part) == sorted(job.key for job in jobs[1:])
    assert [{job.execution.store.name for job in part} for part in parts] == [
        {"shard-1-of-2.sqlite"},
        {"shard-2-of-2.sqlite"},
    ]


def test_a_part_of_another_grid_is_to_be_imported_first(tmp_path: Path) -> None:
    jobs = grid(["er"], 1, store=tmp_path / "runs.sqlite", shard="1/1")
    Store(tmp_path / "shard-2-of-2.sqlite").add(made_up(jobs[0].configuration, 0, MATRIX))
    with pytest.raises(InputError, match="shard-2-of-2.sqlite has runs of this part, from another grid: cclfp runs im"):
        take_shard(jobs)
    for again, name in (({"fresh": True}, "fresh"), ({"other_code": "retrain"}, "other_code=retrain")):
        with pytest.raises(InputError, match=f"^{name} does not go with shard: use an empty store$"):
            dataclasses.replace(jobs[0].execution, **again)
    with pytest.raises(InputError, match="shard='1/2': a search needs all its results"):
        cclfp.tune("er", "split-mnist", shard="1/2")


RUN = ["run", "finetune,er", "split-mnist", "--seeds", "2", "--engine", "eager", "--device", "cpu"]


@pytest.mark.slow
@pytest.mark.usefixtures("one_core")
def test_three_shards_merged_equal_one_run(small_mnist: Path, tmp_path: Path, cli: Cli) -> None:
    store, whole = tmp_path / "runs.sqlite", tmp_path / "whole.sqlite"
    for number in (1, 2, 3):
        answer = cli(*RUN, "--store", store, "--shard", f"{number}/3")
        assert answer.code == 0, answer.err
        assert f"part {number} of 3: " in answer.out
        assert f"cclfp runs import {tmp_path}/shard-*-of-3.sqlite --store {store}" in answer.out
    assert "in the store" in cli(*RUN, "--store", store, "--shard", "3/3").err  # it continues
    assert not store.exists()
    shards = sorted(tmp_path.glob("shard-*-of-3.sqlite"))
    assert len(shards) == 3
    assert "4 runs added" in cli("runs", "import", *shards, "--store", store).out
    assert cli(*RUN, "--store", whole).code == 0
    names = ("key", "configuration", "accuracy_matrix")
    one, merged = (
        sorted([[dict(r)[name] for name in names] for r in Store(path).records()]) for path in (whole, store)
    )
    assert merged == one
    again = cli(*RUN, "--store", store, "--shard", "1/3", "--json")  # nothing is missing any more
    assert again.json == {"shard": "1/3", "store": str(shards[0]), "keys": []}
    again = cli(*RUN, "--store", store)
    assert "4 of 4 runs are in the store" in again.err


@pytest.mark.slow
@pytest.mark.usefixtures("one_core")
def test_a_study_in_shards(small_mnist: Path, tmp_path: Path, cli: Cli) -> None:
    study = ["study", "accuracy", "--benchmark", "split-mnist", "--method", "finetune", "--seeds", "1"]
    study += ["--engine", "eager", "--store", str(tmp_path / "runs.sqlite"), "--shard", "1/2"]
    assert "1 runs to train" in cli(*study, "--dry-run").out
    answer = cli(*study)
    assert "part 1 of 2: 1 run, in" in answer.out
    assert cli(*study, "--dry-run").out.splitlines()[-1] == "0 runs to train, 0 replica-steps"
    assert cli("study", "runtime", "--shard", "1/2").code == 2
    assert "leave out on and shard" in cli("study", "runtime", "--on", "ray").err
