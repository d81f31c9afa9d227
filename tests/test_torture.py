"""The fault campaign in short: the same cases every time. ``make torture`` is the whole of it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torture.campaign import FINE, Kind, Outcome, Verdict
from torture.kinds import KINDS
from torture.report import LEAST_FILES, LEAST_KILLS, NAMES, TEMPLATE, facts, render, shortfall, summary

ROOT = Path(__file__).parents[1]
GROUPS = list(dict.fromkeys(kind.group for kind in KINDS))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="the campaign needs /proc and fork"),
]


def run_campaign(folder: Path) -> dict[str, Any]:
    """A short campaign, in a process of its own: one that has computed nothing can be forked."""
    file = folder / "facts.json"
    command = [sys.executable, "-m", "torture", "--quick", "--seed", "13", "--json", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert file.exists(), done.stderr
    return {**json.loads(file.read_text()), "code": done.returncode}


def test_nothing_fails(tmp_path: Path) -> None:
    """One test, so that one process runs the campaign, which takes a minute."""
    campaign = run_campaign(tmp_path)
    assert campaign["failures"] == []
    assert campaign["code"] == 0
    for group in GROUPS:
        assert sum(row["cases"] for row in campaign["kinds"] if row["group"] == group) >= 1
    # The command, its workers and all of them are killed.
    (row,) = [row for row in campaign["kinds"] if (row["group"], row["name"]) == ("kills", "training by workers")]
    assert {f"{target} at a random time" for target in ("parent", "worker", "group")} <= row["tries"].keys()


def test_failures_are_seen() -> None:
    """The report says what failed."""
    kind = Kind("files", "stores", lambda case: Verdict.SURVIVED)
    bad = Outcome(kind.id, 0, Verdict.WRONG, {"flipped bits": 1}, "another number")
    text = render(facts(1, 60.0, [kind], [bad]))
    counts = "1 wrong result, 0 tracebacks, 0 executed, 0 lost, 0 left behind, 0 hangs"
    assert f"1 cases with 0 kills and 1 hostile files: {counts}." in text
    assert summary(facts(1, 60.0, [kind], [bad])).endswith(counts)
    assert {*NAMES, *FINE} == set(Verdict)


def test_a_campaign_that_is_too_short_is_seen() -> None:
    kinds = [
        Kind("kills", "export", lambda case: Verdict.SURVIVED),
        Kind("files", "stores", lambda case: Verdict.WRONG),
    ]
    outcomes = [
        Outcome(kinds[0].id, 0, Verdict.SURVIVED, {"parent at a random time": LEAST_KILLS - 1}),
        Outcome(kinds[1].id, 0, Verdict.REFUSED, {"flipped bits": LEAST_FILES}),
    ]
    assert shortfall(facts(1, 60.0, kinds, outcomes)) == "299 kills, not 300"
    outcomes.append(Outcome(kinds[0].id, 1, Verdict.SURVIVED, {"worker at a random time": 1}))
    assert shortfall(facts(1, 60.0, kinds, outcomes)) == ""


def test_the_tests_that_hold_the_defects_exist() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", TEMPLATE.read_text(encoding="utf-8"))
    assert len(named) > 30
    for file, name in named:
        assert f"\ndef {name}(" in (ROOT / file).read_text(encoding="utf-8"), name
