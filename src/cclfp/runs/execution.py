"""How runs are trained and where their results are kept. None of it is part of a run's key."""

from __future__ import annotations

import dataclasses
import numbers
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from cclfp.core.arguments import check_whole
from cclfp.core.workers import cores
from cclfp.engine.choice import ENGINES, Engine
from cclfp.engine.precision import PRECISIONS, pick_precision
from cclfp.errors import InputError, unknown
from cclfp.runs.devices import pick_device
from cclfp.runs.ray_connection import check_installed
from cclfp.runs.store import checkpoints_of, default_store

LARGEST_SHARDS = 100_000


@dataclasses.dataclass(frozen=True)
class Execution:
    """How and where runs are trained, and where their results are kept. Wrong values are refused at once.

    Parameters
    ----------
    device
        ``"cpu"``, ``"cuda"``, or ``"auto"``: CUDA where there is a device. All GPUs are used; ``"cuda:0,2"`` chooses.
    engine
        ``"eager"`` trains one run after the other in plain PyTorch; on the CPU it gives the same numbers to the last
        bit whatever is trained at the same time. ``"compiled"`` trains many runs as one compiled program, several times
        faster, with numbers that differ in rounding. ``"graph"`` does the same on a GPU. ``"auto"`` chooses the one
        that finishes first.
    precision
        What a GPU computes in: ``"tf32"`` (the default there), ``"bf16"`` or ``"float32"``.
    threads
        CPU threads per run; runs are trained side by side on the cores that are left.
    store
        The file that keeps run records; by default ``CCLFP_HOME/runs.sqlite``.
    save
        A folder to write each trained learner to, for :func:`cclfp.load`.
    fresh
        Train again what the store already has.
    other_code
        What to do with a run in the store that other code of cclfp made, such as an earlier version: ``"use"`` shows
        it, with a mark, ``"retrain"`` trains it again in its place.
    checkpoint_every
        Seconds between two checkpoints, which are written at the end of a task.
    checkpoints
        The folder of checkpoints; by default ``STORE.checkpoints`` beside the store.
    on
        ``"local"``: this machine. ``"ray"``: the Ray cluster that ``RAY_ADDRESS`` names, otherwise a private one on
        this machine. ``"ray:ADDRESS"``: that Ray cluster; ``"ray:auto"`` is the one that this machine belongs to.
    gpus_per_cohort
        The share of a GPU that runs trained together get; by default a whole one.
    shard
        ``"I/N"``: train only the I-th of N parts of what the store lacks, into a store of its own (see
        :func:`cclfp.runs.shards.take_shard`).
    """

    device: str = "auto"
    engine: str = "auto"
    precision: str = "auto"
    threads: int = 1
    store: Path = dataclasses.field(default_factory=default_store)
    save: Path | None = None
    fresh: bool = False
    other_code: str = "use"
    checkpoint_every: float = 30.0
    checkpoints: Path | None = None
    on: str = "local"
    gpus_per_cohort: float | None = None
    shard: str | None = None

    def __post_init__(self) -> None:
        threads, seconds = check_whole("threads", self.threads, at_least=1), cast(Any, self.checkpoint_every)
        self._check_place(threads)
        if not isinstance(seconds, numbers.Real) or not float(seconds) >= 0:
            raise InputError(f"checkpoint_every={seconds!r}: expected a number of seconds, 0 or more")
        if not isinstance(self.fresh, bool):
            raise InputError(f"fresh={self.fresh!r}: expected True or False")
        if self.other_code not in OTHER_CODE:
            raise unknown("other_code", str(self.other_code), OTHER_CODE)
        share = cast(Any, self.gpus_per_cohort)
        if share is not None and not (isinstance(share, numbers.Real) and 0 < float(share) <= 1):
            raise InputError(f"gpus_per_cohort={share!r}: expected more than 0 and at most 1, the share of one GPU")
        if self.shard is not None:
            parse_shard(self.shard)
        plain = {  # paths may be given as strings, numbers as numpy's
            "threads": threads,
            "checkpoint_every": float(seconds),
            "gpus_per_cohort": None if share is None else float(share),
            "store": default_store() if self.store is None else Path(self.store),
            "save": None if self.save is None else Path(self.save),
            "checkpoints": None if self.checkpoints is None else Path(self.checkpoints),
        }
        for name, value in plain.items():
            object.__setattr__(self, name, value)

    def _check_place(self, threads: int) -> None:
        """Check what depends on the machine that trains. What a Ray cluster has is not known before it is reached."""
        if self.ray_address is None:
            check_engine(self.engine, self.precision, pick_device(self.device))
            if threads > cores():
                raise InputError(f"threads={threads}: this process may use {cores()} cores")
        else:
            if self.device not in ("auto", "cpu", "cuda"):
                raise InputError(f"device {self.device!r} with on={self.on!r}: expected auto, cpu or cuda on Ray")
            check_names(self.engine, self.precision)
            check_installed(self.on)

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
        return checkpoints_of(self.store) if self.checkpoints is None else self.checkpoints

    def start_with(self) -> Engine:
        """The engine that a run starts with; its name is ``"auto"`` where it is still to be chosen."""
        device = pick_device(self.device)
        return Engine(self.engine, pick_precision(self.precision, device), self.threads, device)

    def to_dict(self) -> dict[str, Any]:
        paths = {name: None if (path := getattr(self, name)) is None else str(path) for name in PATHS}
        return {**vars(self), **paths}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Execution:
        """From fields by name, those that are missing at their defaults."""
        return cls(**values)


OTHER_CODE = ("use", "retrain")
PATHS = ("store", "save", "checkpoints")


def check_names(engine: str, precision: str) -> None:
    """Refuse the names of engines and precisions that do not exist."""
    if engine not in ("auto", *ENGINES):
        raise unknown("engine", str(engine), ("auto", *ENGINES))
    if precision not in PRECISIONS:
        raise unknown("precision", str(precision), PRECISIONS)


def check_engine(engine: str, precision: str, device: str) -> None:
    """Refuse an engine or a precision that is not for this device, cpu or cuda."""
    check_names(engine, precision)
    for name, where in (("compiled", "cpu"), ("graph", "cuda")):
        if engine == name and device != where:
            raise InputError(f"engine {name} is for device {where}, not {device}: auto picks what there is")
    pick_precision(precision, device)


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
