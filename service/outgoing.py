"""What leaves over a WebSocket: answers, the newest first of all, and texts in their order."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

from wmrt.core.codec import codec
from wmrt.core.wire import Acted, acted_json, refused_json
from wmrt.service.direct import DirectWebSocket, framer
from wmrt.service.host import Host
from wmrt.service.messages import dumps
from wmrt.service.refusals import Refusal

if TYPE_CHECKING:
    from starlette.types import Send

#: Refusals and other texts that wait for a slow client; the oldest goes first.
TEXTS = 64
#: Close codes of applications begin here; the status of the refusal is added.
CODES = 4000


class Outgoing:
    """One connection's.

    Answers wait in a place for one: a client that reads slowly gets the newest. Texts wait in a
    line of `TEXTS`.

    Args:
        direct: sends binary messages at once, where the server has that.

    Attributes:
        closing: code and reason with which it is closed; None for as long as it stays open.
    """

    def __init__(self, host: Host, send: Send, direct: DirectWebSocket | None) -> None:
        self._host, self._send, self._direct = host, send, direct
        own = codec()
        self._pack, self._frame = own.pack_acted, framer(own)
        self._answer: bytes | str | None = None
        self._texts: deque[str] = deque(maxlen=TEXTS)
        self._wake = asyncio.Event()
        self._sending = False  # a task does
        # Answers that could not be sent at once, and those of them that have come here since: each
        # is counted by one thread alone.
        self._handed = self._taken = 0
        self.closing: tuple[int, str] | None = None

    def done_binary(self, answer: Acted | Refusal) -> None:
        """An answer for a client that speaks binary."""
        if isinstance(answer, Refusal):
            self.refuse(answer)
            return
        self._answer = self._pack(answer)
        self._taken += 1  # not before it is seen to wait: a newer one would be sent first
        self._wake.set()

    def send_now(self, answer: Acted) -> bool:
        """In the thread that decided it. False if it has to come after something else."""
        direct = self._direct
        if direct is None:
            return False
        owed = self._handed > self._taken
        if not (owed or self._sending or self._texts or self._answer is not None):
            if direct.send_now(self._frame(answer)):
                return True
        self._handed += 1
        return False

    def done_text(self, answer: Acted | Refusal) -> None:
        """An answer for a client that speaks JSON."""
        if isinstance(answer, Refusal):
            self.refuse(answer)
        else:
            self._answer = dumps(acted_json(answer))
            self._wake.set()

    def refuse(self, refusal: Refusal) -> None:
        """Say no, and count it."""
        self._host.refuse(refusal)
        self.text(refused_json(refusal.refused))

    def text(self, data: dict[str, Any]) -> None:
        """A JSON object."""
        self._texts.append(dumps(data))
        self._wake.set()

    def close(self, refusal: Refusal) -> None:
        """Say why, and close."""
        self.refuse(refusal)
        self.closing = (CODES + refusal.status, refusal.name)
        self._wake.set()

    async def write(self) -> None:
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
                if self.closing is not None and not self._texts:
                    code, name = self.closing
                    await send({"type": "websocket.close", "code": code, "reason": name})
                    return
        except OSError:  # the client is gone, which the other side of this connection finds too
            return
