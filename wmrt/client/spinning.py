"""Waiting for an answer without sleeping: a thread that sleeps is woken 30 to 50 us later."""

from __future__ import annotations

import socket
import ssl
import time
from numbers import Real

from wmrt.core.errors import UsageError

#: What says that nothing has come yet.
_NOTHING = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


def duration(value: float) -> float:
    """Seconds to spin, 0 for not at all; `UsageError` for what is none."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= value <= 1:
        raise UsageError(f"spin={value!r}: seconds, 0 to 1")
    return float(value)


def received(own: socket.socket, size: int, seconds: float) -> bytes | None:
    """Up to ``size`` bytes, b"" at the end; None if nothing has come for ``seconds``.

    Raises:
        OSError: as `socket.recv`.
    """
    until = time.monotonic() + seconds
    own.settimeout(0.0)
    while time.monotonic() < until:
        try:
            return own.recv(size)
        except _NOTHING:
            continue
    return None
