"""What bench/measure.py wrote, section by section."""

from __future__ import annotations

import dataclasses
import json
import re
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

FORMAT = "cclfp bench 1"
DEVICES = {"cpu": "CPU", "cuda": "GPU"}
BENCHMARKS = {
    "split-mnist": "Split MNIST",
    "split-cifar10": "Split CIFAR-10",
    "split-tiny-imagenet": "Split Tiny ImageNet",
}

Result = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Measured:
    """A section as one machine measured it on one device."""

    name: str
    device: str
    results: list[Result]
    document: dict[str, Any]  # the content of its newest file
    origins: tuple[dict[str, Any], ...]  # the content of each result's file

    @property
    def hardware(self) -> str:
        return str(self.document["machine"]["gpu" if self.device == "cuda" else "processor"])

    @property
    def chart(self) -> str:
        """The name of its chart, which stays the same when the section is measured again on this hardware."""
        return re.sub(r"[^a-z0-9]+", "-", f"{self.name} {self.device} {self.hardware}".lower()).strip("-")

    def find(self, **wanted: Any) -> Result | None:
        """The first result that has these values, in its case or in what was measured."""
        return next((r for r in self.results if all({**r, **r["case"]}.get(k) == v for k, v in wanted.items())), None)


def read(paths: Iterable[Path], order: Sequence[str]) -> list[Measured]:
    """The newest measurement of every section, device and hardware, with the sections in this order.

    The cases of a measurement of some methods only (``--method``) are put into the one before it, if that had the same
    images.
    """
    found: dict[tuple[str, str, str], Measured] = {}
    documents = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    for document in sorted(documents, key=lambda document: str(document["started_at"])):
        if document["format"] != FORMAT:
            raise SystemExit(f"a file of format {document['format']!r}: expected {FORMAT!r}; measure it again")
        for section in document["sections"]:
            origins = (document,) * len(section["results"])
            one = Measured(section["name"], section["device"], section["results"], document, origins)
            key = (one.name, one.device, one.hardware)
            if one.results:
                found[key] = _merge(found[key], one) if key in found and _completes(document, found[key]) else one
    return sorted(found.values(), key=lambda one: order.index(one.name))


def _completes(document: dict[str, Any], before: Measured) -> bool:
    """Whether it has the cases of some methods only, and was measured like the others."""
    alike = all(document[name] == before.document[name] for name in ("quick", "images"))
    return bool(document.get("method")) and alike


def _merge(before: Measured, after: Measured) -> Measured:
    """The cases of both; where both have one, the later measurement."""
    pairs = [pair for one in (before, after) for pair in zip(one.results, one.origins, strict=True)]
    kept = {_key(result): (result, origin) for result, origin in pairs}
    results, documents = zip(*kept.values(), strict=True)
    return dataclasses.replace(after, results=list(results), origins=documents)


def _key(result: Result) -> str:
    return json.dumps(result["case"], sort_keys=True)


def engine_used(result: Result) -> str:
    """The engine that trained, with a remark where it is not the one that was requested."""
    used, requested = str(result["engine_used"]), str(result["case"]["engine"])
    return used if used == requested else f"{requested} (continued as {used})"


def step_rate(result: Result) -> float:
    return 1e3 / float(result["step_ms"])


def ratio(result: Result, other: Result) -> float:
    """How many times as long another command takes: the median over their repetitions, each of which runs both."""
    return float(
        statistics.median(b["seconds"] / a["seconds"] for a, b in zip(result["runs"], other["runs"], strict=True))
    )


def median(result: Result, field: str) -> float:
    """The median of what was measured of a command."""
    return float(statistics.median(run[field] for run in result["runs"]))
