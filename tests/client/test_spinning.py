"""Looking for an answer again and again instead of sleeping."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import pytest

from tests.service.doubles import CanarySeat, service
from tests.service.raw import state
from wmrt.client import connect
from wmrt.client.spinning import duration, received
from wmrt.core.errors import DeadlineError, UsageError


def test_what_comes_while_it_looks_is_read() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        began = time.monotonic()
        assert received(ours, 100, 0.05) is None
        assert time.monotonic() - began >= 0.05
        sending = threading.Timer(0.05, lambda: theirs.sendall(b"hello"))
        sending.start()
        assert received(ours, 100, 20.0) == b"hello"
        sending.join()
        theirs.close()
        assert received(ours, 100, 20.0) == b""


@pytest.mark.parametrize("spin", [0.0, 1e-4, 1.0])
def test_a_client_that_spins_is_answered_and_keeps_its_deadline(
    tmp_path: Path, spin: float
) -> None:
    go = threading.Event()
    go.set()
    seat = CanarySeat(lambda: go.wait(20.0) * 0.0)
    with service(tmp_path, [seat]) as running:
        with connect(running.address, "r1", spin=spin, deadline=10.0) as client:
            for n in range(20):
                assert client.act(state(n / 100)).action[0] == pytest.approx(n / 100)
            go.clear()
            began = time.monotonic()
            with pytest.raises(DeadlineError):
                client.act(state(0.5), deadline=0.1)
            assert 0.1 <= time.monotonic() - began < 5.0
            go.set()
            assert client.act(state(0.25)).action[0] == 0.25
            client.reset()
            assert client.act(state(0.75)).action[0] == 0.75


@pytest.mark.parametrize("wrong", [-1e-9, 1.01, float("nan"), True])
def test_what_is_no_duration(wrong: float) -> None:
    with pytest.raises(UsageError, match="spin="):
        duration(wrong)
