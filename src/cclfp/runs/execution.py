"""How runs are trained and where their results are kept. None of it is part of a run's key."""

from __future__ import annotations

import dataclasses
import numbers
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from cclfp.core.checks import check_whole
from cclfp.core.machine import cores
from cclfp.engine.choice import ENGINES, Engine
from cclfp.engine.precision import pick_precision
from cclfp.errors import InputError, unknown
from cclfp.runs.environment import pick_device
from cclfp.runs.store import default_store


@dataclasses.dataclass(frozen=True)
class Execution:
    """How and where runs are trained, and where their results are kept. Wrong values are refused at once.

    Parameters
    ----------
    device
        ``"cpu"``, ``"cuda"``, or ``"auto"``: CUDA where there is a device.
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
    checkpoint_every
        Seconds between two checkpoints, which are written at the end of a task.
    """

    device: str = "auto"
    engine: str = "auto"
    precision: str = "auto"
    threads: int = 1
    store: Path = dataclasses.field(default_factory=default_store)
    save: Path | None = None
    fresh: bool = False
    checkpoint_every: float = 30.0

    def __post_init__(self) -> None:
        device = pick_device(self.device)
        if self.engine not in ("auto", *ENGINES):
            raise unknown("engine", str(self.engine), ("auto", *ENGINES))
        for name, where in (("compiled", "cpu"), ("graph", "cuda")):
            if self.engine == name and device != where:
                raise InputError(f"engine {name} is for device {where}, not {device}: auto picks what there is")
        pick_precision(self.precision, device)
        threads, seconds = check_whole("threads", self.threads, at_least=1), cast(Any, self.checkpoint_every)
        if threads > cores():
            raise InputError(f"threads={threads}: this process may use {cores()} cores")
        if not isinstance(seconds, numbers.Real) or not float(seconds) >= 0:
            raise InputError(f"checkpoint_every={seconds!r}: expected a number of seconds, 0 or more")
        if not isinstance(self.fresh, bool):
            raise InputError(f"fresh={self.fresh!r}: expected True or False")
        plain = {  # paths may be given as strings, numbers as numpy's
            "threads": threads,
            "checkpoint_every": float(seconds),
            "store": default_store() if self.store is None else Path(self.store),
            "save": None if self.save is None else Path(self.save),
        }
        for name, value in plain.items():
            object.__setattr__(self, name, value)

    def start_with(self) -> Engine:
        """The engine that a run starts with; its name is ``"auto"`` where it is still to be chosen."""
        device = pick_device(self.device)
        return Engine(self.engine, pick_precision(self.precision, device), self.threads, device)

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "store": str(self.store), "save": None if self.save is None else str(self.save)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Execution:
        """From fields by name, those that are missing at their defaults."""
        return cls(**values)


FIELDS = frozenset(field.name for field in dataclasses.fields(Execution))


def split_options(execution: Execution | None, options: Mapping[str, Any]) -> tuple[Execution, dict[str, Any]]:
    """Split keyword options into an execution, made of those that are its fields, and the others."""
    given = {name: value for name, value in options.items() if name in FIELDS}
    if execution is not None and not isinstance(execution, Execution):
        raise InputError(f"execution={execution!r}: expected a cclfp.Execution")
    if execution is not None and given:
        raise InputError(f"give {', '.join(given)} as part of execution, not beside it")
    others = {name: value for name, value in options.items() if name not in FIELDS}
    return Execution.from_dict(given) if execution is None else execution, others


def check_folder(folder: Path) -> Path:
    """A folder that can be written to; it is created where it does not exist."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        raise InputError(f"learners cannot be saved in {folder}: {error}") from error
