"""The hash of the code that trains: what changes it, and what does not."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from cclfp.runs.environment import PACKAGE, TRAINS, code, without_prose

SOURCE = '''
"""A module."""

class Mean:
    """Of numbers."""

    def take(self, numbers, *, skip=0):
        """The mean of the numbers, without the first ones."""
        chosen = numbers[skip:]
        try:
            return sum(chosen) / len(chosen)
        except ZeroDivisionError:
            return None  # there are none
'''


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"""Of numbers."""\n', ""),
        ("# there are none", ""),
        ("\nclass Mean", "\n# A comment above a class.\n\n\nclass Mean"),
        ("return sum(chosen) / len(chosen)", "return sum(\n                chosen\n            ) / len(chosen)"),
        ('"""The mean of the numbers, without the first ones."""', '"""Something else."""'),
    ],
)
def test_prose_does_not_change_it(old: str, new: str) -> None:
    assert old in SOURCE
    changed = SOURCE.replace(old, new if old != '"""Of numbers."""\n' else "")
    assert without_prose(changed) == without_prose(SOURCE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("skip=0", "skip=1"),
        ("*, skip", "skip"),
        ("/ len", "// len"),
        ("        chosen = numbers[skip:]\n        try:\n", "        try:\n            chosen = numbers[skip:]\n"),
        ("ZeroDivisionError", "ValueError"),
        ("return None", "return 0"),
    ],
)
def test_what_changes_behaviour_changes_it(old: str, new: str) -> None:
    assert old in SOURCE
    assert without_prose(SOURCE.replace(old, new)) != without_prose(SOURCE)


def test_it_is_the_same_in_every_process() -> None:
    show = "from cclfp.runs.environment import code; print(code()['source'])"
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run([sys.executable, "-c", show], env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == code()["source"]


def test_it_covers_what_trains_and_not_what_shows() -> None:
    covered = {file.relative_to(PACKAGE).as_posix() for part in TRAINS for file in PACKAGE.glob(part)}
    for name in ("losses.py", "methods/er.py", "engine/cohort.py", "nets/network.py", "learner/learner.py"):
        assert name in covered
    assert not [name for name in covered if name.startswith(("report/", "cli/", "paper/"))]
