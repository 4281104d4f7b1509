"""The connection by itself."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import pytest
from websockets.server import ServerProtocol

from wmrt.client.channel import Address, Channel, Lost


def test_what_was_said_before_a_good_bye_is_heard(tmp_path: Path) -> None:
    """A service that stops sends its last answer, says good-bye and is gone: the answer to the
    good-bye cannot be sent any more."""
    path, gone = tmp_path / "s", threading.Event()

    def serve() -> None:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(path))
            listening.listen()
            ready.set()
            own, _ = listening.accept()
        protocol = ServerProtocol()
        with own:
            protocol.receive_data(own.recv(65536))
            (request,) = protocol.events_received()
            protocol.send_response(protocol.accept(request))  # type: ignore[arg-type]
            protocol.send_binary(b"the last answer")
            protocol.send_close(1012)
            handshake, *rest = protocol.data_to_send()
            own.sendall(handshake)
            opened.wait(10.0)
            own.sendall(b"".join(rest))
        gone.set()

    ready, opened = threading.Event(), threading.Event()
    thread = threading.Thread(target=serve)
    thread.start()
    assert ready.wait(10.0)
    channel = Channel(Address(f"unix:{path}"), None, time.monotonic() + 10.0, None)
    opened.set()
    assert gone.wait(10.0)
    thread.join()
    end = time.monotonic() + 10.0
    assert channel.receive(end) == b"the last answer"
    with pytest.raises(Lost) as caught:
        channel.receive(end)
    assert caught.value.code == 1012
    channel.drop()
