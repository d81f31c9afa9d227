"""Where cohorts are trained: in this process, in worker processes, or (:mod:`cclfp.runs.ray`) on a cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Union

import torch

from cclfp.core.workers import Died, cores, work
from cclfp.errors import RunError
from cclfp.events import Failed, Finished, OnEvent
from cclfp.runs import training
from cclfp.runs.execution import Execution, pick_cards, visible_as
from cclfp.runs.jobs import Job

if TYPE_CHECKING:
    from cclfp.runs.ray import RayCluster

BYTES_PER_CUDA_RUN = 4 << 30  # of a GPU's memory that one run of the eager engine may need
# What trains cohorts of jobs: it has ``workers``, how many of them at the same time; ``device``, cpu or cuda; and
# ``run``, after which every run has ended in a Finished or a Failed event. An exception of the listener ends all.
Executor = Union["Pool", "RayCluster"]


@contextlib.contextmanager
def make_executor(execution: Execution) -> Iterator[Executor]:
    """The executor that an execution asks for. A cluster is connected until the end."""
    if execution.ray_address is None:
        yield local_executor(execution)
        return
    from cclfp.runs.ray import RayCluster, connected  # here, because Ray is optional

    with connected(execution.on, execution.ray_address) as ray:
        yield RayCluster(execution, ray)


def local_executor(execution: Execution) -> Pool:
    """The executor for this machine: cohorts are trained side by side on its cores, or on each of its GPUs."""
    if cards := pick_cards(execution.device):
        places = cards * cohorts_per_card(execution, cards)
        return Pool(len(places), places)
    return Pool(max(1, cores() // execution.threads))


def cohorts_per_card(execution: Execution, cards: Sequence[int]) -> int:
    """How many cohorts to train on each GPU at the same time.

    One, unless a share of a GPU is asked for. A cohort of the eager engine is one run, which leaves a GPU idle most of
    the time: of these, as many as the memory of the GPU and the cores allow. A run needs more than one core to keep a
    GPU busy: on 16 cores and an H200, 12 eager runs of ResNet18 made 304 steps per second together, and 20 made 222.
    """
    if execution.gpus_per_cohort is not None:
        return int(1 / execution.gpus_per_cohort)
    if execution.engine != "eager":
        return 1
    free = min(torch.cuda.mem_get_info(card)[0] for card in cards)
    workers = cores() // execution.threads
    return max(1, min(workers // 2 // len(cards), free // BYTES_PER_CUDA_RUN))


class Pool:
    """Trains cohorts on this machine, each in one of several worker processes, or one after the other in this process.

    ``cards`` has the GPU of each worker, which is the only one that it sees; without, all see what this process sees.
    """

    def __init__(self, workers: int = 1, cards: Sequence[int] = ()) -> None:
        self.workers, self.cards, self.device = workers, cards, "cuda" if cards else "cpu"

    def run(self, cohorts: Sequence[Sequence[Job]], on_event: OnEvent) -> None:
        count = min(self.workers, len(cohorts))
        if count < 2 and (not self.cards or self.cards[0] == 0):  # this process would choose the same GPU
            for cohort in cohorts:
                training.train_cohort(cohort, on_event)
            return
        environments = [{"CUDA_VISIBLE_DEVICES": visible_as(card)} for card in self.cards[:count]] or [{}] * count
        device = {"device": "cuda"} if self.cards else {}  # the only GPU that the worker sees
        pieces = ([job.with_unchecked(**device) for job in cohort] for cohort in cohorts)
        left = [{job.key: None for job in cohort} for cohort in cohorts]  # the runs that have not ended
        with contextlib.closing(work(training.__file__, "train_cohort", environments, pieces)) as answers:
            for number, answer in answers:
                if isinstance(answer, Died):
                    text = f"its process {answer.how}. The same command continues from the last checkpoint"
                    for key in left[number]:
                        on_event(Failed(key, RunError(text)))
                    continue
                if isinstance(answer, Finished | Failed):
                    left[number].pop(answer.key, None)  # a run may do both
                on_event(answer)
