"""Several GPUs, faked: which are used, by how many processes, and how cohorts are cut for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cclfp.errors import InputError
from cclfp.events import Event, ignore
from cclfp.runs.execution import Execution, visible_as
from cclfp.runs.jobs import Job, cost_of, into_cohorts, make_jobs
from cclfp.runs.pool import local_executor
from cclfp.runs.settings import configurations

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
    assert list(local_executor(Execution("cuda:2,3"), one_at_a_time=True).cards) == [2]  # run times
    cards(1)
    assert places() is None
    cards(0)
    assert places() == []
    assert local_executor(Execution(), one_at_a_time=True).workers == 1


@pytest.mark.parametrize(
    ("count", "wrong", "message"),
    [
        (2, "cuda:9", "expected different GPUs that are there, torch finds 2, numbered from 0"),
        (2, "cuda:0,2", "expected different GPUs that are there"),
        (2, "cuda:0,0", "expected different GPUs that are there"),
        (0, "cuda:0", "expected different GPUs that are there, torch finds no CUDA device on this machine"),
        (0, "cuda", "expected different GPUs that are there, torch finds no CUDA device on this machine"),
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
    given: list[Job] = []
    environments: list[dict[str, str]] = []

    class FakeWorkers:
        """Notes the cohorts that workers get, and does not train them."""

        def __init__(self, file: str, function: str, several: list[dict[str, str]]) -> None:
            environments.extend(several)

        __enter__, __exit__ = lambda self: self, lambda self, *error: None

        def work(self, pieces: Iterator[tuple[list[Job], dict[str, str]]]) -> Iterator[tuple[int, Event]]:
            for jobs, changes in pieces:
                given.extend(jobs)
                assert changes == {"device": "cuda"}
            return iter(())

    monkeypatch.setattr("cclfp.runs.pool.Workers", FakeWorkers)
    execution = Execution("cuda:0,2", "graph", store=tmp_path / "runs.sqlite")
    jobs = make_jobs(configurations(["er"], "split-mnist"), range(4), execution)
    local_executor(execution).run([[job] for job in jobs], ignore)
    assert environments == [{"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": "2"}]
    assert [job.seed for job in given] == [0, 1, 2, 3]


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


def test_the_longest_cohorts_come_first() -> None:
    costs = [cost_of(cohort) for cohort in into_cohorts(gpu_jobs(["er", "gem", "hal"], 7), 3, "cpu")]
    assert costs == sorted(costs, reverse=True)
    assert sum(costs) == pytest.approx(cost_of(gpu_jobs(["er", "gem", "hal"], 7)))
