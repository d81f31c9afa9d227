"""Choose the presets on held-out training data, and write them into src/cclfp/presets.json.

    .venv/bin/python bench/choose_presets.py [--method M,...] [--benchmark B,...] [--store FILE]

For each method, benchmark and scenario the grid below is trained with ``cclfp run --validation`` on seeds that no
reported number uses, and the settings with the best mean accuracy are taken. The runs are kept in the store, so that a
search that was stopped goes on. What the presets then give on the test set is measured by measure_presets.py.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path

import cclfp
from cclfp.files import write_atomic
from cclfp.methods import METHODS
from cclfp.presets import Preset, find_preset, presets
from cclfp.streams import BENCHMARKS

FILE = Path(__file__).parents[1] / "src" / "cclfp" / "presets.json"
SEEDS = [100, 101]
GRIDS: dict[str, dict[str, list[float]]] = {
    "joint": {"lr": [0.03, 0.1, 0.3]},
    "finetune": {"lr": [0.01, 0.03, 0.1]},
    "si": {"lr": [0.03, 0.1], "c": [0.3, 1.0, 3.0], "xi": [0.01, 0.1]},
    "lwf": {"lr": [0.03, 0.1], "lambda_o": [0.3, 1.0, 3.0]},
    "er": {"lr": [0.03, 0.1, 0.3]},
    "gem": {"lr": [0.003, 0.01, 0.03, 0.1], "gamma": [0.5, 1.0]},
    "a-gem": {"lr": [0.01, 0.03, 0.1, 0.3]},
    "icarl": {"lr": [0.03, 0.1, 0.3, 1.0]},
    "fdr": {"lr": [0.03, 0.1], "alpha": [0.3, 1.0, 3.0]},
    "hal": {"lr": [0.01, 0.03, 0.1], "lam": [0.03, 0.1, 0.3], "anchor_lr": [1.0]},  # lam lr^3 above 1e-4 diverges
    "ccl-fp": {"lr": [0.1], "w": [0.3, 0.5, 0.7], "alpha": [0.1, 0.5, 1.0]},
    "ccl-fp+": {"lr": [0.1], "w": [0.3, 0.5, 0.7], "alpha": [0.1, 0.5], "beta": [0.01, 0.1, 0.5, 1.0]},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default=",".join(GRIDS))
    parser.add_argument("--benchmark", default="split-mnist,permuted-mnist,rotated-mnist")
    parser.add_argument("--store", type=Path, default=Path("choose_presets.sqlite"))
    arguments = parser.parse_args()
    for benchmark in arguments.benchmark.split(","):
        for scenario in BENCHMARKS[benchmark].scenarios:
            for method in arguments.method.split(","):
                if scenario in METHODS[method].scenarios():
                    _choose(method, benchmark, scenario, arguments.store)


def _choose(method: str, benchmark: str, scenario: str, store: Path) -> None:
    grid = GRIDS[method]
    results = cclfp.run(
        method, benchmark, scenario=scenario, seeds=SEEDS, validation=True, store=store, settings={**grid}
    )
    scored = [(result.mean_std("average_accuracy")["mean"] or 0.0, result) for result in results]
    accuracy, best = max(scored, key=lambda pair: pair[0])
    searched = ", ".join(f"{name} from {' '.join(f'{v:g}' for v in values)}" for name, values in grid.items())
    chosen = f"on held-out training data, seeds {' and '.join(map(str, SEEDS))}: {searched}"
    c = best.configuration
    print(f"{accuracy:.2f} {method} {benchmark} {scenario} {c.hyperparameters}", flush=True)
    old = find_preset(method, benchmark, scenario)
    if old is not None and old.hyperparameters == c.hyperparameters:
        preset = dataclasses.replace(old, chosen=chosen)  # what it was measured to give stays true
    else:
        preset = Preset(method, benchmark, scenario, c.hyperparameters, c.augment, chosen, 0.0, None, 0, 0.0, "")
    key = (method, benchmark, scenario)
    others = [p for p in presets() if (p.method, p.benchmark, p.scenario) != key]
    text = json.dumps([dataclasses.asdict(p) for p in [*others, preset]], indent=2) + "\n"
    write_atomic(FILE, lambda file: file.write(text.encode()))
    presets.cache_clear()


if __name__ == "__main__":
    main()
