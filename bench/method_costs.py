"""What a step of each method costs on the CPU, with the eager engine and one thread.

    .venv/bin/python bench/method_costs.py [--benchmark split-mnist] [--scenario class] [--rounds 20]

Every method is trained on a few hundred examples of each task but the last; then all take turns, a few steps of the
last task at a time, so that what else the machine does slows all of them alike. Prints the median milliseconds of a
step, its ratio to ER's, and how a step of GEM compares with 1 + (past tasks) steps of Finetune, for every number of
past tasks.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence

import torch

import cclfp
from cclfp.backbones import make_psi, parse_backbone
from cclfp.engine.eager import train
from cclfp.engine.replica import Replica
from cclfp.memory import Replayed
from cclfp.methods import METHODS
from cclfp.streams import BENCHMARKS, Stream

EXAMPLES = 400  # of each task
TURN = 10  # steps


def steps_of(method: str, stream: Stream, backbone: str, past: int) -> Callable[[], None]:
    """A function that takes ``TURN`` steps of the task after ``past`` others."""
    psi = make_psi(parse_backbone(backbone), stream.train.x.shape[1:], 0)
    learner = cclfp.make(
        method,
        psi=psi,
        num_classes=stream.num_classes,
        scenario=stream.scenario,
        tasks=stream.classes,
        transform=stream.transform,
        lr=0.01,
    )
    replica = Replica(learner, stream.joint() if METHODS[method].joint else stream)
    while not METHODS[method].joint and replica.position < past:
        plan = replica.plan()
        train(learner, stream.train, replica.begin_task(), plan)
        replica.end_task(plan)
    plan, mask = replica.plan(), replica.begin_task()
    rows = [(step, *sizes) for step, sizes in enumerate(plan.sizes) if sum(sizes) == plan.rows.shape[1]]

    def turn() -> None:
        for step, current, replayed in rows[:TURN]:
            raw = stream.train.rows(plan.rows[step])
            slots = Replayed(plan.slots[step, :replayed], plan.settled[step, :replayed])
            learner.train_step(raw, mask.train(raw.task), current, slots, None)

    return turn


def medians(turns: Sequence[Callable[[], None]], rounds: int) -> list[float]:
    """The median milliseconds of a step of each, all taking turns."""
    seconds: list[list[float]] = [[] for _ in turns]
    for _ in range(rounds + 1):
        for mine, turn in zip(seconds, turns, strict=True):
            began = time.perf_counter()
            turn()
            mine.append(time.perf_counter() - began)
    return [1e3 * statistics.median(mine[1:]) / TURN for mine in seconds]  # the first warms up


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--benchmark", default="split-mnist", choices=list(BENCHMARKS))
    parser.add_argument("--scenario", default=None)
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    benchmark = BENCHMARKS[arguments.benchmark]
    scenario = arguments.scenario or benchmark.scenarios[0]
    stream = benchmark.stream(scenario, seed=0)
    stream = dataclasses.replace(stream, train_rows=[rows[:: len(rows) // EXAMPLES] for rows in stream.train_rows])
    past = stream.num_tasks - 1

    methods = [name for name, method in METHODS.items() if scenario in method.scenarios()]
    cost = dict(
        zip(
            methods,
            medians([steps_of(m, stream, benchmark.backbone, past) for m in methods], arguments.rounds),
            strict=True,
        )
    )
    print(f"{benchmark.title}, {scenario}, after {past} tasks: milliseconds a step, and in steps of er")
    for method, milliseconds in cost.items():
        print(f"{method:>10} {milliseconds:7.2f} {milliseconds / cost['er']:6.2f}")

    print("gem: a step in units of 1 + (past tasks) steps of finetune")
    for count in range(1, past + 1):
        pair = [steps_of(m, stream, benchmark.backbone, count) for m in ("gem", "finetune")]
        gem, finetune = medians(pair, arguments.rounds)
        print(f"{count:>3} past {gem / finetune / (1 + count):6.2f}")


if __name__ == "__main__":
    main()
