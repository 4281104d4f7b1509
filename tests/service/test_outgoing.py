"""What leaves over a WebSocket, from two threads: no answer before an older one."""

from __future__ import annotations

from typing import Any, cast

from wmrt.core.wire import Acted
from wmrt.service.direct import DirectWebSocket
from wmrt.service.host import Host
from wmrt.service.outgoing import Outgoing


class Socket:
    """Takes frames at once, or not."""

    def __init__(self) -> None:
        self.free = True
        self.frames: list[bytes] = []

    def send_now(self, frame: bytes) -> bool:
        if self.free:
            self.frames.append(frame)
        return self.free


def answer(sequence: int) -> Acted:
    parts: tuple[Any, ...] = ("r1", 7, 0, sequence, sequence, (0.5,), "policy", "closed", ())
    return Acted(*parts, False, 0, None, 1, 1, 1)


def outgoing(socket: Socket) -> Outgoing:
    async def send(message: Any) -> None:
        pass

    return Outgoing(cast(Host, None), send, cast(DirectWebSocket, socket))


def test_an_answer_on_its_way_is_not_overtaken() -> None:
    socket = Socket()
    out = outgoing(socket)
    assert out.send_now(answer(0)) and len(socket.frames) == 1
    socket.free = False
    assert not out.send_now(answer(1))
    socket.free = True
    assert not out.send_now(answer(2))  # 1 is still on its way to the event loop, and so is 2
    out.done_binary(answer(1))
    out._answer = None  # it was sent
    assert not out.send_now(answer(3)), "2 has not come yet"
    out.done_binary(answer(2))
    out.done_binary(answer(3))
    assert not out.send_now(answer(4))  # 3 waits to be sent
    out._answer = None
    out.done_binary(answer(4))
    out._answer = None
    assert out.send_now(answer(5)) and len(socket.frames) == 2


def test_an_answer_is_seen_to_wait_before_it_is_taken_off_its_way(monkeypatch: Any) -> None:
    """The policy's thread may send at any moment between the two."""
    socket = Socket()
    out = outgoing(socket)
    socket.free = False
    assert not out.send_now(answer(0))
    socket.free = True
    pack, sent = out._pack, []

    class Looks:
        """An answer that is packed: another thread comes meanwhile."""

        def __call__(self, acted: Acted) -> bytes:
            sent.append(out.send_now(answer(1)))
            return pack(acted)

    out._pack = Looks()
    out.done_binary(answer(0))
    assert sent == [False] and socket.frames == []
