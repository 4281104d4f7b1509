"""`GET /v1/live`: frames for the live page, as server-sent events, a few a second.

A viewer that reads slowly gets fewer frames: the next one is made, from bounded records, when the
last one is with the system, which holds `UNSENT` bytes at most that are not on the way yet. One
that stops reading is cut off.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from wmrt.service.host import Host
from wmrt.service.live import Cursor, Live
from wmrt.service.messages import dumps
from wmrt.service.refusals import Refusal
from wmrt.service.sessions import check_name

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

#: Seconds between two frames, and between two of those that bring a new viewer up to date; robots
#: have the event loop meanwhile.
FRAME, BETWEEN = 0.2, 0.01
#: Viewers at one time.
VIEWERS = 8
#: Seconds for which a frame may wait until the viewer's side takes it.
SEND_SECONDS = 10.0
#: Bytes that wait in the system. Without this it took 2.8 MB for one that reads nothing, which is
#: minutes of frames that a slow link would bring ever later.
UNSENT = 16384
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-accel-buffering", b"no"),  # nginx would collect frames
]


class Viewers:
    """The route's application.

    Attributes:
        count: of viewers at this time.
    """

    def __init__(self, host: Host, live: Live) -> None:
        self._host, self._live = host, live
        self.count = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        robot = _robot(scope)
        if self.count >= VIEWERS:
            raise Refusal(
                "too_many_connections", f"{VIEWERS} look at the robots, which is the limit"
            )
        self.count += 1
        gone = asyncio.create_task(_gone(receive))
        _hold_little(scope.get("state", {}).get("transport"))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            if scope["method"] == "HEAD":
                await send({"type": "http.response.body", "body": b""})
            else:
                await self._show(robot, gone, send)
        except asyncio.TimeoutError:  # it does not read; the server closes what is not completed
            pass
        finally:
            self.count -= 1
            gone.cancel()

    async def _show(self, robot: str | None, gone: asyncio.Task[None], send: Send) -> None:
        cursor = Cursor()
        await _send(send, self._live.hello())
        while not self._host.draining:
            frame = self._live.frame(robot, cursor)
            await _send(send, dumps(frame))
            wait = BETWEEN if frame.get("more") else FRAME
            done, _ = await asyncio.wait({gone}, timeout=wait)
            if done:
                return
        await _send(send, dumps({"kind": "stopping"}))
        await send({"type": "http.response.body", "body": b""})


def _robot(scope: Scope) -> str | None:
    wanted = parse_qs(scope["query_string"].decode("latin-1")).get("robot")
    return None if wanted is None else check_name(wanted[-1])


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send(send: Send, text: str) -> None:
    """One event; TimeoutError if the viewer does not take it."""

    async def both() -> None:
        for body in (f"data: {text}\n\n".encode(), b""):  # the second one waits for the first
            await send({"type": "http.response.body", "body": body, "more_body": True})

    await asyncio.wait_for(both(), SEND_SECONDS)


def _hold_little(transport: Any) -> None:
    """Have what a viewer does not take wait where it is not made yet."""
    if transport is None:  # another server's, as in a fleet
        return
    transport.set_write_buffer_limits(high=0)
    own = transport.get_extra_info("socket")
    if own is not None and own.family in (socket.AF_INET, socket.AF_INET6):
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT)
