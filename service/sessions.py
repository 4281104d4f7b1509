"""Sessions: one client's hold on one robot, and what makes an observation acceptable."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections import Counter
from typing import Protocol

from wmrt.core.wire import NAME_BYTES, Observed
from wmrt.service.clocks import ClockMap
from wmrt.service.refusals import Refusal

#: Names of robots: they become names of files and labels of metrics.
NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{NAME_BYTES - 1}}}")
_TOP = 2**63


def check_name(robot: object) -> str:
    """The name; `Refusal` for what cannot be one."""
    if not isinstance(robot, str) or not NAME.fullmatch(robot):
        raise Refusal(
            "malformed",
            f"robot {str(robot)[:80]!r}: a name has 1 to {NAME_BYTES} letters, digits, dots, "
            "hyphens and underscores, and begins with a letter or digit",
        )
    return robot


class Holder(Protocol):
    """A connection that holds a robot."""

    def expel(self, refusal: Refusal) -> None:
        """It holds the robot no longer."""


class Session:
    """Whose a robot is, and where its stream of observations stands. Lives in the event loop, but
    for `fits` and `admit`: any thread, see `Place.entering`.

    Attributes:
        id: 64 random bits; whoever knows it is the client that opened the session.
        epoch: counts resets. sequence: of the last observation taken in.
        holder: the connection that holds it; None for none, or for a client over HTTP.
        seen: seconds, when the client was last heard of. released: it said good-bye.
        counts: observations by what became of them.
    """

    def __init__(self, robot: str, now: float, epoch: int = 0) -> None:
        self.robot, self.epoch = robot, epoch
        self.id = secrets.randbits(64)
        self.sequence = -1
        self.holder: Holder | None = None
        self.released = False
        self.seen = now
        self.counts: Counter[str] = Counter()
        self._clock = ClockMap()

    @property
    def digest(self) -> str:
        """For logs: whoever knows the session itself can speak for its robot."""
        return hashlib.blake2b(self.id.to_bytes(8, "little"), digest_size=4).hexdigest()

    def hold(self, holder: Holder | None, now: float) -> None:
        """A connection takes it, or a request over HTTP (None). Clocks are compared anew."""
        self.holder, self.released, self.seen = holder, False, now
        self._clock = ClockMap()

    def leave(self, holder: Holder, now: float, released: bool) -> None:
        """The connection is gone; nothing happens if another one has taken over."""
        if self.holder is holder:
            self.holder, self.seen, self.released = None, now, released

    def held(self, now: float, hold: float) -> bool:
        """Whether a client holds the robot: it is connected, or was ``hold`` seconds ago and has
        not said good-bye."""
        return self.holder is not None or (not self.released and now - self.seen < hold)

    def require(self, session: int) -> None:
        """Raise `Refusal` unless ``session`` is this one."""
        if session != self.id:
            raise unknown(self.robot)

    def fits(self, seen: Observed) -> bool:
        """Whether `admit` would take an observation in; changes nothing."""
        try:
            self.require(seen.session)
            self._check(seen)
        except Refusal:
            return False
        return True

    def admit(self, seen: Observed, now_ns: int) -> int | None:
        """Take an observation in: its capture time on this machine's clock.

        Raises:
            Refusal: by name; a refused observation changes nothing.
        """
        try:
            self.require(seen.session)
            self._check(seen)
        except Refusal as refusal:
            refusal.sequence = seen.sequence
            self.counts[refusal.name] += 1
            raise
        return self.accept(seen, now_ns)

    def accept(self, seen: Observed, now_ns: int) -> int | None:
        """`admit` what `fits` already."""
        self.sequence, self.seen = seen.sequence, now_ns * 1e-9
        self.counts["taken"] += 1
        if seen.captured_ns is None:
            return None
        sent = seen.captured_ns if seen.sent_ns is None else seen.sent_ns
        return self._clock.map(seen.captured_ns, sent, now_ns)

    def _check(self, seen: Observed) -> None:
        if seen.epoch != self.epoch:
            raise Refusal(
                "stale_epoch" if seen.epoch < self.epoch else "malformed",
                f"epoch {seen.epoch}: this session is in epoch {self.epoch}",
            )
        if seen.sequence == self.sequence:
            raise Refusal("duplicate", f"sequence {seen.sequence} was taken in already")
        if seen.sequence < self.sequence:
            raise Refusal(
                "stale", f"sequence {seen.sequence}: the last one taken in was {self.sequence}"
            )
        if not 0 <= seen.sequence < _TOP:
            raise Refusal("malformed", f"sequence {seen.sequence}: 0 to {_TOP - 1}")
        if seen.captured_ns is not None and seen.sent_ns is not None:
            if seen.captured_ns > seen.sent_ns:
                ahead = seen.captured_ns - seen.sent_ns
                raise Refusal(
                    "malformed",
                    f"captured {ahead} ns after it was sent; both are readings of one monotonic "
                    "clock (in Python time.monotonic_ns, not time.time_ns)",
                )


def unknown(robot: str) -> Refusal:
    """409: nobody here knows the session."""
    return Refusal(
        "unknown_session",
        f"this session of robot {robot} is not known here: it was never opened, another client has "
        "the robot, or its memory is lost; open a new session, which starts with no past states",
    )
