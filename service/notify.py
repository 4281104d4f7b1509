"""What systemd is told: ready, alive, stopping, and a line of status.

Ours because what there is on PyPI blocks, counts on the wall clock, or has not been kept: a
datagram is all it takes (sd_notify(3), sd_watchdog_enabled(3)).
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping

from wmrt.core.errors import UsageError
from wmrt.service.host import Host
from wmrt.service.logs import log

#: Seconds between two looks while the model warms up, and at most afterwards.
WARMING, LOOK = 0.05, 5.0
#: Looks in the time in which the manager wants to hear of us; one that is late must not end us.
LOOKS = 4


class Notifier:
    """Sends to the service manager, if there is one; never waits for it.

    Args:
        environment: ``NOTIFY_SOCKET``, ``WATCHDOG_USEC`` and ``WATCHDOG_PID`` of it count.

    Attributes:
        watchdog: seconds within which the manager wants to hear of us again and again; None if it
            does not, or if it means another process.

    Raises:
        UsageError: an address or a time that is none.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        path = environment.get("NOTIFY_SOCKET", "")
        if path and path[0] not in "/@":
            raise UsageError(f"NOTIFY_SOCKET={path!r}: an absolute path, or @ and an abstract name")
        self._address = "\0" + path[1:] if path.startswith("@") else path
        self._socket: socket.socket | None = None
        self.watchdog = _watchdog(environment) if path else None
        self._told_lost = False

    @property
    def wanted(self) -> bool:
        """Whether a manager listens."""
        return bool(self._address)

    def send(self, *lines: str) -> bool:
        """Whether it went out; a manager that cannot be reached is told to the log, once."""
        try:
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                self._socket.setblocking(False)
            self._socket.sendto("\n".join(lines).encode(), self._address)
        except OSError as error:
            if not self._told_lost:
                log.warning("the service manager is not reached", reason=str(error))
                self._told_lost = True
            return False
        return True

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _watchdog(environment: Mapping[str, str]) -> float | None:
    text = environment.get("WATCHDOG_USEC", "")
    if not text or environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    if not text.isdecimal() or int(text) == 0:
        raise UsageError(f"WATCHDOG_USEC={text!r}: microseconds, a number above 0")
    return int(text) * 1e-6


class Herald:
    """Tells the manager of a service how it is, from its event loop, so that a loop that does not
    turn tells nothing; nor does one whose inference thread has ended or hangs."""

    def __init__(self, host: Host, notifier: Notifier) -> None:
        self._host, self._notifier = host, notifier
        self._task: asyncio.Task[None] | None = None
        self._ready = False
        self._status = ""

    def start(self) -> None:
        """Begin to tell; in the event loop, when connections are taken."""
        if self._notifier.wanted:
            self._task = asyncio.create_task(self._run())

    def stop(self) -> None:
        """Tell that the service stops, and nothing further."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
            self._notifier.send("STOPPING=1", "STATUS=stopping")
            self._notifier.close()

    async def _run(self) -> None:
        pause = min(LOOK, (self._notifier.watchdog or LOOK) / LOOKS)
        while True:
            try:
                self._look()
            except Exception:  # then the manager hears nothing, and ends us
                log.exception("the service manager is not told")
            await asyncio.sleep(pause if self._ready else WARMING)

    def _look(self) -> None:
        host, lines = self._host, []
        faults = host.dying()
        if host.warm and not self._ready:
            lines.append("READY=1")
        if not faults and self._notifier.watchdog is not None:
            lines.append("WATCHDOG=1")
        reasons = faults or host.reasons()
        status = "; ".join(reasons) or f"ready; robots: {len(host.registry.places)}"
        if status != self._status:
            lines.append(f"STATUS={status}")
        if lines and self._notifier.send(*lines):
            self._ready, self._status = self._ready or host.warm, status
