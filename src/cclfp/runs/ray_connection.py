"""Reaching a Ray cluster: the user's, or a private one on this machine that nobody else can reach."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

from cclfp.core.machine import cores
from cclfp.errors import InputError

LOOPBACK = "127.0.0.1"
# With this variable Ray's processes listen on the loopback interface alone, and not on every one. Ray reads it when it
# is imported. It is meant for other platforms than Linux, where it is the default.
PRIVATE = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}


def connect(on: str, address: str) -> tuple[Any, bool]:
    """Connect this process to the cluster at an address: the module ``ray``, and whether the caller must disconnect.

    An empty address means the one in ``RAY_ADDRESS`` or, without that variable, a private cluster. A connection that
    the user has made is used.
    """
    address = address or os.environ.get("RAY_ADDRESS", "")
    if not address and "ray" not in sys.modules:
        os.environ.update(PRIVATE)
    ray = import_ray(on)
    if ray.is_initialized():
        return ray, False
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}  # stdout is for results
    if not address:
        if ray.util.get_node_ip_address() != LOOPBACK:
            raise InputError(
                f"on={on!r}: Ray was imported before, and would now listen to other machines: call ray.init() yourself "
                "if you want that, and its cluster is used"
            )
        quiet |= {"num_cpus": cores(), "include_dashboard": False}
    try:
        with _own_signals():
            ray.init(address or "local", **quiet)
    except (ConnectionError, OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"on={on!r}: there is no connection to the Ray cluster {address}: {reason}") from error
    return ray, True


def import_ray(on: str) -> Any:
    try:
        import ray
    except ModuleNotFoundError as error:
        raise InputError(f"on={on!r} needs Ray: pip install 'cclfp[ray]'") from error
    return ray


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Keep this process's signal handlers: Ray installs one for SIGTERM."""
    is_main = threading.current_thread() is threading.main_thread()  # Python allows it only there
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if is_main:
            signal.signal(signal.SIGTERM, before)
