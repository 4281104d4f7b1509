"""The WebSocket: one connection, one robot. Binary messages carry the control step, text the rest.

Plain ASGI, without a framework between a message and the robot's mailbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

from structlog.contextvars import bind_contextvars

from wmrt.core.wire import Observed, WireError, read_text
from wmrt.service.buckets import Buckets
from wmrt.service.direct import EXTENSION, DirectWebSocket
from wmrt.service.host import Host
from wmrt.service.messages import (
    OpenMessage,
    Reader,
    opened_json,
    read_json,
    read_observation,
    read_session,
    schema_json,
)
from wmrt.service.outgoing import Outgoing
from wmrt.service.owned import OwnedWebSocket
from wmrt.service.places import Place
from wmrt.service.refusals import Refusal
from wmrt.service.routing import require_routed, routed_by
from wmrt.service.security import too_fast
from wmrt.service.sessions import Session

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

#: Seconds from the connection to its first message.
OPENING = 5.0


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
        self._receive, self._direct = receive, direct
        self._out = Outgoing(host, send, direct)
        self._session: Session | None = None
        self.routed: str | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Until one of the two sides ends it."""
        released = False
        writer = asyncio.create_task(self._out.write())
        try:
            await self._open()
            self._take_short_way()
            while self._out.closing is None:
                message = await self._receive()
                if message["type"] != "websocket.receive":
                    released = message.get("code") == 1000
                    break
                if self._out.closing is None:  # else it was told to go meanwhile
                    await self._take(message)
        except Refusal as refusal:
            self.expel(refusal)
        finally:
            self._leave_short_way()
            if self._session is not None:
                self._session.leave(self, time.monotonic(), released)
            if self._out.closing is not None:  # what is to be said is said before it closes
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(asyncio.shield(writer), OPENING)
            for task in (writer, *self._tasks):
                task.cancel()
            await asyncio.gather(writer, *self._tasks, return_exceptions=True)

    def expel(self, refusal: Refusal) -> None:
        """Tell the client why, and close."""
        self._leave_short_way()  # what comes now ends the connection
        self._out.close(refusal)

    def _take_short_way(self) -> None:
        direct, session = self._direct, self._session
        if direct is None or session is None:
            return
        direct.take = self._take_now
        place = self._host.registry.places.get(session.robot)
        bell = None if place is None else place.desk.bell
        if bell is not None and isinstance(direct, OwnedWebSocket):
            direct.share(self._reader.frame, self._fits, bell)

    def _leave_short_way(self) -> None:
        if self._direct is not None:
            self._direct.take = None
        if isinstance(self._direct, OwnedWebSocket):
            self._direct.unshare()

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
        self._out.text({**opened_json(self._host, opened), **schema_json(self._host)})

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
                self._out.refuse(refusal)
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
            self._host.submit(seen, self._out.done_binary, self._out.send_now)
        except Refusal as refusal:
            self._out.refuse(refusal)
        return 0.0

    def _fits(self, seen: Observed) -> bool:
        """In the policy's thread: take an observation that nothing is wrong with; else False, and
        it is for `_take_now` to say what."""
        if self._session is None or seen.robot != self._session.robot:
            return False
        return self._host.take(seen, self._allowed, self._out.done_binary, self._out.send_now)

    def _too_fast(self) -> float:
        self._out.refuse(too_fast(self._host.settings.rate))
        return 1.0 / self._host.settings.rate

    def _take_text(self, text: str | None) -> None:
        data = self._json(text)
        kind = data.pop("kind")
        if kind == "observation":
            seen = read_observation(data)
            self._own(seen.robot, seen.sequence)
            self._host.submit(seen, self._out.done_text)
        elif kind == "reset":
            wanted: OpenMessage = read_json(OpenMessage, data)
            self._own(wanted.robot, None)
            assert self._session is not None  # messages are taken after it is open
            own = self._session.id
            session = own if wanted.session is None else read_session(wanted.session)
            ended = self._host.end_episode(wanted.robot, session, wanted.measured)
            task = asyncio.create_task(self._restart(*ended))  # it may wait for a step
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            raise Refusal("malformed", f"kind {kind[:40]!r}: observation or reset")

    def _own(self, robot: str, sequence: int | None) -> None:
        own = None if self._session is None else self._session.robot
        if robot != own:
            raise Refusal("malformed", f"this connection is robot {own}'s, not {robot}'s", sequence)

    async def _restart(self, place: Place, resetting: Future[None]) -> None:
        try:
            opened = await self._host.restart(place, resetting)
        except Refusal as refusal:
            self._out.refuse(refusal)
        else:
            self._out.text(opened_json(self._host, opened))
