"""Full disks: a tmpfs with little free space for the store, CCLFP_HOME or the output."""

from __future__ import annotations

import ctypes
import math
import os
import subprocess
from pathlib import Path

from torture.campaign import Case, Fault, Verdict, libc
from torture.commands import Command, no_temporaries
from torture.kills import WORKLOADS, Workload, finish, kind_of, start
from torture.material import copy

NEW_MOUNTS, NEW_USER = 0x00020000, 0x10000000
OUTPUTS = {"eager training": "learners", "report": "report"}  # the output folders of commands


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


def run(work: Workload, case: Case) -> Verdict:
    """Run the command on a disk with little space, then again with enough."""
    where = case.random.choice(["store", "home", *(["output"] if work.name in OUTPUTS else [])])
    place, expected = start(case)
    disk = {"store": place, "home": place / "home", "output": place / OUTPUTS.get(work.name, "")}[where]
    content = copy(disk, case.folder / "content") if disk.exists() else None
    disk.mkdir(exist_ok=True)
    used = sum(path.stat().st_size // 4096 * 4 + 8 for path in disk.rglob("*"))
    room = int(math.exp(case.random.uniform(math.log(4), math.log(3000))))  # kB
    if not own_mounts() or not _mount_memory(disk, f"size={used + room}k"):
        case.tries[f"mount refused, {where}"] += 1
        return Verdict.SKIPPED
    if content is not None:
        try:
            copy_into(content, disk)
        except OSError as error:
            raise Fault(Verdict.SKIPPED, f"the disk is too small: {error}") from error
    case.tries[f"full {where}"] += 1
    ended = Command(work.arguments, place).wait()
    no_temporaries(place)
    if not _mount_memory(disk, "remount,size=200m"):
        raise Fault(Verdict.SKIPPED, "the disk cannot be made larger")
    finish(work, place, expected)
    return Verdict.REFUSED if ended.code else Verdict.SURVIVED


def copy_into(content: Path, disk: Path) -> None:
    for path in sorted(content.rglob("*")):
        target = disk / path.relative_to(content)
        if path.is_dir():
            target.mkdir(exist_ok=True)
        else:
            target.write_bytes(path.read_bytes())


def _mount_memory(disk: Path, options: str) -> bool:
    return _mount("-t", "tmpfs", "-o", options, "tmpfs", str(disk))


def _mount(*arguments: str) -> bool:
    """Call mount; False if that is not allowed or there is no such program."""
    try:
        return not subprocess.run(["mount", *arguments], capture_output=True, check=False).returncode
    except OSError:
        return False


KINDS = [
    kind_of("disks", WORKLOADS[name], run, share=0.7, minimum=5, quick=int(name == "eager training"))
    for name in ("eager training", "export", "import", "report", "import of images")
]
