"""One connection of a client, against a server that does what it is told to."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from websockets.protocol import State
from websockets.server import ServerProtocol

from wmrt.client.address import Address
from wmrt.client.channel import Channel, Lost


def test_what_is_said_before_a_close_is_heard(tmp_path: Path) -> None:
    """Although the answer to the close finds nobody there any more."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        listening.listen(1)

        def serve() -> tuple[socket.socket, ServerProtocol]:
            peer, _ = listening.accept()
            protocol = ServerProtocol()
            while protocol.state is State.CONNECTING:
                protocol.receive_data(peer.recv(65536))
                for request in protocol.events_received():
                    protocol.send_response(protocol.accept(request))  # type: ignore[arg-type]
                _say(peer, protocol)
            return peer, protocol

        with ThreadPoolExecutor(1) as pool:
            served = pool.submit(serve)
            channel = Channel(Address(f"unix:{tmp_path}/s"), None, time.monotonic() + 30.0, None)
            peer, protocol = served.result(30.0)
    protocol.send_binary(b"the last action")
    protocol.send_close(1012)
    _say(peer, protocol)
    peer.close()
    assert channel.receive(time.monotonic() + 30.0) == b"the last action"
    with pytest.raises(Lost) as lost:
        channel.receive(time.monotonic() + 30.0)
    assert lost.value.code == 1012
    channel.drop()


def _say(peer: socket.socket, protocol: ServerProtocol) -> None:
    peer.sendall(b"".join(data for data in protocol.data_to_send() if data))
