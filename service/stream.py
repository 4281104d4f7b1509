"""The WebSocket: one connection, one robot. Binary messages carry the control step, text the rest.

Plain ASGI, without a framework between a message and the robot's mailbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from structlog.contextvars import bind_contextvars

from wmrt.core.wire import Acted, WireError, acted_json, pack_acted, read_text, refused_json
from wmrt.service.buckets import Buckets
from wmrt.service.direct import EXTENSION, DirectWebSocket
from wmrt.service.host import Host
from wmrt.service.messages import (
    OpenMessage,
    Reader,
    dumps,
    opened_json,
    read_json,
    read_observation,
    read_session,
    schema_json,
)
from wmrt.service.places import Place
from wmrt.service.refusals import Refusal
from wmrt.service.routing import require_routed, routed_by
from wmrt.service.security import too_fast
from wmrt.service.sessions import Session

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

#: Seconds from the connection to its first message.
OPENING = 5.0
#: Refusals and other texts that wait for a slow client; the oldest goes first.
TEXTS = 64
#: Close codes of applications begin here; the status of the refusal is added.
CODES = 4000


class Stream:
    """The application at ``/v1/stream``."""

    def __init__(self, host: Host, buckets: Buckets) -> None:
        self._host, self._buckets = host, buckets
        self._reader = Reader(host.schema)
        self._number = itertools.count()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()  # websocket.connect
        await send({"type": "websocket.accept"})
        # A bucket for each connection: robots behind one address must not slow each other down.
        own = f"{scope['state']['client']} {next(self._number)}"
        direct = scope.get("extensions", {}).pop(EXTENSION, None)  # which holds the scope
        allowed = partial(self._buckets.take, own)
        link = Link(self._host, self._reader, receive, send, allowed, direct)
        link.routed = routed_by(self._host.settings, scope)
        try:
            await link.run()
        finally:
            self._buckets.forget(own)


class Link:
    """One connection.

    Answers wait in a place for one: a client that reads slowly gets the newest. Texts wait in a
    line of `TEXTS`.

    Args:
        direct: the short way for binary messages, where the server has one.

    Attributes:
        routed: the robot by whose name it came to this process, where that is asked for.
    """

    def __init__(
        self,
        host: Host,
        reader: Reader,
        receive: Receive,
        send: Send,
        allowed: Any,
        direct: DirectWebSocket | None = None,
    ) -> None:
        self._host, self._reader, self._allowed = host, reader, allowed
        self._receive, self._send, self._direct = receive, send, direct
        self._session: Session | None = None
        self.routed: str | None = None
        self._answer: bytes | str | None = None
        self._texts: deque[str] = deque(maxlen=TEXTS)
        self._wake = asyncio.Event()
        self._sending = self._owed = False  # a task sends; an answer is on its way to it
        self._closing: tuple[int, str] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Until one of the two sides ends it."""
        released = False
        writer = asyncio.create_task(self._write())
        try:
            await self._open()
            if self._direct is not None:
                self._direct.take = self._take_now
            while self._closing is None:
                message = await self._receive()
                if message["type"] != "websocket.receive":
                    released = message.get("code") == 1000
                    break
                await self._take(message)
        except Refusal as refusal:
            self.expel(refusal)
        finally:
            if self._direct is not None:
                self._direct.take = None
            if self._session is not None:
                self._session.leave(self, time.monotonic(), released)
            if self._closing is not None:  # what is to be said is said before it closes
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(asyncio.shield(writer), OPENING)
            for task in (writer, *self._tasks):
                task.cancel()
            await asyncio.gather(writer, *self._tasks, return_exceptions=True)

    def expel(self, refusal: Refusal) -> None:
        """Tell the client why, and close."""
        self._refuse(refusal)
        self._closing = (CODES + refusal.status, refusal.name)
        if self._direct is not None:
            self._direct.take = None  # what comes now ends the connection
        self._wake.set()

    async def _open(self) -> None:
        """The first message has to open a session. `Refusal` if it does not."""
        try:
            message = await asyncio.wait_for(self._receive(), OPENING)
        except asyncio.TimeoutError:
            raise Refusal("too_slow", f"no session was opened within {OPENING:g} s") from None
        data = self._json(message.get("text"))
        if data.pop("kind") != "open":
            raise Refusal("malformed", "the first message opens a session: a text of kind open")
        wanted: OpenMessage = read_json(OpenMessage, data)
        require_routed(self._host.settings, self.routed, wanted.robot)
        session = None if wanted.session is None else read_session(wanted.session)
        opened = await self._host.open(
            wanted.robot, session, wanted.measured, self, wanted.answered
        )
        self._session = opened.session
        bind_contextvars(robot=wanted.robot, session=opened.session.digest)  # of this connection
        self._text({**opened_json(self._host, opened), **schema_json(self._host)})

    def _json(self, text: str | None) -> dict[str, Any]:
        if text is None:
            raise Refusal("malformed", "a text is expected here, a JSON object")
        try:
            return read_text(text)
        except WireError as error:
            raise Refusal("malformed", str(error)) from None

    async def _take(self, message: Any) -> None:
        """One message of an open connection; what is wrong with it is answered."""
        data = message.get("bytes")
        if data is not None:
            wait = self._take_now(data)
        elif self._allowed():
            wait = 0.0
            try:
                self._take_text(message.get("text"))
            except Refusal as refusal:
                self._refuse(refusal)
        else:
            wait = self._too_fast()
        if wait:
            await asyncio.sleep(wait)  # and the client's sends wait

    def _take_now(self, data: bytes) -> float:
        """A binary message; seconds until the next one may come."""
        if not self._allowed():
            return self._too_fast()
        try:
            seen = self._reader.binary(data)
            self._own(seen.robot, seen.sequence)
            self._host.submit(seen, self._done_binary, self._send_now)
        except Refusal as refusal:
            self._refuse(refusal)
        return 0.0

    def _too_fast(self) -> float:
        self._refuse(too_fast(self._host.settings.rate))
        return 1.0 / self._host.settings.rate

    def _take_text(self, text: str | None) -> None:
        data = self._json(text)
        kind = data.pop("kind")
        if kind == "observation":
            seen = read_observation(data)
            self._own(seen.robot, seen.sequence)
            self._host.submit(seen, self._done_text)
        elif kind == "reset":
            wanted: OpenMessage = read_json(OpenMessage, data)
            self._own(wanted.robot, None)
            assert self._session is not None  # messages are taken after it is open
            own = self._session.id
            session = own if wanted.session is None else read_session(wanted.session)
            place = self._host.end_episode(
                wanted.robot, session, wanted.measured
            )  # what comes is after it
            task = asyncio.create_task(self._restart(place, wanted))  # it may wait for a step
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            raise Refusal("malformed", f"kind {kind[:40]!r}: observation or reset")

    def _own(self, robot: str, sequence: int | None) -> None:
        own = None if self._session is None else self._session.robot
        if robot != own:
            raise Refusal("malformed", f"this connection is robot {own}'s, not {robot}'s", sequence)

    async def _restart(self, place: Place, wanted: OpenMessage) -> None:
        try:
            opened = await self._host.restart(place, wanted.measured)
        except Refusal as refusal:
            self._refuse(refusal)
        else:
            self._text(opened_json(self._host, opened))

    # Answers

    def _done_binary(self, answer: Acted | Refusal) -> None:
        if isinstance(answer, Refusal):
            self._refuse(answer)
            return
        self._owed = False
        self._answer = pack_acted(answer)
        self._wake.set()

    def _send_now(self, answer: Acted) -> bool:
        """In the thread that decided it. False if it has to come after something else."""
        direct = self._direct
        if direct is None:
            return False
        waits = self._owed or self._sending or self._texts or self._answer is not None
        self._owed = bool(waits) or not direct.send_now(pack_acted(answer))
        return not self._owed

    def _done_text(self, answer: Acted | Refusal) -> None:
        if isinstance(answer, Refusal):
            self._refuse(answer)
        else:
            self._answer = dumps(acted_json(answer))
            self._wake.set()

    def _refuse(self, refusal: Refusal) -> None:
        self._host.refuse(refusal)
        self._text(refused_json(refusal.refused))

    def _text(self, data: dict[str, Any]) -> None:
        self._texts.append(dumps(data))
        self._wake.set()

    async def _write(self) -> None:
        """Send what there is, until it is closed or the client is gone."""
        send = self._send
        try:
            while True:
                self._sending = False
                await self._wake.wait()
                self._wake.clear()
                self._sending = True
                while self._texts:
                    await send({"type": "websocket.send", "text": self._texts.popleft()})
                answer, self._answer = self._answer, None
                if isinstance(answer, bytes):
                    await send({"type": "websocket.send", "bytes": answer})
                elif answer is not None:
                    await send({"type": "websocket.send", "text": answer})
                if self._closing is not None and not self._texts:
                    code, name = self._closing
                    await send({"type": "websocket.close", "code": code, "reason": name})
                    return
        except OSError:  # the client is gone, which the other side of this connection finds too
            return
