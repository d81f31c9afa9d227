"""Train Mammoth's `er` on our job with its own command, and print its speed and accuracy as one JSON object.

    bench/peers/.venv/bin/python bench/peers/mammoth_replay.py MAMMOTH ARRAYS [--seeds 1]

The job is that of avalanche_replay.py. MAMMOTH is a checkout of Mammoth's repository. ARRAYS is the folder ``arrays``
in what ``cclfp data path mnist`` prints. Runs in the environment that install.sh makes. Several seeds are trained one
after the other, each by a command of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import os
import re
import runpy
import struct
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import torch
from avalanche_replay import BATCH, LR, MEMORY, declare_operators

FILES = {"train": "train", "test": "t10k"}


def write_mnist(arrays: Path, folder: Path) -> None:
    """MNIST in the files that torchvision reads, for its class and for Mammoth's subclass of it."""
    raw = folder / "MNIST" / "MNIST" / "raw"
    raw.mkdir(parents=True)
    (folder / "MNIST" / "MyMNIST").symlink_to("MNIST")
    for part, name in FILES.items():
        images, labels = (np.load(arrays / f"{part}_{what}.npy").astype(np.uint8) for what in ("images", "labels"))
        header = struct.pack(">4I", 0x803, len(images), 28, 28)
        (raw / f"{name}-images-idx3-ubyte").write_bytes(header + images.tobytes())
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 0x801, len(labels)) + labels.tobytes())


class Clock:
    """Counts the training steps, and the seconds in which they are taken; tests are not among them."""

    def __init__(self) -> None:
        self.steps, self.seconds = 0, 0.0

    def watch(self, model: Any) -> None:
        """Count the steps of a class of models."""
        observe, begin, end = model.observe, model.meta_begin_task, model.meta_end_task

        def counted(*arguments: Any, **options: Any) -> Any:
            self.steps += 1
            return observe(*arguments, **options)

        def begun(*arguments: Any, **options: Any) -> Any:
            self.seconds -= time.perf_counter()
            return begin(*arguments, **options)

        def ended(*arguments: Any, **options: Any) -> Any:
            result = end(*arguments, **options)
            self.seconds += time.perf_counter()
            return result

        model.observe, model.meta_begin_task, model.meta_end_task = counted, begun, ended


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mammoth", type=Path, help="the folder of Mammoth's main.py")
    parser.add_argument("arrays", type=Path, help="the folder with train_images.npy and the other arrays")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds, from 0")
    parser.add_argument("--seed", type=int, help="this seed alone")
    arguments = parser.parse_args()
    mammoth, arrays = arguments.mammoth.resolve(), arguments.arrays.resolve()
    if not (mammoth / "main.py").is_file():
        parser.error(f"{mammoth} has no main.py")
    if arguments.seed is None and arguments.seeds > 1:
        print(json.dumps(run_each(mammoth, arrays, arguments.seeds)))
    else:
        print(json.dumps(run(mammoth, arrays, arguments.seed or 0)))


def run_each(mammoth: Path, arrays: Path, seeds: int) -> dict[str, Any]:
    """The totals of several seeds, and their mean accuracy."""
    found = []
    for seed in range(seeds):
        command = [sys.executable, "-W", "ignore", __file__, str(mammoth), str(arrays), "--seed", str(seed)]
        printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        found.append(json.loads(printed.splitlines()[-1]))
    total = {name: sum(one[name] for one in found) for name in ("steps", "seconds")}
    return {
        **found[0],
        **total,
        "seed": list(range(seeds)),
        "steps_per_second": round(total["steps"] / total["seconds"], 1),
        "average_accuracy": sum(one["average_accuracy"] for one in found) / seeds,
    }


def run(mammoth: Path, arrays: Path, seed: int) -> dict[str, Any]:
    """Train one seed in this process."""
    torch.set_num_threads(1)
    torch.set_num_threads = lambda number: None  # type: ignore[assignment]  # its main.py asks for two, on one core
    declare_operators()
    sys.modules["open_clip"] = MagicMock()  # its datasets, which are all imported, would download weights with it
    os.chdir(mammoth)
    sys.path.insert(0, str(mammoth))
    clock, printed = Clock(), io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(printed):
        write_mnist(arrays, Path(folder))
        clock.watch(importlib.import_module("models.er").Er)
        given = ["--model", "er", "--dataset", "seq-mnist", "--buffer_size", str(MEMORY), "--lr", str(LR)]
        given += ["--batch_size", str(BATCH), "--minibatch_size", str(BATCH), "--n_epochs", "1", "--num_workers", "0"]
        given += ["--seed", str(seed), "--base_path", f"{folder}/", "--non_verbose", "1"]
        sys.argv = ["main.py", *given]
        runpy.run_path("main.py", run_name="__main__")
    accuracy = re.findall(r"Accuracy for 5 task\(s\):\s+\[Class-IL\]: ([\d.]+)", printed.getvalue())
    about = tomllib.loads((mammoth / "pyproject.toml").read_text(encoding="utf-8"))
    return {
        "peer": "mammoth",
        "version": about["project"]["version"],
        "seed": seed,
        "threads": torch.get_num_threads(),
        "steps": clock.steps,
        "seconds": round(clock.seconds, 3),
        "steps_per_second": round(clock.steps / clock.seconds, 1),
        "average_accuracy": float(accuracy[-1]),
    }


if __name__ == "__main__":
    main()
