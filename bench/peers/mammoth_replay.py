"""Train Mammoth's `er` on the job of job.py with its own command, and print its speed and accuracy.

    bench/peers/.venv/bin/python bench/peers/mammoth_replay.py ARRAYS MAMMOTH [--seeds 5]

MAMMOTH is a checkout of its repository. Several seeds are trained one after the other, each by a command of its own.
"""

from __future__ import annotations

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
from job import BATCH, LR, MEMORY, Clock, declare_operators, parse, parser, show

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


def watch(model: Any, clock: Clock) -> None:
    """Count the steps of a class of models, and the seconds in which they are taken."""
    observe, begin, end = model.observe, model.meta_begin_task, model.meta_end_task

    def counted(*arguments: Any, **options: Any) -> Any:
        clock.steps += 1
        return observe(*arguments, **options)

    def begun(*arguments: Any, **options: Any) -> Any:
        clock.seconds -= time.perf_counter()
        return begin(*arguments, **options)

    def ended(*arguments: Any, **options: Any) -> Any:
        result = end(*arguments, **options)
        clock.seconds += time.perf_counter()
        return result

    model.observe, model.meta_begin_task, model.meta_end_task = counted, begun, ended


def run(mammoth: Path, arrays: Path, seed: int) -> Clock:
    """Train one seed in this process."""
    torch.set_num_threads = lambda number: None  # type: ignore[assignment]  # its main.py asks for two, on one core
    declare_operators()
    sys.modules["open_clip"] = MagicMock()  # its datasets, which are all imported, would download weights with it
    os.chdir(mammoth)
    sys.path.insert(0, str(mammoth))
    clock, printed = Clock(), io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(printed):
        write_mnist(arrays, Path(folder))
        watch(importlib.import_module("models.er").Er, clock)
        given = ["--model", "er", "--dataset", "seq-mnist", "--buffer_size", str(MEMORY), "--lr", str(LR)]
        given += ["--batch_size", str(BATCH), "--minibatch_size", str(BATCH), "--n_epochs", "1", "--num_workers", "0"]
        given += ["--seed", str(seed), "--base_path", f"{folder}/", "--non_verbose", "1"]
        sys.argv = ["main.py", *given]
        runpy.run_path("main.py", run_name="__main__")
    clock.accuracy = float(re.findall(r"Accuracy for 5 task\(s\):\s+\[Class-IL\]: ([\d.]+)", printed.getvalue())[-1])
    return clock


def run_in_process(mammoth: Path, arrays: Path, seed: int) -> Clock:
    """Train one seed in a process of its own."""
    command = [sys.executable, "-W", "ignore", __file__, str(arrays), str(mammoth), "--seed", str(seed)]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    clock, found = Clock(), json.loads(printed.splitlines()[-1])
    clock.steps, clock.seconds, clock.accuracy = (
        found[name] for name in ("steps", "training_seconds", "average_accuracy")
    )
    return clock


def main() -> None:
    made = parser(__doc__)
    made.add_argument("mammoth", type=Path, help="the folder of Mammoth's main.py")
    made.add_argument("--seed", type=int, help="this seed alone")
    arguments = parse(made)
    mammoth, arrays = arguments.mammoth.resolve(), arguments.arrays.resolve()
    if not (mammoth / "main.py").is_file():
        made.error(f"{mammoth} has no main.py")
    version = tomllib.loads((mammoth / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    if arguments.seed is None:
        show("mammoth", version, [run_in_process(mammoth, arrays, seed) for seed in range(arguments.seeds)])
    else:
        show("mammoth", version, [run(mammoth, arrays, arguments.seed)])


if __name__ == "__main__":
    main()
