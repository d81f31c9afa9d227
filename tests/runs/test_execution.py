"""How and where runs are trained: what an execution takes, and several GPUs, faked: which are used, and for what."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch

import cclfp
from cclfp.engine.cohort import choose_engine
from cclfp.errors import InputError
from cclfp.events import ignore
from cclfp.runs.execution import Execution, visible_as
from cclfp.runs.jobs import Job, cost_of, into_cohorts, make_jobs
from cclfp.runs.pool import local_executor
from cclfp.runs.settings import configurations
from cclfp.runs.store import default_store


def test_it_takes_strings_none_and_numpy(tmp_path: Path) -> None:
    made: Any = {"store": str(tmp_path / "a.sqlite"), "save": str(tmp_path), "threads": np.int64(1)}
    execution = Execution(**made | {"checkpoint_every": np.float32(3), "device": torch.device("cpu")})
    assert execution.device == "cpu"
    assert (execution.store, execution.save) == (tmp_path / "a.sqlite", tmp_path)
    assert type(execution.threads) is int
    nothing: Any = None
    assert Execution(store=nothing).store == default_store()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"engine": None}, "unknown engine 'None'"),
        ({"engine": "graph", "device": "cpu"}, "engine graph is for device cuda"),
        ({"precision": "bf16", "device": "cpu"}, "precision bf16 needs a CUDA device"),
        ({"store": 5}, "store=5: expected a path"),
        ({"device": 5}, "device '5': expected auto, cpu"),
        ({"fresh": "no"}, "fresh='no': expected True or False"),
        ({"other_code": "keep"}, "unknown other_code 'keep'"),
        ({"checkpoint_every": float("nan")}, "checkpoint_every=nan: expected seconds, 0 or more"),
        ({"on": "ray", "device": "cuda:0"}, "expected auto, cpu or cuda on Ray"),
        ({"gpus_per_cohort": 0}, "gpus_per_cohort=0: expected more than 0"),
        *(
            ({"on": wrong}, f"on='{wrong}': expected local, ray or ray:ADDRESS")
            for wrong in ("foo", "ray:", "ray://10.0.0.1:10001", "rays", "", "local:1")
        ),
        *(
            ({"shard": wrong}, f"shard='{wrong}': expected I/N with I from 1 to N")
            for wrong in ("", "1", "0/3", "4/3", "1/0", "-1/3", "1/2/3", "a/b", "1.0/2", "1/999999999")
        ),
    ],
)
def test_wrong_values_are_refused_at_once(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Execution(**wrong)


STUDY = {"what": "mine", "benchmarks": "split-mnist", "methods": "er", "memory": np.int64(0)}


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        (cclfp.tune, {"method": "er", "engin": "eager"}, "unknown setting of er 'engin'. Did you mean 'engine'"),
        (cclfp.study, {"what": "accuracy", "engin": "eager"}, "unknown option 'engin'. Did you mean 'engine'"),
        (cclfp.study, {"what": "runtime"}, "run times are not compared"),
        (cclfp.study, STUDY, "memory=.*: expected a"),
    ],
)
def test_wrong_options_are_named(function: Callable[..., object], options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        function(**options)


# -- devices ------------------------------------------------------------------------------------------------------

Cards = Callable[[int], None]


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> Cards:
    """Let this machine have so many GPUs, with 20 GiB free on the first and more on the others, and 16 cores."""

    def have(count: int) -> None:
        monkeypatch.setattr("torch.cuda.is_available", lambda: count > 0)
        monkeypatch.setattr("torch.cuda.device_count", lambda: count)
        monkeypatch.setattr("torch.cuda.mem_get_info", lambda card: ((20 + card) << 30, 80 << 30))
        for module in ("pool", "execution"):
            monkeypatch.setattr(f"cclfp.runs.{module}.cores", lambda: 16)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    return have


def places(**execution: Any) -> list[int] | None:
    """The GPU of each worker; None where this process trains."""
    executor = local_executor(Execution(**execution))
    return None if (executor.workers, list(executor.cards)) == (1, [0]) else list(executor.cards)


def test_every_visible_gpu_is_used(cards: Cards) -> None:
    cards(4)
    assert places() == [0, 1, 2, 3]
    assert places(device="cuda:0,2") == [0, 2]
    assert places(device="cuda:3") == [3]
    assert places(device="cuda:0") is None  # one cohort at a time, in this process
    assert places(gpus_per_cohort=0.5) == [0, 1, 2, 3, 0, 1, 2, 3]
    assert places(device="cuda:1", gpus_per_cohort=0.3) == [1, 1, 1]
    assert places(engine="eager") == [0, 1, 2, 3] * 2  # 16 cores are for 8 runs, two per GPU
    assert places(engine="eager", device="cuda:1") == [1] * 5  # 21 GiB are for 5
    cards(1)
    assert places() is None
    cards(0)
    assert places() == []


@pytest.mark.parametrize(
    ("count", "wrong", "message"),
    [
        (2, "cuda:9", "expected GPUs of this machine, each once, but torch finds 2, numbered from 0"),
        (2, "cuda:0,2", "expected GPUs of this machine, each once"),
        (2, "cuda:0,0", "expected GPUs of this machine, each once"),
        (0, "cuda:0", "expected GPUs of this machine, each once, but torch finds no CUDA device on this machine"),
        (0, "cuda", "expected GPUs of this machine, each once, but torch finds no CUDA device on this machine"),
        *((2, wrong, "expected auto, cpu, cuda, or GPUs") for wrong in ("cuda:", "cuda:-1", "cuda:1,", "gpu:0", "")),
    ],
)
def test_gpus_that_do_not_exist(count: int, wrong: str, message: str, cards: Cards) -> None:
    cards(count)
    with pytest.raises(InputError, match=f"device '{wrong}': {message}"):
        Execution(wrong)


def test_the_names_of_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_as(2) == "2"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5, 7")
    assert visible_as(1) == "7"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-8932f937,GPU-5a61")
    assert visible_as(0) == "GPU-8932f937"


def test_each_worker_sees_one_gpu(cards: Cards, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cards(3)
    work = MagicMock()  # nothing is trained
    monkeypatch.setattr("cclfp.runs.pool.work", work)
    execution = Execution("cuda:0,2", "graph", store=tmp_path / "runs.sqlite")
    jobs = make_jobs(configurations(["er"], "split-mnist"), range(4), execution)
    local_executor(execution).run([[job] for job in jobs], ignore)
    assert work.call_args.args[2] == [{"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": "2"}]
    given = [(job.seed, job.execution.device) for (job,) in work.call_args.args[3]]
    assert given == [(seed, "cuda") for seed in range(4)]


def sizes(cohorts: list[list[Job]]) -> list[int]:
    return [len(cohort) for cohort in cohorts]


def gpu_jobs(methods: list[str], seeds: int) -> list[Job]:
    return make_jobs(configurations(methods, "split-mnist"), range(seeds), Execution("cpu"))


def test_cohorts_fill_the_gpus() -> None:
    assert sizes(into_cohorts(gpu_jobs(["er"], 5), 5, "cuda")) == [1] * 5
    assert sizes(into_cohorts(gpu_jobs(["er"], 5), 1, "cuda")) == [5]
    assert sizes(into_cohorts(gpu_jobs(["er"], 500), 2, "cuda")) == [84, 84, 83, 83, 83, 83]
    assert sizes(into_cohorts(gpu_jobs(["er"], 500), 1, "cuda")) == [500]
    longer = make_jobs(configurations(["hal"], "split-tiny-imagenet"), range(800), Execution("cpu"))
    assert all(sizes(into_cohorts([*gpu_jobs(["finetune"], 110), *longer], 128, "cuda")))  # no cohort is empty
    methods = ["finetune", "er", "gem", "hal", "ccl-fp", "ccl-fp+", "si", "lwf", "fdr", "icarl"]
    assert max(sizes(into_cohorts(gpu_jobs(methods, 5), 2, "cuda"))) == 5  # there is enough to do: none is cut
    many = into_cohorts(gpu_jobs(methods, 5), 64, "cuda")
    assert len(many) == 50  # all can be trained at once
    costs = [cost_of(cohort) for cohort in many]
    assert costs == sorted(costs, reverse=True)  # the longest come first
    assert sum(costs) == pytest.approx(cost_of(gpu_jobs(methods, 5)))


# -- which engine ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "steps", "normalised", "engine"),
    [
        ("cpu", 999, False, "eager"),  # tracing would take longer than it saves
        ("cpu", 1000, False, "traced"),
        ("cpu", 6000, True, "eager"),
        ("cuda", 299, False, "eager"),
        ("cuda", 300, False, "graph"),
        ("cuda", 300, True, "graph"),
    ],
)
def test_the_engine_is_chosen_by_counts(device: str, steps: int, normalised: bool, engine: str) -> None:
    assert choose_engine(device, steps, normalised=normalised) == engine


def test_runs_that_will_be_eager_are_cohorts_of_their_own() -> None:
    """So that one that ends its process, or needs much memory, does not take others with it."""

    def cohorts(benchmark: str, device: str = "cpu", **chosen: Any) -> list[int]:
        jobs = make_jobs(configurations(["er"], benchmark, **chosen), range(6), Execution("cpu"))
        return sizes(into_cohorts(jobs, 2, device))

    assert cohorts("split-mnist") == [3, 3]
    assert cohorts("split-cifar10") == [1] * 6  # BatchNorm
    assert cohorts("split-cifar10", "cuda") == [3, 3]
    assert cohorts("split-cifar10", backbone="mlp") == [3, 3]
    assert cohorts("split-mnist", settings={"batch": [100]}) == [1] * 6  # 600 steps
