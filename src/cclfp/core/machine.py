"""The resources of this machine."""

from __future__ import annotations

import os
from pathlib import Path

# What /proc/cpuinfo says about a processor, of x86 and of ARM, that native code can depend on.
KNOWN = ("vendor_id", "model name", "flags", "CPU implementer", "CPU variant", "CPU part", "Features")


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def describe_processor() -> dict[str, str]:
    """The name and the instruction sets of the processor, where the platform has /proc/cpuinfo; otherwise empty."""
    information = Path("/proc/cpuinfo")
    text = information.read_text(errors="replace") if information.exists() else ""
    entries = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    values = {name.strip(): value.strip() for name, _, value in entries}
    return {name: values[name] for name in KNOWN if name in values}
