"""What a service keeps: nothing of a connection that is over, so much and no more of steps."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import subprocess
import sys
import threading
import time
import tracemalloc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.core.heaps import heaps
from tests.service.doubles import Running, service, until
from tests.service.test_protocols import dialled, upgraded
from tools.wire import frame
from wmrt.core.wire import Acted
from wmrt.service import peer
from wmrt.service.worker import IO_THREADS


@pytest.fixture(autouse=True)
def uncollected() -> Iterator[None]:
    """No garbage is collected meanwhile. In a service that takes hundreds of connections: Python
    collects old objects once there are a quarter more of them, and a model's are 400,000."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def says_good_bye(running: Running) -> None:
    raw = running.raw()
    raw.open()
    raw.acted(0)
    raw.say({"kind": "nonsense", "version": 1})
    assert raw.hear()["error"]["name"] == "malformed"
    raw.channel.close()


def breaks(running: Running) -> None:
    raw = running.raw()
    raw.open()
    raw.acted(0)
    raw.channel.drop()


def is_refused(running: Running) -> None:
    with running.raw() as raw:
        assert raw.open("no name")["kind"] == "refused"
        assert raw.closed() == 4400


def sends_garbage(running: Running) -> None:
    with dialled(running) as (own,):
        upgraded(own)
        own.sendall(frame(3, b"an opcode that there is not"))
        assert own.recv(4096)  # why


def asks(running: Running) -> None:
    with dialled(running) as (own,):
        own.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert own.recv(4096).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("http", ["httptools", "h11"])
@pytest.mark.parametrize("websocket", ["owned", "direct", "asgi"])
def test_a_connection_that_is_over_is_freed_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, websocket: str, http: str
) -> None:
    seen: list[weakref.ref[Any]] = []
    made = peer.Peer.connection_made

    def connection_made(self: Any, transport: Any) -> None:
        made(self, transport)
        parts = (self, getattr(self, "conn", None), transport)
        seen.extend(weakref.ref(part) for part in parts if part is not None)

    def left() -> list[Any]:
        return [part for one in seen if (part := one()) is not None]

    monkeypatch.setattr(peer.Peer, "connection_made", connection_made)
    with service(tmp_path, websocket=websocket, http=http) as running:
        for end in (says_good_bye, breaks, is_refused, sends_garbage, asks):
            seen.clear()
            end(running)
            with contextlib.suppress(AssertionError):  # what is left says more
                until(lambda: seen and not left(), 5.0)
            assert seen and not left(), end.__name__


_HEAPS = """
import threading
from tests.core.heaps import heaps
from tests.service.doubles import CanarySeat
from wmrt.service.crew import Crew
from wmrt.service.settings import ServeSettings

before = heaps()
crew = Crew([CanarySeat(), CanarySeat()], ServeSettings(robots=2, cpu=-1))
threads = [threading.Thread(target=threading.Event().wait, args=(1.0,)) for _ in range(5)]
for thread in threads:
    thread.start()
print(heaps() - before)
"""


@pytest.mark.skipif(heaps() is None, reason="not glibc")
def test_threads_share_a_heap() -> None:
    said = subprocess.run(
        [sys.executable, "-c", _HEAPS], capture_output=True, text=True, check=True
    )
    assert said.stdout == "0\n"


@pytest.mark.parametrize("websocket", ["owned", "direct", "asgi"])
def test_a_message_takes_little_memory(tmp_path: Path, websocket: str) -> None:
    """While it is read, too: a step took 270 KB for a moment, which left holes."""
    with service(tmp_path, websocket=websocket) as running, running.raw() as raw:
        raw.open()
        counted: list[Acted] = []
        running.host.acted.append(counted.append)
        raw.acted(0)
        until(lambda: counted)  # what is kept of a robot is made with its first step
        running.host.acted.remove(counted.append)
        tracemalloc.start()
        try:
            raw.acted(1)
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            for sequence in range(2, 20):
                raw.acted(sequence)
            most = tracemalloc.get_traced_memory()[1] - before
        finally:
            tracemalloc.stop()
    assert most < 3 * peer.READ


def test_no_thread_starts_for_a_disk_while_robots_are_served(tmp_path: Path) -> None:
    with service(tmp_path, snapshots=tmp_path / "kept", snapshot_every=0.05) as running:
        raw = running.raw()
        raw.open()
        raw.acted(0)
        before = io_threads()
        assert len(before) >= IO_THREADS
        loop, store = running.host.outbox.loop, running.host.registry.store
        many = [functools.partial(time.sleep, 0.05)] * 2 * IO_THREADS
        futures = [asyncio.run_coroutine_threadsafe(asyncio.to_thread(one), loop) for one in many]
        for future in futures:
            future.result(10.0)
        assert store is not None
        until(lambda: store.written)
        assert io_threads() == before


def io_threads() -> set[threading.Thread]:
    return {one for one in threading.enumerate() if one.name.startswith("wmrt-io")}


def test_a_transport_without_attributes_of_its_own_is_left_alone() -> None:
    peer._untie(object())
