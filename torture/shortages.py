"""Shortages: disks with little space, and limits on file descriptors, memory and file size.

A command ends with a clean message or its result; without the shortage, the same command gives its result.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
import resource
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from torture.campaign import Case, Fault, Verdict, libc
from torture.commands import Command, no_temporaries
from torture.kills import WORKLOADS, Workload, finish, kind_of, start
from torture.material import copy

NEW_MOUNTS, NEW_USER = 0x00020000, 0x10000000
OUTPUTS = {"eager training": "learners", "report": "report"}  # the output folders of commands


def run_with_limit(work: Workload, case: Case) -> Verdict:
    """Run the command with a random limit, then again without."""
    descriptors, size = len(list(Path("/proc/self/fd").iterdir())), _spread(case.random, 1 << 20, 1 << 29)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    name, kind, value = case.random.choice(
        [
            ("descriptors", resource.RLIMIT_NOFILE, descriptors + case.random.randint(0, 20)),
            ("memory", resource.RLIMIT_AS, pages * resource.getpagesize() + size),
            ("file size", resource.RLIMIT_FSIZE, _spread(case.random, 16_000, 2_000_000)),
        ]
    )
    case.tries[name] += 1
    return _run(work, *start(case), before=lambda: resource.setrlimit(kind, (value, value)))


def run_on_full_disk(work: Workload, case: Case) -> Verdict:
    """Run the command on a disk with little space, then again with enough."""
    where = case.random.choice(["store", "home", *(["output"] if work.name in OUTPUTS else [])])
    place, expected = start(case)
    disk = {"store": place, "home": place / "home", "output": place / OUTPUTS.get(work.name, "")}[where]
    content = copy(disk, case.folder / "content") if disk.exists() else None
    disk.mkdir(exist_ok=True)
    used = sum(path.stat().st_size // 4096 * 4 + 8 for path in disk.rglob("*"))
    if not own_mounts() or not _mount_memory(disk, f"size={used + _spread(case.random, 4, 3000)}k"):
        case.tries[f"mount refused, {where}"] += 1
        return Verdict.SKIPPED
    if content is not None:
        try:
            shutil.copytree(content, disk, dirs_exist_ok=True)
        except shutil.Error as error:
            raise Fault(Verdict.SKIPPED, f"the disk is too small: {error}") from error
    case.tries[f"full {where}"] += 1
    return _run(work, place, expected, end=functools.partial(_mount_memory, disk, "remount,size=200m"))


def _run(
    work: Workload,
    place: Path,
    expected: dict[str, Any],
    before: Callable[[], object] | None = None,
    end: Callable[[], bool] = lambda: True,
) -> Verdict:
    """Run the command, end the shortage, and run the command again."""
    ended = Command(work.arguments, place, before=before).wait()
    no_temporaries(place)
    if not end():
        raise Fault(Verdict.SKIPPED, "the disk cannot be made larger")
    finish(work, place, expected)
    return Verdict.REFUSED if ended.code else Verdict.SURVIVED


def _spread(random: Random, low: float, high: float) -> int:
    """A random number from low to high, on a logarithmic scale."""
    return int(math.exp(random.uniform(math.log(low), math.log(high))))


def own_mounts() -> bool:
    """Give this process its own mounts, which end with it; False if that is not allowed."""
    user, group = os.getuid(), os.getgid()
    flags = NEW_MOUNTS if user == 0 else NEW_MOUNTS | NEW_USER
    if libc().unshare(ctypes.c_int(flags)):
        return False
    if user != 0:
        try:  # a system may allow user namespaces but refuse everything in them
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"0 {user} 1")
            Path("/proc/self/gid_map").write_text(f"0 {group} 1")
        except OSError:
            return False
    return _mount("--make-rprivate", "/")


def _mount_memory(disk: Path, options: str) -> bool:
    return _mount("-t", "tmpfs", "-o", options, "tmpfs", str(disk))


def _mount(*arguments: str) -> bool:
    """Call mount; False if that is not allowed or there is no such program."""
    try:
        return not subprocess.run(["mount", *arguments], capture_output=True, check=False).returncode
    except OSError:
        return False


COMMANDS = ("eager training", "export", "import", "report", "import of images")
KINDS = [
    *(
        kind_of("disks", WORKLOADS[name], run_on_full_disk, share=0.7, minimum=5, quick=int(name == "eager training"))
        for name in COMMANDS
    ),
    *(
        kind_of("limits", WORKLOADS[name], run_with_limit, share=0.5, minimum=5, quick=int(name in COMMANDS[0:3:2]))
        for name in COMMANDS
    ),
]
