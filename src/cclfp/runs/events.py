"""The events of :mod:`cclfp.events`, by an older name."""

from cclfp.events import *  # noqa: F403
