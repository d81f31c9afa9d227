"""The learner: a network that trains on batches as they come, and its files."""

from cclfp.learner.learner import Learner, make
from cclfp.learner.loading import load

__all__ = ["Learner", "load", "make"]
