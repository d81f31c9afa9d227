"""Measure speed side by side and write the measurements as JSON, from which bench/render.py writes RESULTS.md.

    .venv/bin/python bench/measure.py                                     # everything this machine can: make bench
    .venv/bin/python bench/measure.py --quick --out build/bench/quick.json   # a rough look, five minutes
    python3 bench/measure.py --suite cuda,scaling --device cuda --images random --out h200.json
    python3 bench/measure.py --suite stacked --method hal --device cuda --images random --out h200-hal.json
    git worktree add ../before 4fb7fee && .venv/bin/python bench/measure.py --suite first-run --before ../before

Needs only torch and numpy, with src on PYTHONPATH where cclfp is not installed. ``--images random`` uses random images
of the same shapes and numbers where the datasets are not available; the speed of a step does not depend on the values.

Cases that are compared train in turns of a fraction of a second, whole commands one after the other, so that other load
on the machine slows all of them equally. On a GPU, cases run one after the other. The file is written after every group
of cases.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import platform
import re
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from case import Run
from cluster import measure_cluster
from first_run import JOBS, time_first_runs
from forked import compare_accuracies
from measured import FORMAT
from suites import SECTIONS, Groups, Section

from cclfp import __version__
from cclfp.core.files import write_atomic
from cclfp.core.workers import cores
from cclfp.data import fetch
from cclfp.engine import operations
from cclfp.methods import METHODS
from cclfp.runs.code import commit, device_name

BENCH = Path(__file__).parent
WITHOUT_METHODS = ("cluster", "forked")  # sections whose cases --method does not choose from


def take_turns(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Let all runs work in turns until each is done, and return the measurements of each."""
    done: dict[int, dict[str, Any]] = {}
    while len(done) < len(runs):
        for number, run in enumerate(runs):
            if number not in done and (measured := run.turn()) is not None:
                done[number] = measured
    return [done[number] for number in range(len(runs))]


@contextlib.contextmanager
def left_out(name: str) -> Iterator[None]:
    """Leave out a pass of the clean-up of traced steps, if one is named."""
    with mock.patch.object(operations, name, return_value=None) if name else contextlib.nullcontext():
        yield


def measure(section: Section, device: str, arguments: argparse.Namespace) -> Iterator[list[dict[str, Any]]]:
    """The measurements of the cases of a section, with the cases, one group after the other."""
    methods = arguments.method.split(",") if arguments.method else []
    if section.name in ("forked", "first-run") and arguments.images == "random":
        print("  left out: it trains on the real images", flush=True)
    elif section.name == "forked":
        yield from compare_accuracies(arguments.quick)
    elif section.name == "cluster":
        yield measure_cluster(arguments)
    elif section.name == "first-run":
        fetch("mnist")
        yield from time_first_runs(arguments.quick, arguments.repeats, methods, arguments.before)
    else:
        yield from measure_cases(section.groups(device, arguments.quick), methods, arguments)


def measure_cases(
    groups: Groups, methods: Sequence[str], arguments: argparse.Namespace
) -> Iterator[list[dict[str, Any]]]:
    """The measurements of the cases of these methods, or of all: those of a group in turns on a CPU."""
    for group in groups:
        if not (cases := [case for case in group if not methods or case.method in methods]):
            continue
        runs = [Run(case, arguments.images, arguments.window) for case in cases]
        with left_out(cases[0].without):
            one_by_one = cases[0].device != "cpu"
            measured = [one for run in runs for one in take_turns([run])] if one_by_one else take_turns(runs)
        for case, result in zip(cases, measured, strict=True):
            print(f"  {result['step_ms']:9.4f} ms  {case}", flush=True)
            for note in result.get("notes", []):
                print(f"             {note}", flush=True)
        yield [{"case": case.to_dict(), **result} for case, result in zip(cases, measured, strict=True)]
        del runs
        if cases[0].device == "cuda":
            gc.collect()
            torch.cuda.empty_cache()


def machine() -> dict[str, Any]:
    """The hardware and software of this machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else None
    return {
        "processor": device_name("cpu"),
        "cores": cores(),
        "memory_bytes": memory,
        "gpu": device_name("cuda") if torch.cuda.is_available() else None,
        "cuda": torch.version.cuda if torch.cuda.is_available() else None,
        "platform": platform.platform(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "cclfp": __version__,
        "commit": commit(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,  # of the minute before
    }


def default_file() -> Path:
    name = device_name("cuda" if torch.cuda.is_available() else "cpu")
    return BENCH / "results" / f"{re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-')}.json"


def chosen_sections(suites: Sequence[str], devices: Sequence[str]) -> list[tuple[Section, str]]:
    """The sections, with their devices, of these suites (cpu, cuda, scaling, all) or with these names."""

    def is_wanted(section: Section, device: str) -> bool:
        suite = "scaling" if section.is_scaling else device
        return bool({"all", suite, section.name} & set(suites))

    return [(s, d) for d in devices for s in SECTIONS if d in s.devices and is_wanted(s, d)]


def command_line(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> str:
    """The command that repeats the measurement."""
    given = {**vars(arguments), "before": arguments.before and "CHECKOUT"}
    changed = {name: value for name, value in given.items() if name != "out" and value != parser.get_default(name)}
    options = [f"--{name}" if value is True else f"--{name} {value}" for name, value in changed.items()]
    return " ".join(["python bench/measure.py", *options])


def save(document: dict[str, Any], out: Path) -> None:
    """Write the measurements so far."""
    text = json.dumps(document, indent=1) + "\n"
    write_atomic(out, text.encode())


def main() -> None:
    names = ["all", "cpu", "cuda", "scaling", *dict.fromkeys(section.name for section in SECTIONS)]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", default="all", help=f"which to measure, separated by commas: {', '.join(names)}")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto", help="auto: all of this machine")
    parser.add_argument("--method", default="", help="only the cases of these methods, separated by commas")
    parser.add_argument("--before", type=Path, default=None, help="a checkout of an earlier version, for first-run")
    parser.add_argument("--repeats", type=int, default=3, help="how often whole commands run, for first-run")
    parser.add_argument("--images", choices=["real", "random"], default="real")
    parser.add_argument("--window", type=float, default=0.25, help="seconds; speeds are medians over such windows")
    parser.add_argument("--quick", action="store_true", help="few and short cases, to try the benchmark")
    parser.add_argument("--out", type=Path, default=None, help="default: bench/results/DEVICE.json")
    arguments = parser.parse_args()
    suites = arguments.suite.split(",")
    if unknown := [name for name in suites if name not in names]:
        parser.error(f"--suite {unknown[0]}: expected some of {', '.join(names)}")
    methods = list(dict.fromkeys([*METHODS, *JOBS]))
    if unknown := [name for name in arguments.method.split(",") if name and name not in methods]:
        parser.error(f"--method {unknown[0]}: expected some of {', '.join(methods)}")
    if arguments.before is not None and not (arguments.before / "src" / "cclfp").is_dir():
        parser.error(f"--before {arguments.before}: no checkout, which would have src/cclfp")
    if arguments.method and arguments.out is None:
        parser.error("--method needs --out: the default file may have the cases of the other methods")
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch finds no CUDA device on this machine")
    available = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    devices = available if arguments.device == "auto" else [arguments.device]
    chosen = chosen_sections(suites, devices)
    if arguments.method:
        chosen = [(section, device) for section, device in chosen if section.name not in WITHOUT_METHODS]
    if not chosen:
        some = " whose cases have a method" if arguments.method else ""
        parser.error(f"--suite {arguments.suite}: it has no section for {' or '.join(devices)}{some}")
    out: Path = arguments.out or default_file()

    torch.set_num_threads(1)
    document: dict[str, Any] = {
        "format": FORMAT,
        "command": command_line(arguments, parser),
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "quick": arguments.quick,
        "images": arguments.images,
        **({"method": arguments.method} if arguments.method else {}),
        "machine": machine(),
        "stopped": "before its end",  # until the end
        "sections": [],
    }
    for section, device in chosen:
        print(f"{section.name}, {device}", flush=True)
        began = time.perf_counter()
        done: dict[str, Any] = {"name": section.name, "device": device, "seconds": 0.0, "results": []}
        document["sections"].append(done)
        for results in measure(section, device, arguments):
            done["results"] += results
            done["seconds"] = time.perf_counter() - began
            save(document, out)
        print(f"  {done['seconds']:.0f} s", flush=True)
    del document["stopped"]
    save(document, out)
    print(f"{out}: written", flush=True)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        main()
