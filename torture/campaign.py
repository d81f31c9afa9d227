"""The parts that all faults share: kinds of faults, cases with their verdicts, and the loop that runs them.

Each case runs in a process forked from this one, which has already imported torch. This process itself must therefore
never compute anything with torch: a forked copy lacks torch's threads and would hang.
"""

from __future__ import annotations

import ctypes
import dataclasses
import enum
import json
import os
import resource
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

MOST_MEMORY = 12 << 30  # bytes of address space per case, so that a hostile file cannot exhaust the machine


class Verdict(enum.StrEnum):
    """How a case ended."""

    SURVIVED = "survived"  # the result equals that of an undisturbed run
    REFUSED = "refused cleanly"  # a message says what was wrong, and nothing is lost
    SKIPPED = "skipped"  # not possible on this machine
    WRONG = "WRONG RESULT"
    TRACEBACK = "TRACEBACK"
    EXECUTED = "EXECUTED"  # code from a data file
    LOST = "LOST"
    LEFT_BEHIND = "LEFT BEHIND"  # a process or a file
    HANG = "HANG"


FINE = (Verdict.SURVIVED, Verdict.REFUSED, Verdict.SKIPPED)


class Fault(Exception):
    """Ends a case with a verdict."""

    def __init__(self, verdict: Verdict, detail: str) -> None:
        super().__init__(f"{verdict}: {detail}")
        self.verdict, self.detail = verdict, detail


@dataclasses.dataclass
class Case:
    """The inputs of a case."""

    number: int
    random: Random
    folder: Path  # its own empty folder
    material: Path  # the folder that the kind has prepared
    quick: bool = False  # run by the test suite
    tries: Counter[str] = dataclasses.field(default_factory=Counter)  # what was tried -> how often


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of fault, and its share of a campaign."""

    group: str
    name: str
    run: Callable[[Case], Verdict]
    prepare: Callable[[Path], None] | None = None  # creates the material, once per campaign
    material: str = ""  # the name of the material, if kinds share it
    share: float = 1.0  # of the time, relative to the other kinds
    minimum: int = 1  # cases that every campaign runs, however long they take
    quick: int = 1  # cases in the test suite
    most: int | None = None  # number of different cases, if it is limited
    batch: int = 1  # cases per process
    limit: float = 120.0  # seconds per case

    @property
    def id(self) -> str:
        return f"{self.group}/{self.name}".replace(" ", "-")


@dataclasses.dataclass
class Outcome:
    """The outcome of a case."""

    kind: str
    number: int
    verdict: Verdict
    tries: dict[str, int]
    detail: str = ""


@dataclasses.dataclass
class _Running:
    """A process that runs cases."""

    kind: Kind
    numbers: Sequence[int]
    answers: Path
    began: float
    seen: int = 0  # number of answers at the last check
    since: float = 0.0  # when the current case began


class Campaign:
    """Runs cases in separate processes, a few at a time. They use ``folder``, which the caller removes.

    The same seed gives the same cases. Cases that kill after a random time also depend on the machine.
    """

    def __init__(
        self, kinds: Sequence[Kind], seed: int, folder: Path, *, workers: int = 2, quick: bool = False
    ) -> None:
        self.kinds, self.seed, self.folder, self.workers, self.quick = kinds, seed, folder, workers, quick
        self.running: dict[int, _Running] = {}
        self.next = dict.fromkeys((kind.id for kind in kinds), 0)
        self.used = dict.fromkeys((kind.id for kind in kinds), 0.0)

    def prepare(self) -> None:
        """Create the material of all kinds; RuntimeError if that fails."""
        kinds = {kind.material or kind.id: kind for kind in self.kinds if kind.prepare is not None}
        wanted = ((kind, [-1]) for kind in kinds.values())
        failed = [outcome for outcome in self._run_all(wanted) if outcome.verdict not in FINE]
        if failed:
            raise RuntimeError(f"{failed[0].kind} cannot be prepared: {failed[0].detail}")

    def run(self, seconds: float) -> Iterator[Outcome]:
        """Run cases of all kinds until the time is up: each kind in proportion to its share, at least its minimum."""
        return self._run_all(self._schedule(time.monotonic() + seconds))

    def run_cases(self, wanted: Sequence[tuple[Kind, int]]) -> Iterator[Outcome]:
        """Run these cases, each given as a kind and a number."""
        return self._run_all((kind, [number]) for kind, number in wanted)

    def _schedule(self, deadline: float) -> Iterator[tuple[Kind, list[int]]]:
        """The next batch of cases: of the kind that has used the smallest part of its share."""
        while True:
            over = time.monotonic() >= deadline
            open_ = [kind for kind in self.kinds if self.next[kind.id] < self._wanted(kind, over)]
            if not open_:
                return
            kind = min(open_, key=lambda kind: self.used[kind.id] / kind.share)
            first = self.next[kind.id]
            self.next[kind.id] = min(first + kind.batch, self._wanted(kind, over))
            self.used[kind.id] += 0.01  # so that kinds that have used no time yet take turns
            yield kind, list(range(first, self.next[kind.id]))

    def _wanted(self, kind: Kind, over: bool) -> int:
        """How many cases of a kind to run; ``over``: the time is up."""
        if self.quick:
            return kind.quick
        most = sys.maxsize if kind.most is None else kind.most
        return min(kind.minimum, most) if over else most

    def _run_all(self, wanted: Iterator[tuple[Kind, list[int]]]) -> Iterator[Outcome]:
        is_open = True
        while is_open or self.running:
            while is_open and len(self.running) < self.workers:
                following = next(wanted, None)
                is_open = following is not None
                if following is not None:
                    self._start(*following)
            time.sleep(0.02)
            for pid in list(self.running):
                yield from self._collect(pid)

    def _start(self, kind: Kind, numbers: Sequence[int]) -> None:
        answers = self.folder / f"answers-{time.monotonic_ns()}.jsonl"
        answers.touch()
        sys.stdout.flush()
        sys.stderr.flush()
        now = time.monotonic()
        pid = os.fork()
        if pid == 0:
            _run_in_child(self, kind, numbers, answers)
        self.running[pid] = _Running(kind, numbers, answers, now, since=now)

    def _collect(self, pid: int) -> Iterator[Outcome]:
        """The outcomes of a process that has ended; a process that takes too long is killed."""
        running, now = self.running[pid], time.monotonic()
        lines = running.answers.read_bytes().count(b"\n")
        if lines > running.seen:
            running.seen, running.since = lines, now
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended == 0 and now - running.since < running.kind.limit:
            return
        if ended == 0:
            kill_all([*descendants(pid), pid])
            os.waitpid(pid, 0)
        kind, rest = running.kind, list(running.numbers)
        del self.running[pid]
        self.used[kind.id] += now - running.began
        for line in running.answers.read_text(encoding="utf-8").splitlines():
            answer = json.loads(line)
            rest.remove(answer["number"])
            yield Outcome(kind.id, answer["number"], Verdict(answer["verdict"]), answer["tries"], answer["detail"])
        running.answers.unlink()
        if rest:  # the first of them ended the process
            how = f"no answer for {kind.limit:.0f} s" if ended == 0 else f"its process ended ({_status(status)})"
            verdict = Verdict.HANG if ended == 0 else Verdict.TRACEBACK
            yield Outcome(kind.id, rest[0], verdict, {"unknown": 1}, how)
            if rest[1:]:
                self._start(kind, rest[1:])


def _status(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"signal {-code}" if code < 0 else f"code {code}"


def _run_in_child(campaign: Campaign, kind: Kind, numbers: Sequence[int], answers: Path) -> None:
    """Run cases in a forked process, and exit."""
    try:
        os.setsid()
        adopt_orphans()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
        with answers.open("a", encoding="utf-8") as file:
            for number in numbers:
                outcome = _run_case(campaign, kind, number)
                file.write(json.dumps(dataclasses.asdict(outcome)) + "\n")
                file.flush()
    except BaseException:  # noqa: BLE001  whatever it is, the child must not return to the parent's loop
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _run_case(campaign: Campaign, kind: Kind, number: int) -> Outcome:
    """Run one case, or prepare the material of its kind if the number is negative."""
    material = campaign.folder / "material" / (kind.material or kind.id)
    folder = campaign.folder / f"case-{os.getpid()}-{number}"
    folder.mkdir()
    case = Case(number, Random(f"{campaign.seed} {kind.id} {number}"), folder, material, campaign.quick)
    verdict, detail = Verdict.SURVIVED, ""
    try:
        if number < 0 and kind.prepare is not None:
            material.mkdir(parents=True)
            kind.prepare(material)
        else:
            verdict = kind.run(case)
    except Fault as fault:
        verdict, detail = fault.verdict, fault.detail
    except Exception:  # noqa: BLE001  a bug in cclfp or in the campaign: report both
        verdict, detail = Verdict.TRACEBACK, "".join(traceback.format_exc().splitlines(keepends=True)[-8:])
    if orphans := descendants(os.getpid()):
        kill_all(orphans)
        if verdict in FINE:
            verdict, detail = Verdict.LEFT_BEHIND, f"{len(orphans)} processes"
    shutil.rmtree(folder, ignore_errors=True)
    return Outcome(kind.id, number, verdict, dict(case.tries) or {"ended before the fault": 1}, detail)


# -- processes ----------------------------------------------------------------------------------------------------


def libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """Become the parent of orphaned descendants, so that they are found."""
    PR_SET_CHILD_SUBREAPER = 36
    libc().prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(pid: int) -> list[int]:
    """All running descendants of a process, the nearest first."""
    try:  # every thread may have children
        texts = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:
        return []
    children = [child for text in texts for child in map(int, text.split()) if _is_running(child)]
    return children + [below for child in children for below in descendants(child)]


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def kill_all(pids: Sequence[int], number: int = signal.SIGKILL) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
