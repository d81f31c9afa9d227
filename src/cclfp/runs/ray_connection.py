"""Reaching a Ray cluster: the user's, or a private one on this machine that nobody else can reach."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from typing import Any

from cclfp.core.workers import cores
from cclfp.errors import InputError

LOOPBACK = "127.0.0.1"
CONNECT_SECONDS = 10.0
POSTPONED = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
# With this variable Ray's processes listen on the loopback interface alone, and not on every one. Ray reads it when it
# is imported. It is meant for other platforms than Linux, where it is the default.
PRIVATE = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}


@contextlib.contextmanager
def connected(on: str, address: str) -> Iterator[Any]:
    """The module ``ray``, connected to the cluster at an address.

    An empty address means the one in ``RAY_ADDRESS`` or, without that variable, a private cluster. A connection that
    the user has made is used, and stays. During our own, whatever Ray prints goes to stderr: stdout is for results.
    """
    named, address = address, address or os.environ.get("RAY_ADDRESS", "")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # as later versions do: hide no GPU from CPU tasks
    if not address and "ray" not in sys.modules:
        os.environ.update(PRIVATE)
        os.environ.setdefault("RAY_AUTH_MODE", "token")  # other users of this machine do not know the token
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    import ray

    if ray.is_initialized():
        used = ray.get_runtime_context().gcs_address
        if named not in ("", "auto", used):
            raise InputError(f"on={on!r}: this process is connected to {used}: leave the address out, or disconnect")
        yield ray
        return
    with contextlib.redirect_stdout(sys.stderr):
        try:
            with _postponed_signals():
                _connect(ray, on, address)
            yield ray
        finally:
            ray.shutdown()


def _connect(ray: Any, on: str, address: str) -> None:
    """Connect to the cluster at an address, or start a private one."""
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address:
        _check_address(on, address)
    else:
        if ray.util.get_node_ip_address() != LOOPBACK:
            raise InputError(
                f"on={on!r}: Ray was imported before, and would now listen to other machines: call ray.init() yourself "
                "if you want that, and its cluster is used"
            )
        options |= {"num_cpus": cores(), "include_dashboard": False}
    try:
        ray.init(address or "local", **options)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"on={on!r}: no Ray cluster can be used: {reason}") from error


def _check_address(on: str, address: str) -> None:
    """Refuse an address at which nothing listens. Ray itself would wait for minutes."""
    host, _, port = address.rpartition(":")
    if address == "auto":
        return
    if not host or "/" in host or not (port.isascii() and port.isdigit()):
        raise InputError(f"on={on!r}: the address {address!r} is not HOST:PORT or auto, such as 10.0.0.1:6379")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise InputError(f"on={on!r}: no Ray cluster can be reached at {address}: {error}") from error


def check_installed(on: str) -> None:
    """Refuse to train on Ray where it is not installed. It is not imported yet."""
    if "ray" not in sys.modules and importlib.util.find_spec("ray") is None:
        raise InputError(f"on={on!r} needs Ray: pip install 'cclfp[ray]'")


@contextlib.contextmanager
def _postponed_signals() -> Iterator[None]:
    """Keep this process's signal handlers, which Ray replaces, and call them after the context.

    A start that is interrupted in the middle would leave some of Ray's processes behind.
    """
    if threading.current_thread() is not threading.main_thread():  # Python allows handlers only there
        yield
        return
    received: list[int] = []
    handlers = {number: signal.getsignal(number) for number in POSTPONED}
    for number, handler in handlers.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, lambda number, frame: received.append(number))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number in received[:1]:
            signal.raise_signal(number)
