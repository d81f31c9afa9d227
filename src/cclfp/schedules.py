"""How a memory is filled and replayed: a method names one of these as its ``schedule``."""

from cclfp.core.schedules import Exemplars, PastRing, Reservoir, Ring, Schedule

__all__ = ["Exemplars", "PastRing", "Reservoir", "Ring", "Schedule"]
