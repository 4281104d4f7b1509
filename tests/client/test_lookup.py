"""Finding and reaching a host: however long a name server or an address takes, by the deadline."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

import pytest

from wmrt.client import connect
from wmrt.client.lookup import Lookup
from wmrt.core.errors import DeadlineError


def soon(seconds: float) -> float:
    return time.monotonic() + seconds


def answers(monkeypatch: pytest.MonkeyPatch, *places: tuple[str, int], wait: Any = None) -> Any:
    """A name server that knows ``places`` for every name, once ``wait`` is set."""
    asked: list[str] = []
    plain = socket.getaddrinfo

    def ask(host: str, port: int, *more: Any) -> Any:
        if more[-1] & socket.AI_NUMERICHOST:
            return plain(host, port, *more)
        asked.append(host)
        assert wait is None or wait.wait(30.0)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", place) for place in places]

    monkeypatch.setattr(socket, "getaddrinfo", ask)
    return asked


def test_a_name_server_that_does_not_answer_holds_up_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        asked = answers(monkeypatch, server.getsockname(), wait=known)
        lookup, began = Lookup("robot.example", 1), time.monotonic()
        for _ in range(3):
            with pytest.raises(TimeoutError, match=r"robot\.example is not known"):
                lookup.connected(soon(0.05))
        with pytest.raises(DeadlineError, match="not known in time"):
            connect("ws://robot.example:1", "r1", opening=0.1)
        assert time.monotonic() - began < 20.0
        known.set()
        lookup.connected(soon(30.0)).close()
    assert asked == ["robot.example"] * 2  # one lookup, and the client's


def test_a_place_that_swallows_everything_leaves_time_for_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All of them together have until the deadline."""
    tried: list[float] = []

    class Deaf(socket.socket):
        def connect(self, place: Any) -> None:
            if place[1] == 1:
                tried.append(self.gettimeout() or 0.0)
                time.sleep(self.gettimeout() or 0.0)
                raise TimeoutError("timed out")
            super().connect(place)

    monkeypatch.setattr("wmrt.client.lookup.socket.socket", Deaf)
    with socket.create_server(("127.0.0.1", 0)) as server:
        answers(monkeypatch, *[("127.0.0.1", 1)] * 3, server.getsockname())
        with Lookup("robot.example", 1).connected(soon(4.0)) as own:
            assert own.getpeername() == server.getsockname()
    assert len(tried) == 3 and all(0.0 < share <= 1.01 for share in tried)
    answers(monkeypatch, *[("127.0.0.1", 1)] * 4)
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        Lookup("robot.example", 1).connected(soon(0.2))
    assert time.monotonic() - began < 5.0


def test_an_address_is_asked_nobody_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answers(monkeypatch)
    with socket.create_server(("127.0.0.1", 0)) as server:
        Lookup("127.0.0.1", server.getsockname()[1]).connected(soon(30.0)).close()
        with pytest.raises(OSError, match="no address"):
            Lookup("robot.example", 1).connected(soon(30.0))
    assert asked == ["robot.example"]


def test_a_host_that_does_not_exist_is_an_error_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = socket.getaddrinfo

    def none(*given: Any) -> Any:
        if given[-1] & socket.AI_NUMERICHOST:
            return plain(*given)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", none)
    lookup = Lookup("robot.example", 1)
    for _ in range(2):
        with pytest.raises(socket.gaierror, match="not known"):
            lookup.places(soon(30.0))
