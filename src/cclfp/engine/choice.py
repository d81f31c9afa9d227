"""What a run is trained with: the engine, the precision, the number of CPU threads and the device."""

from __future__ import annotations

import dataclasses
from typing import Any

from cclfp.core.layouts import check_value
from cclfp.engine.precision import PRECISIONS
from cclfp.errors import DamagedError

ENGINES = ("eager", "compiled", "graph")
DEVICES = ("cpu", "cuda")
MAX_THREADS = 4096  # a checkpoint that asks for more is damaged


@dataclasses.dataclass(frozen=True)
class Engine:
    """How a run is trained. ``name`` may be ``"auto"`` until an engine is chosen: see :meth:`named`.

    >>> engine = Engine("auto", "float32", threads=2, device="cpu").named("compiled")
    >>> engine.to_dict()
    {'engine': 'compiled', 'precision': 'float32', 'threads': 2, 'device': 'cpu'}
    >>> Engine.from_dict(engine.to_dict()) == engine
    True
    """

    name: str  # one of ENGINES, or auto
    precision: str  # one of float32, tf32 and bf16
    threads: int  # of the CPU
    device: str  # cpu or cuda

    @property
    def is_open(self) -> bool:
        """Whether the engine is still to be chosen."""
        return self.name == "auto"

    def named(self, name: str) -> Engine:
        """The same with another engine."""
        return dataclasses.replace(self, name=name)

    def to_dict(self) -> dict[str, Any]:
        """The form in checkpoints and records, where the name is under ``engine``."""
        return {"engine": self.name, "precision": self.precision, "threads": self.threads, "device": self.device}

    @classmethod
    def from_dict(cls, values: Any) -> Engine:
        """What :meth:`to_dict` gave; other entries are ignored. DamagedError where no run is trained with this."""
        check_value("engine", values, dict)
        allowed = {"engine": ENGINES, "precision": tuple(p for p in PRECISIONS if p != "auto"), "device": DEVICES}
        if missing := [name for name in (*allowed, "threads") if name not in values]:
            raise DamagedError(f"engine has no {', '.join(missing)}")
        for name, choices in allowed.items():
            check_value(name, values[name], str)
            if values[name] not in choices:
                raise DamagedError(f"{name} is {values[name]!r}, expected one of {', '.join(choices)}")
        check_value("threads", values["threads"], int, 1, MAX_THREADS)
        if values["device"] == "cpu" and (values["precision"] != "float32" or values["engine"] == "graph"):
            raise DamagedError(f"engine {values['engine']} in {values['precision']} is not for the cpu")
        return cls(values["engine"], values["precision"], values["threads"], values["device"])
