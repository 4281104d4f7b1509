"""Whoever is refused at the door waits for the steps that are under way, within bounds."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import random
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.service.doubles import CanarySeat, Running, service, until
from tests.service.raw import Raw
from tests.service.test_acceptor import error, named, said
from tests.service.test_protocols import dialled
from tests.service.test_server import http_status
from tools.wire import heard
from wmrt.service import acceptor
from wmrt.service.acceptor import Acceptor


class Held(CanarySeat):
    """Every step takes until ``go``."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.go.set()

    def step(self, state: Any, previous_action: Any) -> Any:
        assert self.go.wait(60.0)
        return super().step(state, previous_action)


@contextlib.contextmanager
def stepping(
    tmp_path: Path, waiting: int = 0, **changes: Any
) -> Iterator[tuple[Running, Raw, Held, list[socket.socket]]]:
    """A service whose one robot waits for an answer, until its seat goes on; connections that were
    there before, and say nothing yet."""
    seat = Held()
    with service(tmp_path, [seat], deadline=60.0, **changes) as running:
        raw = running.raw()
        raw.open("r1")
        with dialled(running, waiting) as owns:
            until(lambda: len(running.server.acceptor._waiting) == waiting)
            seat.go.clear()
            try:
                raw.say(raw.packed(0))
                until(lambda: running.host.outbox.working)
                yield running, raw, seat, owns
            finally:
                seat.go.set()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is refused waits for steps for as long as they take."""
    for name in ("ONE", "ALL", "PATIENCE"):
        monkeypatch.setattr(acceptor, name, 60.0)


@pytest.mark.parametrize("websocket", ["owned", "direct", "asgi"])
def test_whoever_is_refused_waits_for_a_step(tmp_path: Path, patient: None, websocket: str) -> None:
    with service(tmp_path, websocket=websocket) as running:  # not while no step is under way
        running.raw().open("r1")
        assert error(said(running, named("r2")))[1] == "too_many_robots"
    with (
        stepping(tmp_path, websocket=websocket) as (running, raw, seat, _),
        dialled(running, 9) as owns,
    ):
        counts, door = running.host.counts, running.server.acceptor
        for own in owns:
            own.sendall(named("r2"))
        until(lambda: door._resting)
        time.sleep(0.05)
        assert counts["too_many_robots"] == 0 and not door._waiting
        seat.go.set()
        assert raw.hear().sequence == 0
        for own in owns:
            assert error(heard(own, 10.0)) == ("429", "too_many_robots")
        until(lambda: not running.host.outbox.working)
        assert counts["too_many_robots"] == 9


def test_a_late_head_waits_for_a_step(tmp_path: Path, patient: None) -> None:
    with stepping(tmp_path, waiting=7) as (running, raw, seat, owns):
        for own in owns:
            own.sendall(named("r2"))
        door = running.server.acceptor
        until(lambda: len(door._heads) == 7)
        time.sleep(0.05)
        assert running.host.counts["too_many_robots"] == 0
        seat.go.set()
        assert raw.hear().sequence == 0
        for own in owns:
            assert error(heard(own, 10.0)) == ("429", "too_many_robots")
        assert not door._waiting and not door._heads


def test_a_step_that_hangs_keeps_nobody_at_the_door(tmp_path: Path) -> None:
    """184 at once, half of them with their heads too late, some never: all are answered."""
    with stepping(tmp_path, connections=400) as (running, raw, seat, _):
        with dialled(running, 200) as owns:
            for own in owns[::2]:
                own.sendall(named("r2"))
            health = http_status(tmp_path / "wmrt.sock", "/healthz")
            for own in owns[1:168:2]:
                own.sendall(named("r2"))
            told = [error(heard(own, 30.0)) for own in (*owns[::2], *owns[1:168:2])]
        assert told == [("429", "too_many_robots")] * 184 and health == 200
        assert running.host.counts["too_many_robots"] == 184
        assert running.host.outbox.working  # all the time
        seat.go.set()
        assert raw.hear().sequence == 0


def test_one_is_told_after_a_moment_and_all_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """While steps are under way: one each `ONE` seconds, and after `ALL` whoever is left."""
    one, together = 0.05, random.Random(seed).uniform(0.3, 0.6)
    monkeypatch.setattr(acceptor, "ONE", one)
    monkeypatch.setattr(acceptor, "ALL", together)
    monkeypatch.setattr(acceptor, "PATIENCE", 60.0)
    with stepping(tmp_path) as (running, _, _, _), dialled(running, 40) as owns:
        for own in owns:
            own.sendall(named("r2"))
        until(lambda: running.server.acceptor._resting)
        began = time.monotonic()
        until(lambda: running.host.counts["too_many_robots"] == 1)
        until(lambda: time.monotonic() - began > 0.2)
        assert running.host.counts["too_many_robots"] <= 5  # 40 with none that waits
        until(lambda: running.host.counts["too_many_robots"] == 40)
        assert time.monotonic() - began > 0.25  # not before: 0.3, less what came before the look
        for own in owns:
            assert error(heard(own, 10.0)) == ("429", "too_many_robots")


def test_a_stop_leaves_nobody_who_waits_for_a_step(tmp_path: Path, patient: None) -> None:
    with stepping(tmp_path, waiting=3, drain=0.1) as (running, _, _, owns):
        owns[0].sendall(named("r2"))
        until(lambda: len(running.server.acceptor._heads) == 1)
        running.server.should_exit = True
        for own in owns:
            with contextlib.suppress(ConnectionResetError):  # its head was not read
                assert own.recv(1 << 16) == b""


def test_who_rests_does_not_ask_a_system_without_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptor, "RETRY", 0.3)
    asked: list[float] = []

    class Listening(socket.socket):
        def accept(self) -> Any:
            asked.append(time.monotonic())
            if len(asked) == 1:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return super().accept()

    async def connected(own: socket.socket) -> None:
        own.close()

    async def run() -> None:
        with Listening(socket.AF_UNIX) as own, socket.socket(socket.AF_UNIX) as peer:
            own.bind(str(tmp_path / "s"))
            own.listen(8)
            one = Acceptor([own], None, connected, lambda: 9)
            one.start()
            peer.connect(str(tmp_path / "s"))
            end = time.monotonic() + 20.0
            while len(asked) < 3 and time.monotonic() < end:
                one._rest(0.0)
                await asyncio.sleep(0.001)
            one.stop()

    asyncio.run(run())
    assert asked[1] - asked[0] >= 0.29


def test_a_system_without_files_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(acceptor, "RETRY", 0.02)
    code = random.Random(seed).choice([errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
    failing = [OSError(code, os.strerror(code))] * 2
    got: list[socket.socket] = []

    class Listening(socket.socket):
        def accept(self) -> Any:
            if failing:
                raise failing.pop()
            return super().accept()

    async def connected(own: socket.socket) -> None:
        got.append(own)

    async def run() -> None:
        with Listening(socket.AF_UNIX) as own:
            own.bind(str(tmp_path / "s"))
            own.listen(8)
            one = Acceptor([own], None, connected, lambda: 9)
            one.start()
            with socket.socket(socket.AF_UNIX) as peer:
                peer.connect(str(tmp_path / "s"))
                end = time.monotonic() + 20.0
                while not got and time.monotonic() < end:
                    await asyncio.sleep(0.005)
            one.stop()

    asyncio.run(run())
    assert len(got) == 1 and not failing
    got[0].close()
