"""Connections whose sockets the policy's thread reads: they come, go, hang and are taken over."""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.service.doubles import CanarySeat, Running, owned, protocol, service, until
from tests.service.raw import Raw, state
from tests.service.test_desk import Hanging
from tests.service.test_direct import frame, own_socket
from wmrt.core.wire import Acted
from wmrt.service.crew import Crew
from wmrt.service.host import Host
from wmrt.service.refusals import Refusal
from wmrt.service.settings import ServeSettings


@pytest.fixture
def running(tmp_path: Path, taken: Counter[str]) -> Iterator[Running]:
    with service(tmp_path, websocket="owned", on_second_client="takeover", tcp=True) as one:
        yield one


def test_a_policy_that_hangs_holds_nobody_up(tmp_path: Path, taken: Counter[str]) -> None:
    seat = Hanging()
    try:
        with service(tmp_path, [seat], websocket="owned", deadline=0.1) as running:
            raw = running.raw()
            one = owned(running, raw)
            for turn in range(3):
                base = 10 * turn
                until(lambda: raw.acted(int(time.monotonic() * 1e6)).source == "policy")
                base = running.host.registry.places["r1"].session.sequence
                seat.go.clear()
                taken.clear()
                for n in range(1, 4):
                    answer = raw.acted(base + n, state=state(0.5))
                    assert answer.late and answer.source == "fallback"
                assert taken["wmrt-policy"] <= 1  # it hangs in the step of the first one
                raw.say({"kind": "reset", "version": 1, "robot": "r1"})
                raw.opened = raw.hear(5.0)
                assert raw.opened["epoch"] == turn + 1
                seat.go.set()
                until(lambda: raw.acted(int(time.monotonic() * 1e6)).source == "policy")
                until(lambda: one._watched)
    finally:
        seat.go.set()


def test_a_takeover_while_the_thread_reads(running: Running) -> None:
    holders = []
    for turn in range(5):
        raw = running.raw()
        raw.open()
        if holders:
            assert holders[-1].hear()["error"]["name"] == "taken_over"
            assert holders[-1].closed() == 4409
        holders.append(raw)
        for sequence in range(3):
            assert raw.acted(sequence).step == 3 * turn + sequence + 1
        until(
            lambda: sum(hasattr(c, "share") for c in running.server.server_state.connections) == 1
        )
        until(lambda: protocol(running)._watched)


@pytest.mark.parametrize("word", [True, False])
def test_who_goes_while_the_thread_reads_lets_go(running: Running, word: bool) -> None:
    for _ in range(10):
        raw = running.raw()
        owned(running, raw)
        place = running.host.registry.places["r1"]
        raw.channel.close() if word else raw.channel.drop()
        until(lambda: place.session.holder is None)  # noqa: B023
        assert place.session.released is word
        until(lambda: not running.server.server_state.connections)


def test_the_last_observation_before_a_good_bye_is_stepped(running: Running) -> None:
    for turn in range(1, 11):
        raw = running.raw()
        owned(running, raw)
        own_socket(raw).sendall(frame(raw.packed(1)))
        raw.channel.drop()
        until(lambda: running.seats[0].asked == 3 + 2 * turn)  # noqa: B023
        until(lambda: not running.server.server_state.connections)


def test_a_client_that_sends_nonsense_while_the_thread_reads(running: Running) -> None:
    for wrong, code in ((frame(b"x", masked=False), 1002), (b"\x82\xff" + b"\x7f" * 8, 1009)):
        raw = running.raw()
        owned(running, raw)
        own_socket(raw).sendall(wrong)
        assert raw.closed() == code
        until(lambda: running.host.registry.places["r1"].session.holder is None)


@pytest.mark.parametrize("reader", ["wmrt-policy", "event loop"])
def test_a_fault_while_reading_ends_the_connection_and_no_more(
    running: Running, monkeypatch: pytest.MonkeyPatch, reader: str
) -> None:
    raw = running.raw()
    one = owned(running, raw)
    with monkeypatch.context() as patch:

        def broken(*_: Any) -> None:
            raise RuntimeError("ours")

        if reader == "wmrt-policy":
            patch.setattr(Host, "take", broken)
        else:
            patch.setattr(Host, "submit", broken)
            patch.setattr(one, "_free_to_take", lambda: False)
            running.host.registry.places["r1"].desk.bell.ring()  # type: ignore[union-attr]
            until(lambda: not one._watched)
        raw.say(raw.packed(1))
        assert raw.closed() is None
        until(lambda: not running.server.server_state.connections)
    again = running.raw()
    again.open("r1", session=raw.opened["session"])
    assert again.acted(2).step == 2


def test_a_robot_is_put_away_while_the_thread_reads(running: Running) -> None:
    import asyncio

    def policies() -> set[threading.Thread]:
        return {one for one in threading.enumerate() if one.name == "wmrt-policy"}

    others = policies()  # of tests whose model hangs for good
    raw = running.raw()
    owned(running, raw)
    assert policies() - others
    place = running.host.registry.places["r1"]
    leaving = running.host.registry.put_away(place, Refusal("draining", "enough"))
    asyncio.run_coroutine_threadsafe(leaving, running.host.outbox.loop).result(10.0)
    assert raw.hear()["error"]["name"] == "draining"
    assert raw.closed() == 4503
    until(lambda: not policies() - others)


def test_a_stop_while_the_thread_reads(tmp_path: Path) -> None:
    with service(tmp_path, websocket="owned") as running:
        raw = running.raw()
        owned(running, raw)
        running.server.should_exit = True
        assert raw.closed() == 1012


def test_http_and_the_thread_at_once(running: Running, taken: Counter[str]) -> None:
    """Every number is stepped at most once, whoever brings it."""
    raw = running.raw()
    owned(running, raw)
    told: Counter[str] = Counter()
    message = {
        "version": 1, "robot": "r1", "session": raw.opened["session"], "epoch": 0,
        "state": state(),
    }  # fmt: skip

    def over_http() -> None:
        with httpx.Client(base_url=running.tcp, trust_env=False) as http:
            for sequence in range(1, 150):
                answer = http.post("/v1/act", json=message | {"sequence": sequence}).json()
                told[answer.get("error", answer).get("name", answer["kind"])] += 1

    other = threading.Thread(target=over_http)
    other.start()
    for sequence in range(1, 150):
        got = raw.ask(sequence)
        told["action" if isinstance(got, Acted) else got["error"]["name"]] += 1
    other.join(60.0)
    assert set(told) <= {"action", "duplicate", "stale", "superseded"} and told.total() == 298
    counts = running.host.registry.places["r1"].session.counts
    until(lambda: counts["taken"] == counts["answered"] + counts["superseded"])
    assert counts["taken"] == 298 - told["duplicate"] - told["stale"] + 1
    assert running.seats[0].asked == 3 + counts["answered"]
    assert running.host.outbox.idle.is_set() and not running.host.outbox.jobs


def test_connections_come_and_go_while_steps_run(running: Running, taken: Counter[str]) -> None:
    """Descriptors are used again at once, by connections that are not this robot's."""
    stop, failed = threading.Event(), []

    def others(seed: int) -> None:
        draw = random.Random(seed)
        while not stop.is_set():
            try:
                with Raw(running.address) as raw:
                    if draw.random() < 0.5:
                        raw.say(draw.randbytes(draw.randint(0, 60)))
                        raw.hear()
                with socket.create_connection(("127.0.0.1", int(running.tcp.split(":")[2]))) as raw:
                    raw.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                    assert b"200 OK" in raw.recv(1000)
            except Exception as error:
                failed.append(error)

    threads = [threading.Thread(target=others, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    session, last = None, -1
    for turn in range(25):
        raw = running.raw()
        raw.open("r1", **({} if session is None else {"session": session}))
        session = raw.opened["session"]
        for _ in range(8):
            last += 1
            answer = raw.acted(last, state=state(last / 1000))
            assert answer.sequence == last and answer.action[0] == pytest.approx(last / 1000)
        if turn % 3 == 0:
            raw.channel.drop()
        elif turn % 3 == 1:
            raw.channel.close()
    stop.set()
    for thread in threads:
        thread.join(30.0)
    assert not failed, failed[:3]
    assert running.seats[0].asked == 3 + last + 1 and taken["wmrt-policy"] > 50


def test_descriptors_are_given_back(tmp_path: Path) -> None:
    with service(tmp_path, websocket="owned", on_second_client="takeover") as running:
        for turn in range(12):
            with Raw(running.address) as raw:
                owned(running, raw)
            until(lambda: not running.server.server_state.connections)
            if turn == 1:
                before = len(os.listdir("/proc/self/fd"))
        until(lambda: len(os.listdir("/proc/self/fd")) <= before)


@pytest.mark.parametrize(
    ("changes", "robots", "reason"),
    [
        ({"deadline_by": "thread"}, 1, "no step is decided in a policy's own thread"),
        ({}, 2, "no step is decided in a policy's own thread"),
        ({"websocket": "direct"}, 1, None),
    ],
)
def test_where_it_cannot_be_it_says_so(
    changes: dict[str, Any], robots: int, reason: str | None
) -> None:
    settings = ServeSettings(robots=robots, cpu=-1, **({"websocket": "owned"} | changes))
    crew = Crew([CanarySeat() for _ in range(robots)], settings)
    told = crew.described["websocket"]
    assert not crew.owned and told["resolved"] == "direct"
    assert (reason is None) == ("reason" not in told)
    assert reason is None or told["reason"].startswith(reason)
    crew.close()
