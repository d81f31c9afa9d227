"""Measure every preset and write what it gave into src/cclfp/presets.json.

    .venv/bin/python bench/measure_presets.py [--seeds 5] [--method M,...] [--benchmark B,...] [--missing]

Runs the commands that ``cclfp show METHOD`` lists, in a store of their own: about ten minutes on two cores for
the MNIST streams; the others want a graphics card.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any

import cclfp
from cclfp.files import write_atomic
from cclfp.presets import presets

FILE = Path(__file__).parents[1] / "src" / "cclfp" / "presets.json"


def _hardware(environment: dict[str, Any]) -> str:
    return str(environment["device_name"]) + (", one core a run" if environment["device"] == "cpu" else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--method", default=",".join({preset.method: None for preset in presets()}))
    parser.add_argument("--benchmark", default=",".join({preset.benchmark: None for preset in presets()}))
    parser.add_argument("--missing", action="store_true", help="only presets chosen since they were measured last")
    arguments = parser.parse_args()
    if arguments.seeds < 2:
        parser.error("--seeds: two or more, for a standard deviation")
    measured = [dataclasses.asdict(preset) for preset in presets()]
    with tempfile.TemporaryDirectory() as folder:
        for i, preset in enumerate(presets()):
            wanted = preset.method in arguments.method.split(",") and preset.benchmark in arguments.benchmark.split(",")
            if wanted and not (arguments.missing and preset.seeds):
                (result,) = cclfp.run(
                    preset.method,
                    preset.benchmark,
                    scenario=preset.scenario,
                    seeds=arguments.seeds,
                    store=Path(folder) / "runs.sqlite",
                )
                accuracy = result.mean_std("average_accuracy")
                assert accuracy["mean"] is not None
                assert accuracy["std"] is not None
                preset = dataclasses.replace(
                    preset,
                    accuracy=round(accuracy["mean"], 2),
                    std=round(accuracy["std"], 2),
                    seeds=arguments.seeds,
                    seconds=round(result.mean_std("seconds")["mean"] or 0, 1),
                    hardware=_hardware(result.runs[0]["environment"]),
                )
                measured[i] = dataclasses.asdict(preset)
                write_atomic(FILE, lambda file: file.write((json.dumps(measured, indent=2) + "\n").encode()))
                print(f"{preset.accuracy:.2f} ± {preset.std:.2f}  {preset.command}", flush=True)


if __name__ == "__main__":
    main()
