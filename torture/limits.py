"""Limits on file descriptors, memory and file size: a clean message or the result, and the result without the limit."""

from __future__ import annotations

import math
import resource
from pathlib import Path

from torture.campaign import Case, Verdict
from torture.commands import Command, no_temporaries
from torture.kills import WORKLOADS, Workload, finish, kind_of, start


def run(work: Workload, case: Case) -> Verdict:
    """Run the command with a random limit, then again without."""
    random = case.random
    name, kind, value = random.choice(
        [
            ("descriptors", resource.RLIMIT_NOFILE, len(list(Path("/proc/self/fd").iterdir())) + random.randint(0, 20)),
            ("memory", resource.RLIMIT_AS, _address_space() + int(_spread(random.random(), 1 << 20, 1 << 29))),
            ("file size", resource.RLIMIT_FSIZE, int(_spread(random.random(), 16_000, 2_000_000))),
        ]
    )
    case.tries[name] += 1
    place, expected = start(case)
    ended = Command(work.arguments, place, before=lambda: resource.setrlimit(kind, (value, value))).wait()
    no_temporaries(place)
    finish(work, place, expected)
    return Verdict.REFUSED if ended.code else Verdict.SURVIVED


def _spread(share: float, low: float, high: float) -> float:
    """A value from low to high on a logarithmic scale."""
    return math.exp(math.log(low) + share * (math.log(high) - math.log(low)))


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


KINDS = [
    kind_of("limits", WORKLOADS[name], run, share=0.5, minimum=5, quick=int(name in ("eager training", "import")))
    for name in ("eager training", "export", "import", "report", "import of images")
]
