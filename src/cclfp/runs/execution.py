"""How and where runs are trained, and where their results are kept. None of it is part of a run's key.

The command reads the help of the fields from here, so torch is imported where it is needed.
"""

from __future__ import annotations

import copy
import dataclasses
import importlib.util
import numbers
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, cast

from cclfp.core.workers import cores
from cclfp.errors import InputError, unknown
from cclfp.runs.fields import documented, option

ENGINES = {"eager": ("cpu", "cuda"), "compiled": ("cpu",), "graph": ("cuda",)}  # and the devices they are for
PRECISIONS = ("float32", "tf32", "bf16")
DEVICES = ("cpu", "cuda")
OTHER_CODE = ("use", "retrain")
MADE_WITH = ("engine", "precision", "threads", "device")  # what records and checkpoints say about a training
PATHS = ("store", "save", "checkpoints")
LARGEST_SHARDS = 100_000


@documented()
@dataclasses.dataclass(frozen=True)
class Execution:
    """How and where runs are trained, and where their results are kept. Wrong values are refused at once.

    Parameters
    ----------
    {fields}
    """

    device: str = option(
        "auto",
        "Where to train. All GPUs are used, unless some are named by number (cuda:0,2).",
        "auto|cpu|cuda|cuda:I,J",
    )
    engine: str = option(
        "auto",
        "How to train. eager: one run after the other in plain PyTorch; compiled: many runs as one compiled program "
        "(CPU); graph: many runs in one CUDA graph. The numbers differ in rounding. auto picks what finishes first, "
        "and says which.",
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
        "This machine, or a Ray cluster (pip install 'cclfp[ray]'). ray is the cluster that RAY_ADDRESS names, "
        "otherwise a private one on this machine.",
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
        from cclfp.core.arguments import check_whole
        from cclfp.runs.store import default_store

        threads, seconds = check_whole("threads", self.threads, at_least=1), cast(Any, self.checkpoint_every)
        self._check_place(threads)
        if not isinstance(seconds, numbers.Real) or not float(seconds) >= 0:
            raise InputError(f"checkpoint_every={seconds!r}: expected a number of seconds, 0 or more")
        for name in ("force", "fresh"):
            if not isinstance(getattr(self, name), bool):
                raise InputError(f"{name}={getattr(self, name)!r}: expected True or False")
        if self.other_code not in OTHER_CODE:
            raise unknown("other_code", str(self.other_code), OTHER_CODE)
        share = cast(Any, self.gpus_per_cohort)
        if share is not None and not (isinstance(share, numbers.Real) and 0 < float(share) <= 1):
            raise InputError(f"gpus_per_cohort={share!r}: expected more than 0 and at most 1, the share of one GPU")
        if self.shard is not None:
            parse_shard(self.shard)
        plain: dict[str, Any] = {  # paths may be given as strings, numbers as numpy's
            "threads": threads,
            "checkpoint_every": float(seconds),
            "gpus_per_cohort": None if share is None else float(share),
            **{name: None if (path := getattr(self, name)) is None else Path(path) for name in PATHS},
        }
        plain["store"] = plain["store"] or default_store()
        vars(self).update(plain)

    def _check_place(self, threads: int) -> None:
        """Check what depends on the machine that trains. What a Ray cluster has is not known before it is reached."""
        if self.ray_address is None:
            self.check_on(pick_device(self.device))
            if threads > cores():
                raise InputError(f"threads={threads}: this process may use {cores()} cores")
        else:
            if self.device not in ("auto", *DEVICES):
                raise InputError(f"device {self.device!r} with on={self.on!r}: expected auto, cpu or cuda on Ray")
            self._check_names()
            if "ray" not in sys.modules and importlib.util.find_spec("ray") is None:  # it is not imported yet
                raise InputError(f"on={self.on!r} needs Ray: pip install 'cclfp[ray]'")

    def _check_names(self) -> None:
        for name, known in (("engine", ("auto", *ENGINES)), ("precision", ("auto", *PRECISIONS))):
            if getattr(self, name) not in known:
                raise unknown(name, str(getattr(self, name)), known)

    def check_on(self, device: str) -> None:
        """Refuse an engine or a precision that is not for this device, cpu or cuda."""
        self._check_names()
        devices = ENGINES.get(self.engine, DEVICES)
        if device not in devices:
            raise InputError(f"engine {self.engine} is for device {devices[0]}, not {device}: auto picks what there is")
        if device != "cuda" and self.precision not in ("auto", "float32"):
            raise InputError(f"precision {self.precision} needs a CUDA device: on the cpu there is float32")

    def concrete(self) -> Execution:
        """The same with a device and a precision. The engine stays ``"auto"`` where it is still to be chosen."""
        device = pick_device(self.device)
        usual = "tf32" if device == "cuda" else "float32"
        return self.with_made(device=device, precision=usual if self.precision == "auto" else self.precision)

    def with_made(self, **changes: Any) -> Execution:
        """The same with other values of MADE_WITH, as a checkpoint of another machine may have them: not checked."""
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
        from cclfp.runs.store import checkpoints_of

        return checkpoints_of(self.store) if self.checkpoints is None else self.checkpoints

    def to_dict(self) -> dict[str, Any]:
        paths = {name: None if (path := getattr(self, name)) is None else str(path) for name in PATHS}
        return {**vars(self), **paths}


def parse_shard(shard: str) -> tuple[int, int]:
    """The two numbers of ``I/N``.

    >>> parse_shard("2/3")
    (2, 3)
    """
    parts = [int(part) if part.isascii() and part.isdigit() else 0 for part in str(shard).split("/")]
    if len(parts) != 2 or not 1 <= parts[0] <= parts[1] <= LARGEST_SHARDS:
        raise InputError(f"shard={shard!r}: expected I/N with I from 1 to N, such as 2/3 for the second of three parts")
    return parts[0], parts[1]


def check_folder(folder: Path) -> Path:
    """A folder that can be written to; it is created where it does not exist."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        raise InputError(f"learners cannot be saved in {folder}: {error}") from error


# -- devices ------------------------------------------------------------------------------------------------------


def pick_device(wanted: str) -> str:
    """The kind of device, cpu or cuda; ``auto`` is cuda where there is one. Wrong values are refused."""
    import torch

    from cclfp.core.arguments import check_device

    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if wanted in DEVICES:
        return check_device(wanted).type
    pick_cards(wanted)
    return "cuda"


def pick_cards(wanted: str) -> list[int]:
    """The numbers of the GPUs to train on: all that this process sees, or those that are named; none for the CPU."""
    import torch

    if wanted in ("auto", *DEVICES):
        return list(range(torch.cuda.device_count())) if pick_device(wanted) == "cuda" else []
    kind, colon, listed = str(wanted).partition(":")
    parts = listed.split(",")
    if kind != "cuda" or not colon or not all(part.isascii() and part.isdigit() for part in parts):
        raise InputError(f"device {wanted!r}: expected auto, cpu, cuda, or GPUs by number such as cuda:0,2")
    cards, count = [int(part) for part in parts], torch.cuda.device_count()
    if len(set(cards)) < len(cards):
        raise InputError(f"device {wanted!r}: a GPU is named twice")
    if missing := [card for card in cards if card >= count]:
        found = f"finds {count}, numbered from 0" if count else "finds no CUDA device on this machine"
        raise InputError(f"device {wanted!r}: there is no GPU {missing[0]}, torch {found}")
    return cards


def pick_one_device(wanted: str) -> str:
    """The device of a single learner: cpu, cuda, or a GPU by number such as cuda:2."""
    if wanted in ("auto", *DEVICES):
        return pick_device(wanted)
    card, *others = pick_cards(wanted)
    if others:
        raise InputError(f"device {wanted!r}: a learner is on one device, expected one GPU")
    return f"cuda:{card}"


def visible_as(card: int) -> str:
    """The value of ``CUDA_VISIBLE_DEVICES`` with which another process sees this GPU alone.

    The variable may already restrict what this process sees, and its entries may be names.
    """
    visible = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return visible[card] if visible else str(card)
