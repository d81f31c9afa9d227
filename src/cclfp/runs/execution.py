"""How and where runs are trained, and where their results are kept. None of it is part of a run's key.

The command reads the help of the fields from here, so torch is imported where it is needed.
"""

from __future__ import annotations

import copy
import dataclasses
import importlib.util
import numbers
import os
import re
import sys
from pathlib import Path
from typing import Any, cast

from cclfp.core.arguments import check_whole
from cclfp.core.workers import cores
from cclfp.errors import InputError, unknown
from cclfp.runs.problem import documented, option

ENGINES = {"eager": ("cpu", "cuda"), "traced": ("cpu",), "graph": ("cuda",)}  # and the devices they are for
GONE = "compiled"  # an engine of earlier versions
PRECISIONS = ("float32", "tf32", "bf16")
DEVICES = ("cpu", "cuda")
NAMES = {"engine": ("auto", *ENGINES), "precision": ("auto", *PRECISIONS), "other_code": ("use", "retrain")}
MADE_WITH = ("engine", "precision", "device", "threads")  # what records and checkpoints say about a training
PATHS = ("store", "save", "checkpoints")


@documented
@dataclasses.dataclass(frozen=True)
class Execution:
    """How and where runs are trained, and where their results are kept. Wrong values are refused at once."""

    device: str = option(
        "auto",
        "Where to train. All GPUs are used, unless some are named by number (cuda:0,2).",
        "auto|cpu|cuda|cuda:I,J",
    )
    engine: str = option(
        "auto",
        "How to train. eager: one run after the other in plain PyTorch; traced: many runs as one network, with the "
        "same numbers (CPU); graph: many runs in one CUDA graph, whose rounding differs. auto is traced on the CPU, "
        "but eager for networks with BatchNorm, and graph on CUDA.",
        "ENGINE",
    )
    precision: str = option(
        "auto", "What psi is computed in. By default tf32 on CUDA, float32 on the CPU.", "auto|float32|tf32|bf16"
    )
    threads: int = option(1, "CPU threads per run; runs are trained side by side on the cores.")
    store: Path = option(None, "The file that keeps run records. By default CCLFP_HOME/runs.sqlite.")
    save: Path | None = option(None, "Write each trained learner there, for cclfp.load.", "DIR")
    force: bool = option(False, "Replace learners that have learned more since their run, and files of other programs.")
    fresh: bool = option(False, "Train again what the store has, all of it even if this command was stopped before.")
    other_code: str = option(
        "use",
        "What to do with runs in the store that other code of cclfp made, such as an earlier version: show them with a "
        "mark, or train them again in their place.",
        "use|retrain",
    )
    checkpoint_every: float = option(30.0, "Least time between two checkpoints; they come at a task's end.", "SECONDS")
    checkpoints: Path | None = option(
        None,
        "Where checkpoints are kept; on a cluster, a folder that all nodes share. By default beside the store.",
        "DIR",
    )
    on: str = option(
        "local",
        "This machine, or a Ray cluster (pip install 'cclfp[ray]'). ray is the cluster that RAY_ADDRESS names.",
        "local|ray|ray:ADDRESS",
    )
    gpus_per_cohort: float | None = option(
        None, "The share of a GPU that runs trained together get, such as 0.5. By default a whole one.", "SHARE"
    )
    shard: str | None = option(
        None,
        "Train only the I-th of N parts of what the store lacks, into shard-I-of-N.sqlite beside it. cclfp runs import "
        "shard-* puts the parts together.",
        "I/N",
    )

    def __post_init__(self) -> None:
        """Check all that can be known here: what a Ray cluster has is known when it is reached."""
        from cclfp.runs.store import default_store

        seconds, share = cast(Any, self.checkpoint_every), cast(Any, self.gpus_per_cohort)
        paths = {name: getattr(self, name) for name in PATHS}
        paths["store"] = default_store() if paths["store"] is None else paths["store"]
        is_share = share is None or (isinstance(share, numbers.Real) and 0 < float(share) <= 1)
        for name, fine, expected in (
            ("checkpoint_every", isinstance(seconds, numbers.Real) and float(seconds) >= 0, "seconds, 0 or more"),
            ("gpus_per_cohort", is_share, "more than 0 and at most 1, the share of one GPU"),
            ("force", isinstance(self.force, bool), "True or False"),
            ("fresh", isinstance(self.fresh, bool), "True or False"),
            *((name, isinstance(path, str | os.PathLike | None), "a path") for name, path in paths.items()),
        ):
            if not fine:
                raise InputError(f"{name}={getattr(self, name)!r}: expected {expected}")
        again = "fresh" if self.fresh else "other_code=retrain" if self.other_code == "retrain" else ""
        if self.part is not None and again:
            raise InputError(f"{again} does not go with shard: use an empty store")
        if self.engine == GONE:
            raise InputError(f"there is no engine {GONE!r} any more: traced has taken its place")
        for name, known in NAMES.items():
            if getattr(self, name) not in known:
                raise unknown(name, str(getattr(self, name)), known)
        vars(self).update(  # paths may be given as strings, numbers as numpy's, the device as torch's
            {name: None if path is None else Path(path) for name, path in paths.items()},
            device=str(self.device),
            threads=check_whole("threads", self.threads, at_least=1),
            checkpoint_every=float(seconds),
            gpus_per_cohort=None if share is None else float(share),
        )
        if self.ray_address is None:
            self.check_on(pick_device(self.device))
            if self.threads > cores():
                raise InputError(f"threads={self.threads}: this process may use {cores()} cores")
        elif self.device not in ("auto", *DEVICES):
            raise InputError(f"device {self.device!r} with on={self.on!r}: expected auto, cpu or cuda on Ray")
        elif "ray" not in sys.modules and importlib.util.find_spec("ray") is None:  # it is not imported yet
            raise InputError(f"on={self.on!r} needs Ray: pip install 'cclfp[ray]'")

    def check_on(self, device: str) -> None:
        """Refuse an engine or a precision that is not for this device, cpu or cuda."""
        devices = ENGINES.get(self.engine, DEVICES)
        if device not in devices:
            raise InputError(f"engine {self.engine} is for device {devices[0]}, not {device}: auto picks what there is")
        if device != "cuda" and self.precision not in ("auto", "float32"):
            raise InputError(f"precision {self.precision} needs a CUDA device: on the cpu there is float32")

    def concrete(self) -> Execution:
        """The same with a device and a precision. The engine stays ``"auto"`` where it is still to be chosen."""
        device = pick_device(self.device)
        usual = "tf32" if device == "cuda" else "float32"
        return self.unchecked(device=device, precision=usual if self.precision == "auto" else self.precision)

    def unchecked(self, **changes: Any) -> Execution:
        """The same with other values, which may be those of another machine."""
        changed = copy.copy(self)
        vars(changed).update(changes)
        return changed

    @property
    def made_with(self) -> dict[str, Any]:
        """What records and checkpoints say about a training."""
        return {name: getattr(self, name) for name in MADE_WITH}

    @property
    def ray_address(self) -> str | None:
        """The address of a Ray cluster; empty for ``on="ray"``, None for ``on="local"``."""
        kind, colon, address = str(self.on).partition(":")
        if self.on == "local":
            return None
        if kind != "ray" or (colon and not address.strip()) or "//" in address:
            raise InputError(f"on={self.on!r}: expected local, ray or ray:ADDRESS, such as ray:10.0.0.1:6379")
        return address

    @property
    def checkpoint_folder(self) -> Path:
        """The folder of the checkpoints of unfinished runs."""
        beside_store = self.store.with_name(self.store.name + ".checkpoints")
        return beside_store if self.checkpoints is None else self.checkpoints

    @property
    def part(self) -> tuple[int, int] | None:
        """The two numbers of the shard ``I/N``; None without."""
        if self.shard is None:
            return None
        match = re.fullmatch(r"(\d{1,5})/(\d{1,5})", str(self.shard), re.ASCII)
        number, count = map(int, match.groups()) if match else (0, 0)
        if not 1 <= number <= count:
            expected = "I/N with I from 1 to N, such as 2/3 for the second of three parts"
            raise InputError(f"shard={self.shard!r}: expected {expected}")
        return number, count

    @property
    def target(self) -> Path:
        """Where records are written: those of a shard into ``shard-2-of-3.sqlite``, beside the store that all read."""
        return self.store if self.part is None else self.store.with_name("shard-{}-of-{}.sqlite".format(*self.part))


# -- devices ------------------------------------------------------------------------------------------------------


def pick_device(wanted: str) -> str:
    """The kind of device, cpu or cuda; ``auto`` is cuda where there is one. Wrong values are refused."""
    return "cuda" if pick_cards(wanted) else "cpu"


def pick_cards(wanted: str) -> list[int]:
    """The numbers of the GPUs to train on: all that this process sees, or those that are named; none for the CPU."""
    import torch

    if wanted == "cpu":
        return []
    found = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    if wanted == "auto":
        return found
    if not re.fullmatch(r"cuda(:\d+(,\d+)*)?", str(wanted), re.ASCII):
        raise InputError(f"device {wanted!r}: expected auto, cpu, cuda, or GPUs by number such as cuda:0,2")
    cards = [int(number) for number in re.findall(r"\d+", wanted)] or found
    if not cards or set(cards) - set(found) or len(set(cards)) < len(cards):
        seen = f"finds {len(found)}, numbered from 0" if found else "finds no CUDA device on this machine"
        raise InputError(f"device {wanted!r}: expected GPUs of this machine, each once, but torch {seen}")
    return cards


def visible_as(card: int) -> str:
    """The value of ``CUDA_VISIBLE_DEVICES`` with which another process sees this GPU alone.

    The variable may already restrict what this process sees, and its entries may be names.
    """
    visible = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return visible[card] if visible else str(card)
