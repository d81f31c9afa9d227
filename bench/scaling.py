"""How long the paper's whole study takes on several GPUs, from the measured times of steps and the cost of Ray.

    .venv/bin/python bench/scaling.py            # prints the table
    .venv/bin/python bench/scaling.py --write    # puts it into docs/cluster.md

It cuts the runs into cohorts as ``cclfp study all --on ray`` does, and gives the longest remaining one to the GPU that
is free first.
"""

from __future__ import annotations

import argparse
import dataclasses
import heapq
import re
from collections.abc import Sequence
from pathlib import Path

from estimate import MEASURED_RUNS, SEEDS, STACKED, StepModel, fixed_part, step_times
from formatting import format_table
from measured import Measured, read

from cclfp.paper.study import plan
from cclfp.runs.execution import Execution
from cclfp.runs.jobs import Job, into_cohorts, steps
from cclfp.runs.results import Result

BENCH = Path(__file__).parent
PAGE = BENCH.parent / "docs" / "cluster.md"
CARDS = (1, 2, 4, 8, 16, 32, 64, 128)
MARKS = re.compile(r"(<!-- bench/scaling.py -->\n).*?(<!-- end -->)", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Model:
    """What was measured."""

    step: StepModel
    start_seconds: float  # of a process that trains a cohort
    cohorts_per_second: float  # through the driver

    def seconds(self, cells: dict[str, Result], cohort: Sequence[Job]) -> float:
        """How long a cohort takes, with the start of its process."""
        step = self.step.milliseconds(cells[cohort[0].key], len(cohort))
        return self.start_seconds + steps(cohort[0].configuration) * step / 1000


def read_model(sections: Sequence[Measured]) -> Model:
    """The model of the committed measurements."""

    def find(name: str, device: str) -> Measured:
        return [one for one in sections if one.name == name and one.device == device][-1]

    stacked, replicas, cluster = find("stacked", "cuda"), find("replicas", "cuda"), find("cluster", "cpu")
    idle = [r["cohorts_per_second"] for r in cluster.results if r["case"]["method"] == "idle"]
    starts = [r["startup_seconds"] for r in cluster.results if r["case"].get("place") == "local"]
    fixed = {
        "mlp": fixed_part(replicas, "split-mnist", 1, MEASURED_RUNS["mlp"]),
        "resnet18": fixed_part(stacked, STACKED, SEEDS, MEASURED_RUNS["resnet18"]),
    }
    return Model(
        StepModel(step_times(stacked, find("methods", "cuda")), fixed),
        sum(starts) / len(starts),
        len(idle) / sum(1 / rate for rate in idle),
    )


def schedule(seconds: Sequence[float], cards: int) -> float:
    """When the last of these cohorts ends, if each goes to the card that is free first."""
    free = [0.0] * cards
    for one in seconds:
        heapq.heapreplace(free, free[0] + one)
    return max(free)


def table(model: Model) -> str:
    """One row per number of cards."""
    study = plan("all", execution=Execution("cpu"))
    cells = {cell.key(seed): cell for cell in study.results for seed in study.seeds}
    rows, one = [], 0.0
    for cards in CARDS:
        cohorts = into_cohorts(study.jobs, cards, "cuda")
        seconds = [model.seconds(cells, cohort) for cohort in cohorts]
        whole = max(schedule(seconds, cards), len(cohorts) / model.cohorts_per_second)
        one = one or whole
        speedup = one / whole
        minutes = [f"{value / 60:.1f}" for value in (whole, max(seconds))]
        rows.append([str(cards), str(len(cohorts)), *minutes, f"{speedup:.1f}×", f"{100 * speedup / cards:.0f} %"])
    columns = ["cards", "cohorts", "minutes", "minutes of the longest cohort", "speed relative to one card"]
    return format_table([*columns, "efficiency"], rows)


def measured() -> Model:
    from render import ORDER

    return read_model(read(sorted((BENCH / "results").glob("*.json")), ORDER))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the table into docs/cluster.md")
    model = measured()
    text = table(model)
    if parser.parse_args().write:
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(MARKS.sub(lambda found: f"{found[1]}{text}\n{found[2]}", page), encoding="utf-8")
        print(f"{PAGE}: written")
    else:
        print(f"{model.start_seconds:.1f} s per process, {model.cohorts_per_second:.0f} cohorts/s, {model.step.fixed}")
        print(text)


if __name__ == "__main__":
    main()
