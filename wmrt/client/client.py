"""The client: control steps of one robot."""

from __future__ import annotations

import contextlib
import json
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from wmrt.client.address import Address
from wmrt.client.alone import alone
from wmrt.client.backoff import Backoff
from wmrt.client.channel import Channel, Lost
from wmrt.client.encode import Encoder
from wmrt.client.given import positions, reading, seconds, sendable
from wmrt.client.link import Link, Target
from wmrt.client.reply import Answer, answer
from wmrt.client.sent import Sent
from wmrt.client.spinning import duration
from wmrt.core.codec import Choice
from wmrt.core.errors import DeadlineError, ServiceError, UsageError
from wmrt.core.types import ActionSpec
from wmrt.core.wire import VERSION, Acted, Observed, session_number, session_text


class Client:
    """One robot's session with a service. For one thread at a time; a second one is refused.

    Opening it waits for the service. Afterwards a lost connection is made anew within the calls
    that need it, with back-off, and the session goes on; `counters` and `state` say so, as do the
    log ``wmrt.client`` and ``on_event``.

    Args:
        address: ``ws://host:port``, ``wss://host:port`` or ``unix:/path``.
        robot: its name; letters, digits, dots, hyphens, underscores.
        token: bearer token, if the service wants one.
        deadline: seconds that a call may take, unless it is given its own.
        opening: seconds that opening may take.
        session: to go on with one of another process (`session` of its client).
        measured: where the actuators are, normalised, for a session that starts afresh.
        encoding: ``floats`` (float32 columns), ``msgpack`` (needs msgspec) or ``json``.
        on_lost: when the service does not know the session any more: ``raise`` a `ServiceError` of
            name unknown_session, or ``reopen``: a new one, without past states, that starts from
            the last action.
        on_event: gets (name, details) of everything that happens to the connection.
        backoff: waits between attempts to connect.
        tls: for wss; default the system's certificates.
        spin: seconds (at most 1) for which an answer is looked for again and again before the
            thread sleeps: it keeps a processor, and this process's other threads, busy.

    Attributes:
        schema, actions, period, clock: the service's.

    Raises:
        DeadlineError: no service within ``opening``. ServiceError: it refuses, by name.
        UsageError: an argument that is none.
    """

    def __init__(
        self,
        address: str,
        robot: str,
        *,
        token: str | None = None,
        deadline: float = 1.0,
        opening: float = 10.0,
        session: str | None = None,
        measured: Sequence[float] | None = None,
        encoding: Literal["floats", "msgpack", "json"] = "floats",
        on_lost: Literal["raise", "reopen"] = "raise",
        on_event: Callable[[str, Mapping[str, Any]], object] | None = None,
        backoff: Backoff | None = None,
        tls: ssl.SSLContext | None = None,
        spin: float = 0.0,
    ) -> None:
        if on_lost not in ("raise", "reopen"):
            raise UsageError(f"on_lost={on_lost!r}: raise or reopen")
        self._in_use = threading.Lock()
        self._deadline, self._encoder = seconds(deadline), Encoder(encoding)
        target = Target(
            *(Address(address), robot, sendable(token), tls, on_lost == "reopen", on_event),
            *(Backoff() if backoff is None else backoff, duration(spin)),
        )
        own = None if session is None else session_number(session)
        self._link = Link(target, own, measured)
        self._link.channel(time.monotonic() + seconds(opening), "opening a session")
        self._sequence = self._returned = self._link.taken
        self._sent = Sent()
        opened = self._link.opened
        try:
            self.schema: dict[str, Any] = opened["schema"]
            self._schema_hash = opened["schema_hash"]
            self.actions = ActionSpec.from_json(opened["actions"])
            self.period, self.clock = float(opened["period"]), str(opened["clock"])
            self._encoder.use(self.schema)
        except BaseException:
            self._link.close()
            raise

    @property
    def robot(self) -> str:
        return self._link.target.robot

    @property
    def session(self) -> str:
        """For another process that is to go on with it."""
        return session_text(self._link.session or 0)

    @property
    def epoch(self) -> int:
        """Resets of the session so far."""
        return self._link.epoch

    @property
    def state(self) -> str:
        """``connected``, ``reconnecting`` or ``closed``."""
        return self._link.state

    @property
    def codec(self) -> Choice:
        """What makes its messages: C, or Python; see `wmrt.core.codec`."""
        return self._link.codec.choice

    @property
    def counters(self) -> Counter[str]:
        """What happened, by name.

        connected, resumed, lost (connections), attempts, answers, late_answers (after their call's
        deadline), older_answers (a newer one was there), deadline_misses, sessions_lost, steps_lost
        (answered, and forgotten by the session that was restored), and refusals by their name.
        """
        return self._link.counters

    @alone
    def act(
        self,
        state: Mapping[str, Any],
        *,
        captured_ns: int | None = None,
        deadline: float | None = None,
    ) -> Answer:
        """One control step: an observation there, an action back.

        Args:
            state: field name to value; None is unknown.
            captured_ns: when it was captured, `time.monotonic_ns`.
            deadline: seconds from now, reconnecting included.

        Raises:
            DeadlineError: no answer until then; a late one is dropped and counted.
            ServiceError: refused, by name; answer_lost: it was stepped, and the connection broke.
            StateError: a state that does not fit the schema. UsageError: no state, or no time.
        """
        began = time.monotonic_ns()
        end = began * 1e-9 + (self._deadline if deadline is None else seconds(deadline))
        self._sequence += 1
        sequence, sent = self._sequence, False
        while True:
            channel = self._channel(end, f"sequence {sequence}")
            if sent and self._link.taken >= sequence:
                said = f"sequence {sequence} was stepped, and its answer is lost"
                raise ServiceError(said, "answer_lost")
            try:
                channel.send(self._message(sequence, state, captured_ns), end)
                if not sent:  # once the service has something to do
                    self._sent.note(sequence, began)
                again, sent = sent, True
                acted = self._link.answer(channel, sequence, end, again)
                if acted is None:
                    continue
                self._returned = max(self._returned, sequence)
                return answer(acted, time.monotonic_ns() - began)
            except Lost as error:
                self._link.lost(error)
            except TimeoutError:
                raise self._link.missed(f"no answer to sequence {sequence} in time") from None

    def _channel(self, end: float, purpose: str) -> Channel:
        channel = self._link.channel(end, purpose)
        if self._link.opened["schema_hash"] != self._schema_hash:
            raise ServiceError(
                "the service has another model now, of other states; make a new client", "schema"
            )
        return channel

    def _message(self, sequence: int, state: Mapping[str, Any], captured: int | None) -> Any:
        link = self._link
        captured = None if captured is None else reading(captured)
        robot, own, now = link.target.robot, link.session or 0, time.monotonic_ns()
        return self._encoder(Observed(robot, own, link.epoch, sequence, state, captured, now))

    @alone
    def send(self, state: Mapping[str, Any], *, captured_ns: int | None = None) -> int:
        """Send an observation and do not wait; its sequence number. For `receive`.

        Raises:
            DeadlineError, ServiceError, StateError, UsageError: as `act`.
        """
        end = time.monotonic() + self._deadline
        self._sequence += 1
        while True:
            channel = self._channel(end, f"sequence {self._sequence}")
            try:
                self._sent.note(self._sequence, time.monotonic_ns())
                channel.send(self._message(self._sequence, state, captured_ns), end)
                return self._sequence
            except Lost as error:
                self._link.lost(error)
            except TimeoutError:
                raise self._link.missed("the service does not read") from None

    def receive(self, deadline: float | None = None) -> Answer:
        """The newest answer that is there, or the next one; older ones are dropped and counted.

        Raises:
            DeadlineError: none until then. ServiceError: the connection ended for good.
        """
        return self._newest(self._returned + 1, deadline)

    @alone
    def _newest(self, wanted: int, deadline: float | None) -> Answer:
        """The newest answer once one to ``wanted`` or later is there; at the deadline, or when the
        connection breaks, the newest there is."""
        end = time.monotonic() + (self._deadline if deadline is None else seconds(deadline))
        newest: Acted | None = None
        while newest is None:
            channel = self._channel(end, "an answer")
            try:
                while newest is None or newest.sequence < wanted or channel.waiting():
                    acted, _ = self._link.next(channel, end)
                    if acted is not None and acted.sequence > self._returned:
                        self.counters["older_answers"] += newest is not None
                        newest = acted
            except Lost as error:
                self._link.lost(error)
            except TimeoutError:
                missed = self._link.missed("no answer in time")
                if newest is None:
                    raise missed from None
        self._returned = newest.sequence
        return answer(newest, self._sent.since(newest.sequence))

    def stream(
        self, states: Iterable[Mapping[str, Any]], deadline: float | None = None
    ) -> Iterator[Answer | None]:
        """For each state its answer, or at the deadline the newest one to an earlier state
        (`Answer.sequence` tells); None where there is none."""
        for state in states:
            sequence = self.send(state)
            newest: Answer | None = None
            with contextlib.suppress(DeadlineError):
                newest = self._newest(sequence, deadline)
            yield newest

    @alone
    def reset(
        self, measured: Sequence[float] | None = None, *, deadline: float | None = None
    ) -> None:
        """Start a new episode: no past states, a new epoch; what is in work is discarded.

        Args:
            measured: where the actuators are, normalised.

        Raises:
            DeadlineError, ServiceError: as `act`.
        """
        end = time.monotonic() + (self._deadline if deadline is None else seconds(deadline))
        wanted: dict[str, Any] = {"kind": "reset", "version": VERSION, "robot": self.robot}
        if measured is not None:
            wanted["measured"] = positions(measured)
        while True:
            channel = self._channel(end, "a reset")
            try:
                channel.send(json.dumps(wanted), end)
                self._link.epoch = self._link.restarted(channel, end)
                return
            except Lost as error:
                self._link.lost(error)
            except TimeoutError:
                missed = self._link.missed("no answer to a reset in time")
                # Whether it is in the new epoch, another connection tells.
                self._link.lost(Lost("a reset without an answer"))
                raise missed from None

    def close(self) -> None:
        """Say good-bye: another client may have the robot at once. The session may be resumed."""
        self._link.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


connect = Client  # reads well: with connect("unix:/run/wmrt.sock", "r2") as robot
