"""The learner: a network that trains on batches as they come, and its files."""

from cclfp.learner.learner import Learner
from cclfp.learner.saving import load

make = Learner

__all__ = ["Learner", "load", "make"]
