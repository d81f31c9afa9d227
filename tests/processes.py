"""Processes of this machine, as /proc shows them."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable, Iterable
from pathlib import Path

LISTENING = "0A"


def children(pid: int) -> list[int]:
    """The processes that a process has started, with any of its threads, and that are not gone."""
    found: list[int] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += map(int, file.read_text().split())
        except OSError:  # the thread has ended
            continue
    return found


def command_of(pid: int) -> str:
    """The command line of a process; empty where it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return ""


def alive(pid: int) -> bool:
    return bool(command_of(pid))  # a zombie has none


def listening_addresses(pids: Iterable[int]) -> set[str]:
    """The addresses at which processes listen."""
    sockets = {name for pid in pids for name in _sockets(pid)}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING and f"socket:[{fields[9]}]" in sockets:
                found.add(_address(fields[1].partition(":")[0]))
    return found


def _sockets(pid: int) -> list[str]:
    try:
        files = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:  # the process has ended
        return []
    names = []
    for file in files:
        try:
            names.append(str(file.readlink()))
        except OSError:  # it was closed
            continue
    return names


def _address(text: str) -> str:
    """An address of /proc/net, where each four bytes are in the order of a little-endian machine."""
    words = [bytes.fromhex(text[i : i + 8])[::-1] for i in range(0, len(text), 8)]
    address = ipaddress.ip_address(b"".join(words))
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def wait_until(is_so: Callable[[], object], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True
