"""A session over as many connections as it takes."""

from __future__ import annotations

import json
import logging
import os
import ssl
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wmrt.client.address import Address
from wmrt.client.backoff import Backoff
from wmrt.client.channel import Channel, Lost, read_object
from wmrt.client.given import positions, required
from wmrt.client.line import left
from wmrt.client.reply import from_json
from wmrt.core.codec import codec
from wmrt.core.errors import DeadlineError, ServiceError, UsageError
from wmrt.core.wire import VERSION, Acted, WireError, session_number, session_text

_log = logging.getLogger("wmrt.client")
#: Refusals that pass by themselves.
PASSING = frozenset({"not_ready", "draining", "moved", "too_many_connections", "too_fast"})
#: Seconds without a word after something was sent, as a deadline passes: the peer has vanished, or
#: something between swallows what is sent. The service answers by its own deadline, late or not.
SILENCE = 5.0
#: Close codes after which another connection is of no use: 4000 and the refusal's status.
_FINAL = frozenset({4400, 4401, 4403, 4409})


@dataclass
class Target:
    """What to connect to, and as whom. `UsageError` for what is of a wrong type."""

    address: Address
    robot: str
    token: str | None = None
    tls: ssl.SSLContext | None = None
    reopen: bool = False
    on_event: Callable[[str, Mapping[str, Any]], object] | None = None
    backoff: Backoff = field(default_factory=Backoff)
    spin: float = 0.0

    def __post_init__(self) -> None:
        required("robot", self.robot, str, "its name, a text")
        required("backoff", self.backoff, Backoff, "a wmrt.client.Backoff")
        if self.tls is not None:
            required("tls", self.tls, ssl.SSLContext, "an ssl.SSLContext")
            if not self.address.tls:
                raise UsageError(f"tls for {self.address.text}: it is for wss://, leave one out")
        if self.on_event is not None:
            required("on_event", self.on_event, Callable, "a function (name, details)")  # type: ignore[arg-type]


class Link:
    """Connects when it has to, within the deadline of whoever needs it.

    Attributes:
        session, epoch: the service's; session None before the first.
        taken: sequence of the last observation that the service knows, as it said on connecting.
        answered: of the last answer. last_action: of it.
        opened: what the service said when the session was opened.
        codec: what reads its answers.
        state, counters: see `wmrt.client.Client`.
    """

    def __init__(self, target: Target, session: int | None, measured: Sequence[float] | None):
        self.target, self.session, self.epoch = target, session, 0
        self.codec = codec()
        self.taken = self.answered = -1
        self.last_action: tuple[float, ...] | None = None
        self.opened: dict[str, Any] = {}
        self.state = "reconnecting"
        self.counters: Counter[str] = Counter()
        self._measured = positions(measured)
        self._channel: Channel | None = None
        self._retry_at, self._why = 0.0, ""
        self._final: tuple[str, str] | None = None  # words and name of what ended it for good
        self._process = os.getpid()
        self._heard = True  # an answer, since it was connected last

    def channel(self, end: float, purpose: str) -> Channel:
        """The connection, made anew if it has to be.

        Args:
            end: `time.monotonic` seconds until which it has to be there.

        Raises:
            DeadlineError, ServiceError. UsageError: in another process than the one that made it.
        """
        if os.getpid() != self._process:  # two that read one socket take each other's answers
            raise UsageError(
                f"this client is process {self._process}'s, from which this one was forked; "
                "make another one here, and close that one first if it is to be the same robot"
            )
        while self._channel is None:
            if self._final is not None:
                raise ServiceError(*self._final)
            wait = self._retry_at - time.monotonic()
            if wait > 0:
                time.sleep(max(0.0, min(wait, end - time.monotonic())))
            if time.monotonic() >= end:
                raise self.missed(f"{purpose}: not connected: {self._why or 'no time for it'}")
            self.counters["attempts"] += 1
            try:
                self._channel = self._connect(end)
            except Lost as error:
                self._again(str(error))
            except TimeoutError as error:  # what the attempts before it ran into says more
                self._again(self._why or str(error) or "no answer in time")
            except ServiceError as error:
                self.counters[error.name] += 1
                if error.name not in PASSING:
                    raise
                self._again(f"{error.name}: {error}")
        return self._channel

    def _again(self, why: str) -> None:
        """Try once more, later."""
        wait = self.target.backoff.wait()
        self._why, self._retry_at = why, time.monotonic() + wait
        self.event("waiting", reason=why, seconds=wait)

    def _connect(self, end: float) -> Channel:
        target = self.target
        channel = self._dial(end)
        try:
            data = self._open(channel, end)
            error = data.get("error", {})
            if error.get("name") == "unknown_session" and self.session is not None:
                self.counters["sessions_lost"] += 1
                self.event("session_lost", reopen=target.reopen)
                if target.reopen:  # the breakers start from where the actuators were left
                    channel.drop()
                    self.session = None
                    last = self.last_action
                    self._measured = None if last is None else list(last)
                    channel = self._dial(end)
                    data = self._open(channel, end)
                    error = data.get("error", {})
            if data.get("kind") != "opened":
                name = str(error.get("name", "internal"))
                raise ServiceError(str(error.get("message", "no session was opened")), name)
            self._adopt(data)
        except (KeyError, TypeError, ValueError, AttributeError) as error:  # of another version
            channel.drop()
            said = f"{target.address.text} opens no session of version {VERSION}: {error!r:.200}"
            raise ServiceError(said, "malformed") from None
        except BaseException:
            channel.drop()
            raise
        return channel

    def _dial(self, end: float) -> Channel:
        target = self.target
        return Channel(target.address, target.token, end, target.tls, target.robot, target.spin)

    def _open(self, channel: Channel, end: float) -> dict[str, Any]:
        """Ask for the session; what the service says."""
        wanted: dict[str, Any] = {"kind": "open", "version": VERSION, "robot": self.target.robot}
        if self.session is not None:
            wanted["session"] = session_text(self.session)
            if self.answered >= 0:
                wanted["answered"] = self.answered
        elif self._measured is not None:
            wanted["measured"] = self._measured
        channel.send(json.dumps(wanted), end)
        return read_object(channel.receive(end))

    def _adopt(self, data: dict[str, Any]) -> None:
        """Go on with what the service opened."""
        first = not self.opened
        self.opened = data
        self.session, self.epoch = session_number(data["session"]), int(data["epoch"])
        self.taken = int(data["sequence"])
        if data["memory"] == "restored":
            self.counters["steps_lost"] += max(0, self.answered - self.taken)
            self.answered = min(self.answered, self.taken)  # else counted by the next restart, too
        self.counters["connected"] += 1
        self.counters["resumed"] += bool(data["resumed"])
        self.state, self._heard = "connected", False
        self.event("connected", memory=data["memory"], resumed=data["resumed"], first=first)

    def lost(self, error: Lost) -> None:
        """The connection is gone; the next `channel` makes another one."""
        if self._channel is not None:
            self._channel.drop()
            self._channel = None
        self.state, self._why = "reconnecting", str(error)
        self.counters["lost"] += 1
        self.event("lost", reason=str(error), code=error.code)
        if error.code in _FINAL and self._final is None:
            name = "taken_over" if error.code == 4409 else "refused"
            self._final = f"the service ended this session: {error}", name
        elif not self._heard:  # it lets in and answers nothing: each time it is asked less often
            self._retry_at = time.monotonic() + self.target.backoff.wait()

    def next(
        self, channel: Channel, end: float
    ) -> tuple[Acted | None, tuple[str, str, int | None] | None]:
        """The next message: an answer of this epoch, a refusal, or neither."""
        message = channel.answer(end)
        try:
            if isinstance(message, Acted):
                return self._take(message), None
            if isinstance(message, bytes):
                return self._take(self.codec.unpack_acted(message)), None
            data = read_object(message)
            if data.get("kind") == "action":
                return self._take(from_json(data)), None
        except WireError as error:  # what follows cannot be trusted either
            raise Lost(str(error)) from None
        return None, self.refused(data)

    def _take(self, acted: Acted) -> Acted | None:
        """Count an answer; None for one of another session or epoch."""
        if acted.session != self.session or acted.epoch != self.epoch:
            return None
        self.answered = max(self.answered, acted.sequence)
        self.last_action = acted.action
        self.counters["answers"] += 1
        self._heard = True
        self.target.backoff.reset()
        return acted

    def answer(self, channel: Channel, sequence: int, end: float, again: bool) -> Acted | None:
        """The answer to ``sequence``; None if it is to be sent once more over this connection.

        Args:
            again: it was sent before, and may have been taken then.

        Raises:
            Lost: it is to be sent over another one. ServiceError: it is refused.
        """
        while True:
            acted, refused = self.next(channel, end)
            if acted is not None:
                if acted.sequence == sequence:
                    return acted
                self.counters["late_answers"] += 1
            elif refused is not None:
                name, said, about = refused
                if name == "too_fast":  # over another connection it would be as many
                    time.sleep(min(self.target.backoff.wait(), left(end)))
                    return None
                if name in PASSING:
                    raise Lost(f"{name}: {said}")
                if about == sequence and not (again and name == "duplicate"):
                    raise ServiceError(said, name)

    def refused(self, data: dict[str, Any]) -> tuple[str, str, int | None] | None:
        """Name, words and sequence of a refusal; None for another message."""
        if data.get("kind") != "refused":
            return None
        error = data.get("error", {})
        name, message = str(error.get("name")), str(error.get("message"))
        self.counters[name] += 1
        if name == "taken_over":
            self._final = message, name
        return name, message, data.get("sequence")

    def restarted(self, channel: Channel, end: float) -> int:
        """The epoch that a reset begins, once the service says so."""
        while True:
            message = channel.receive(end)
            data = read_object(message)
            if data.get("kind") == "opened":
                return int(data["epoch"])
            refused = self.refused(data)
            if refused is not None and refused[2] is None:  # not about an observation
                raise ServiceError(refused[1], refused[0])

    def missed(self, said: str) -> DeadlineError:
        """The deadline has passed: count it."""
        self.counters["deadline_misses"] += 1
        silent = None if self._channel is None else self._channel.silent
        if silent is not None and time.monotonic() - silent > SILENCE:
            self.lost(Lost(f"nothing heard for {SILENCE:g} s"))
        return DeadlineError(said)

    def event(self, name: str, **details: Any) -> None:
        """Tell the log and whoever asked."""
        level = logging.INFO if name in ("connected", "waiting") else logging.WARNING
        _log.log(level, "robot %s: %s %s", self.target.robot, name, details)
        if self.target.on_event is not None:
            self.target.on_event(name, details)

    def close(self) -> None:
        """Say good-bye; a fork of the process that made it only lets go."""
        if self._channel is not None:
            own = os.getpid() == self._process
            (self._channel.close if own else self._channel.drop)()
            self._channel = None
        self._final = "this client is closed", "closed"
        self.state = "closed"
