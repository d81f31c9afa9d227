"""Schedules: how a memory is filled and replayed. A method names one of these classes as its ``schedule``."""

from cclfp.core.schedules import Exemplars, PastRing, Reservoir, Ring, Schedule

__all__ = ["Exemplars", "PastRing", "Reservoir", "Ring", "Schedule"]
