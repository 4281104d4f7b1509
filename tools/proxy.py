"""A network between a client and a service that can be cut without either side being told."""

from __future__ import annotations

import contextlib
import socket
import threading
import time


class Proxy:
    """Forwards connections of a port to another; while ``cut`` it takes bytes in and drops them.

    Neither side sees a FIN or a reset: to both, the other one has vanished.
    """

    def __init__(self, target: int) -> None:
        self.cut = threading.Event()
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                self._open.append(near)
                if self.cut.is_set():
                    continue  # nobody answers
                far = socket.create_connection(("127.0.0.1", self._target))
                self._open.append(far)
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self._forward, args=pair, daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if self.cut.is_set():
                    while True:  # its end is not told either
                        time.sleep(0.1)
                        source.recv(65536)
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        for own in self._open:
            own.close()
