"""What the nodes of a cluster are doing, and how fast all runs are trained together."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable

from cclfp.metrics import count_of

WINDOW = 15.0  # seconds over which the speed is measured


class Nodes:
    """Which cohorts each node trains."""

    def __init__(self) -> None:
        self.cohorts: dict[str, list[set[str]]] = {}  # by node: the keys of the runs of each cohort

    def place(self, keys: Iterable[str], node: str) -> None:
        """A cohort is trained on a node now; its runs may have been on another before."""
        cohort = set(keys)
        for key in cohort:
            self.remove(key)
        self.cohorts.setdefault(node, []).append(cohort)

    def remove(self, key: str) -> None:
        """A run has ended."""
        for node, cohorts in list(self.cohorts.items()):
            for cohort in cohorts:
                cohort.discard(key)
            self.cohorts[node] = [cohort for cohort in cohorts if cohort]

    def keys(self, node: str) -> list[str]:
        """The runs that a node trains."""
        return [key for cohort in self.cohorts[node] for key in cohort]

    def describe(self, most: int) -> str:
        """How many cohorts each node trains.

        >>> nodes = Nodes()
        >>> nodes.place(["run 1", "run 2"], "a")
        >>> nodes.place(["run 3"], "a")
        >>> nodes.place(["run 4"], "b")
        >>> nodes.describe(most=5)
        'a: 2 cohorts, b: 1 cohort'
        """
        counts = {node: len(cohorts) for node, cohorts in self.cohorts.items() if cohorts}
        shown = [f"{node}: {count_of(count, 'cohort')}" for node, count in list(counts.items())[:most]]
        return ", ".join(shown) + (f" and {len(counts) - most} more nodes" if len(counts) > most else "")


class StepRate:
    """Replica-steps per second, of all runs together."""

    def __init__(self) -> None:
        self.last: dict[str, int] = {}  # each run's newest step
        self.total = 0
        self.samples: deque[tuple[float, int]] = deque()

    def add(self, key: str, step: int) -> None:
        """Count the steps of a run since its last event. A run that starts again, or late, counts from there."""
        self.total += max(0, step - self.last.get(key, step))
        self.last[key] = step
        now = time.monotonic()
        self.samples.append((now, self.total))
        while len(self.samples) > 2 and now - self.samples[1][0] > WINDOW:
            self.samples.popleft()

    @property
    def per_second(self) -> float | None:
        if len(self.samples) < 2 or self.samples[-1][0] <= self.samples[0][0]:
            return None
        (began, first), (ended, last) = self.samples[0], self.samples[-1]
        return (last - first) / (ended - began)
