"""Writes RELIABILITY.md: what was tried, the outcome, and what is promised."""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from cclfp._version import __version__
from cclfp.core.workers import cores
from cclfp.runs.code import commit, device_name
from torture.campaign import FINE, Kind, Outcome, Verdict

Facts = dict[str, Any]

LEAST_KILLS, LEAST_FILES = 300, 3_000  # the minimum of a full campaign

NAMES = {
    Verdict.WRONG: ("wrong result", "wrong results"),
    Verdict.TRACEBACK: ("traceback", "tracebacks"),
    Verdict.EXECUTED: ("executed", "executed"),
    Verdict.LOST: ("lost", "lost"),
    Verdict.LEFT_BEHIND: ("left behind", "left behind"),
    Verdict.HANG: ("hang", "hangs"),
}  # of failures, singular and plural
TEMPLATE = Path(__file__).with_name("reliability.md")


def facts(seed: int, seconds: float, kinds: Sequence[Kind], outcomes: Sequence[Outcome]) -> Facts:
    """Everything that the report says about a campaign, without host names and paths."""
    rows: list[dict[str, Any]] = []
    for kind in kinds:
        mine = [outcome for outcome in outcomes if outcome.kind == kind.id]
        tries: Counter[str] = Counter()
        for outcome in mine:
            tries.update(outcome.tries)
        verdicts = Counter(outcome.verdict for outcome in mine)
        rows.append({"group": kind.group, "name": kind.name, "cases": len(mine), "verdicts": verdicts, "tries": tries})
    return {
        "seed": seed,
        "seconds": round(seconds),
        "version": __version__,
        "commit": commit(),
        "machine": {
            "processor": device_name("cpu"),
            "cores": cores(),
            "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
            "kernel": f"{platform.system()} {platform.release()}",
            "python": platform.python_version(),
            "torch": str(torch.__version__),
        },
        "kinds": rows,
        "failures": [vars(outcome) for outcome in outcomes if outcome.verdict not in FINE],
    }


def kills(facts: Facts) -> int:
    """The number of kills."""
    words = ("at a file operation", "at a random time", "killed")
    return sum(
        count
        for row in facts["kinds"]
        if row["group"] in ("kills", "writers")
        for what, count in row["tries"].items()
        if any(word in what for word in words)
    )


def hostile_files(facts: Facts) -> int:
    return sum(sum(row["tries"].values()) for row in facts["kinds"] if row["group"] in ("files", "planted"))


def shortfall(facts: Facts) -> str:
    """What a full campaign has too few of; empty if it has enough."""
    found = ((kills(facts), LEAST_KILLS, "kills"), (hostile_files(facts), LEAST_FILES, "hostile files"))
    return " and ".join(f"{count:,} {what}, not {least:,}" for count, least, what in found if count < least)


def failures(facts: Facts) -> str:
    """How often each kind of failure occurred, including those that did not."""
    counts = Counter(failure["verdict"] for failure in facts["failures"])
    return ", ".join(f"{counts[verdict]:,} {NAMES[verdict][counts[verdict] != 1]}" for verdict in NAMES)


def summary(facts: Facts) -> str:
    """The outcome as text, with one line per kind."""
    lines = [
        f"{row['group']}/{row['name']}: {_counts(row['verdicts'])} ({_counts(row['tries'])})" for row in facts["kinds"]
    ]
    lines += [f"{sum(row['cases'] for row in facts['kinds']):,} cases in {facts['seconds']} s, seed {facts['seed']}: "]
    lines[-1] += f"{kills(facts):,} kills, {hostile_files(facts):,} hostile files; {failures(facts)}"
    return "\n".join(lines)


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {what}" for what, count in sorted(counts.items(), key=lambda item: -item[1])) or "none"


def render(facts: Facts) -> str:
    """The text of RELIABILITY.md, from its template."""
    tables = {row["group"]: _table([r for r in facts["kinds"] if r["group"] == row["group"]]) for row in facts["kinds"]}
    text = TEMPLATE.read_text(encoding="utf-8")
    for name, part in {**tables, "campaign": _campaign(facts)}.items():
        text = text.replace(f"{{{name}}}", part)
    return text


def _campaign(facts: Facts) -> str:
    machine = facts["machine"]
    cases = sum(row["cases"] for row in facts["kinds"])
    lines = [
        f"**{cases:,} cases with {kills(facts):,} kills and {hostile_files(facts):,} hostile files: "
        f"{failures(facts)}.**",
        f"Version {facts['version']}, commit `{facts['commit']}`, seed {facts['seed']}, "
        f"{facts['seconds'] / 60:.0f} minutes on {machine['cores']} cores "
        f"({machine['processor']}), {machine['memory']} of memory, {machine['kernel']},",
        f"Python {machine['python']}, torch {machine['torch']}. "
        f"`make torture TORTURE_SEED={facts['seed']}` draws the same cases; their number within the",
        "time limit and the exact times of the kills depend on the machine.",
    ]
    return "\n".join(lines)


def _table(rows: Sequence[dict[str, Any]]) -> str:
    """A table with one row per kind: the number of cases, their outcomes, and what was done."""
    columns = [v for v in Verdict if v in FINE[:2] or any(row["verdicts"].get(v) for row in rows)]
    head = [
        f"| | cases | {' | '.join(columns)} | failed | what was done |",
        "|---|---:|" + "---:|" * (len(columns) + 1) + "---|",
    ]
    lines = [
        f"| {row['name']} | {row['cases']:,} | "
        + " | ".join(f"{row['verdicts'].get(verdict, 0):,}" for verdict in columns)
        + f" | {sum(n for verdict, n in row['verdicts'].items() if verdict not in FINE)} | {_counts(row['tries'])} |"
        for row in rows
    ]
    return "\n".join(head + lines)
