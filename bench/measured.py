"""What bench/measure.py wrote, section by section."""

from __future__ import annotations

import dataclasses
import json
import re
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
    document: dict[str, Any]  # the content of its file
    older: tuple[dict[str, Any], ...] = ()  # those of the files that have its other cases

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

    def peers_of(self, result: Result) -> list[Result]:
        """The whole runs of others with the same method; of the plain loop, those with as many seeds."""
        case = result["case"]
        same = [r for r in self.results if r["case"]["who"] != "cclfp" and r["case"]["method"] == case["method"]]
        return [r for r in same if r["case"]["who"] != "plain" or r["case"]["seeds"] == case["seeds"]]

    @property
    def avalanche(self) -> dict[str, Result]:
        """The results of Avalanche, by the form of its data."""
        return {data: r for data in ("tensors", "images") if (r := self.find(method="avalanche", data=data))}


def read(paths: Iterable[Path], order: Sequence[str]) -> list[Measured]:
    """The newest measurement of every section, device and hardware, with the sections in this order.

    A measurement of some methods only replaces their cases in the one before it.
    """
    found: dict[tuple[str, str, str], Measured] = {}
    documents = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    for document in sorted(documents, key=lambda document: str(document["started_at"])):
        if document["format"] != FORMAT:
            raise SystemExit(f"a file of format {document['format']!r}: expected {FORMAT!r}; measure it again")
        for section in document["sections"]:
            one = Measured(section["name"], section["device"], section["results"], document)
            key = (one.name, one.device, one.hardware)
            if one.results:
                found[key] = _merge(found[key], one) if document.get("method") and key in found else one
    return sorted(found.values(), key=lambda one: order.index(one.name))


def _merge(before: Measured, after: Measured) -> Measured:
    """The cases of both, the later measurement where both have one."""
    new = {json.dumps(r["case"], sort_keys=True): r for r in after.results}
    results = [new.pop(json.dumps(r["case"], sort_keys=True), r) for r in before.results] + list(new.values())
    return dataclasses.replace(after, results=results, older=(*before.older, before.document))


def engine_used(result: Result) -> str:
    """The engine that trained, with a remark where it is not the one that was requested."""
    used, requested = str(result["engine_used"]), str(result["case"]["engine"])
    if used != requested:
        return f"{requested} (continued as {used})"
    return f"{used} (too few steps to compile)" if used == "compiled" and not result["compile_seconds"] else used


def step_rate(result: Result) -> float:
    return 1e3 / float(result["step_ms"])


def whole_ratios(result: Result, other: Result) -> list[float]:
    """How many times the speed of ``other`` the whole runs of a result have, each beside the run at the same turn."""
    theirs = other["runs"]
    pairs = [(run, theirs[min(turn, len(theirs) - 1)]) for turn, run in enumerate(result["runs"])]
    return [ours["whole_rate"] / their["whole_rate"] for ours, their in pairs]


def show_peer(result: Result) -> str:
    """The name of a row of whole runs that is not ours."""
    case, version = result["case"], result["runs"][0]["version"]
    names = {"plain": "a plain PyTorch loop", "avalanche": f"Avalanche {version}", "mammoth": f"Mammoth {version}"}
    return names[case["who"]] + (f", {case['how']}" if case["how"] else "")
