"""The WebSocket: sessions, and who holds a robot."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.service.doubles import CanarySeat, Running, service, until
from wmrt.client.address import Address
from wmrt.client.channel import Channel
from wmrt.service.messages import Reader
from wmrt.service.refusals import Refusal
from wmrt.service.stream import Link

pytestmark = pytest.mark.usefixtures("each_codec", "each_way")


def test_a_session_that_is_not_known_is_409(tmp_path: Path) -> None:
    with service(tmp_path, [CanarySeat(), CanarySeat()]) as running:
        raw = running.raw()
        raw.open()
        assert raw.refused(0, session=raw.seen(0).session ^ 1) == "unknown_session"
        other = running.raw()
        assert other.open("r1", session="0" * 16)["error"]["name"] == "unknown_session"
        assert other.closed() == 4409
        assert running.raw().open("r2", session="0" * 16)["error"]["name"] == "unknown_session"
        assert raw.acted(0).step == 1


def test_a_connection_speaks_for_its_own_robot_alone(tmp_path: Path) -> None:
    with service(tmp_path, [CanarySeat(), CanarySeat()]) as running:
        one, two = running.raw(), running.raw()
        one.open("r1")
        two.open("r2")
        theirs = two.seen(0)
        assert one.refused(0, robot="r2", session=theirs.session) == "malformed"
        assert two.acted(0).sequence == 0


def test_a_second_client_is_refused(running: Running) -> None:
    first, second = running.raw(), running.raw()
    first.open()
    first.acted(0)
    began = time.monotonic()
    told = second.open()
    assert told["error"]["name"] == "held"
    assert "robot r1; it lets go as it closes, or 10 s after" in told["error"]["message"]
    assert second.closed() == 4409 and time.monotonic() - began < 2.0
    assert first.acted(1).step == 2


def test_a_robot_is_held_for_a_while_after_its_connection_broke(tmp_path: Path) -> None:
    with service(tmp_path, hold=1.0) as running:
        first = running.raw()
        first.open()
        first.channel.drop()  # without a word
        place = running.host.registry.places["r1"]
        until(lambda: place.session.holder is None)
        assert running.raw().open()["error"]["name"] == "held"
        until(lambda: running.raw().open()["kind"] == "opened")
        assert place.session.epoch == 1


def test_who_says_good_bye_lets_go_at_once(running: Running) -> None:
    first = running.raw()
    first.open()
    first.acted(0)
    first.channel.close()
    until(lambda: running.host.registry.places["r1"].session.holder is None)
    second = running.raw()
    opened = second.open()
    assert opened["memory"] == "fresh" and opened["epoch"] == 1
    assert second.acted(0).action[1] == pytest.approx(1e-4)


def test_a_second_client_takes_over_and_the_first_is_told(tmp_path: Path) -> None:
    with service(tmp_path, on_second_client="takeover") as running:
        first, second = running.raw(), running.raw()
        first.open()
        first.acted(0)
        opened = second.open()
        assert opened["memory"] == "kept" and opened["epoch"] == 1
        assert opened["session"] != first.opened["session"]
        assert first.hear()["error"]["name"] == "taken_over"
        assert first.closed() == 4409
        assert second.acted(0).step == 2  # the robot goes on, its steps are counted on


@pytest.mark.parametrize("how", ["takeover", "same client", "after good-bye", "over HTTP"])
@pytest.mark.parametrize("state_of_breakers", ["open", "half_open"])
def test_nobody_heals_by_connecting_again(tmp_path: Path, how: str, state_of_breakers: str) -> None:
    """Only good observations do, or a reset of the session, which is an episode's end."""
    with service(tmp_path, tcp=True, on_second_client="takeover", hold=0.01) as running:
        raw = running.raw()
        own = raw.open()
        raw.acted(0)
        assert raw.acted(1, state={"canary": None}).breakers == "open"
        if state_of_breakers == "half_open":
            numbers = iter(range(2, 99))
            until(lambda: raw.acted(next(numbers)).breakers == "half_open")
        desk = running.host.registry.places["r1"].desk
        assert desk.breakers.state.value == state_of_breakers
        if how not in ("takeover", "same client"):
            raw.channel.close()
            until(lambda: running.host.registry.places["r1"].session.holder is None)
            time.sleep(0.05)
        if how == "over HTTP":
            wanted = {"robot": "r1", "measured": [0.5, 0.5]}
            assert httpx.post(f"{running.tcp}/v1/reset", json=wanted).json()["memory"] == "fresh"
            assert desk.breakers.state.value == state_of_breakers
            assert desk.breakers.reference == (0.5, 0.5)
            return
        second = running.raw()
        session = {"session": own["session"]} if how == "same client" else {}
        opened = second.open(**session)
        assert opened["memory"] == ("fresh" if how == "after good-bye" else "kept")
        assert desk.breakers.state.value == state_of_breakers
        first = max(opened["sequence"], 0) + 1
        source = "fallback" if state_of_breakers == "open" else "policy"
        answer = second.acted(first)
        assert (answer.breakers, answer.source) == (state_of_breakers, source)
        second.say({"kind": "reset", "version": 1, "robot": "r1"})  # a new episode
        assert second.hear()["kind"] == "opened"
        assert desk.breakers.state.value == "closed"


def test_a_client_goes_on_with_its_session_over_another_connection(running: Running) -> None:
    first = running.raw()
    own = first.open()
    first.acted(3)
    second = running.raw()
    opened = second.open("r1", session=own["session"])
    assert opened["resumed"] and opened["memory"] == "kept" and opened["sequence"] == 3
    assert first.hear()["error"]["name"] == "taken_over"
    assert second.refused(3) == "duplicate"
    assert second.acted(4).step == 2


def test_a_connection_that_was_sent_here_for_another_robot_is_refused(running: Running) -> None:
    end = time.monotonic() + 10.0
    raw = running.raw()
    for robot in ("r2", "R1"):
        raw.channel.drop()
        raw.channel = Channel(Address(running.address), None, end, None, robot)
        assert raw.open("r1")["error"]["name"] == "misrouted" and raw.closed() == 4421
    raw.channel.drop()
    raw.channel = Channel(Address(running.address), None, end, None, "r1")
    assert raw.open("r1")["kind"] == "opened" and raw.acted(0).step == 1


def test_who_was_told_to_go_is_not_heard_any_more(running: Running) -> None:
    """What was under way as its session went on over another connection."""
    raw = running.raw()
    own = raw.open()
    raw.acted(0)
    place, host = running.host.registry.places["r1"], running.host
    late, asked = raw.packed(1), running.seats[0].asked

    async def send(message: Any) -> None:
        pass

    async def talk() -> None:
        link: Link | None = None
        opening = {"kind": "open", "version": 1, "robot": "r1", "session": own["session"]}

        async def receive() -> Any:
            if place.session.holder is not link:
                return {"type": "websocket.receive", "text": json.dumps(opening)}
            assert link is not None
            link.expel(Refusal("taken_over", "over another connection"))
            return {"type": "websocket.receive", "bytes": late}

        link = Link(host, Reader(host.schema), receive, send, lambda: True)
        await link.run()

    asyncio.run_coroutine_threadsafe(talk(), host.outbox.loop).result(20.0)
    assert place.session.sequence == 0 and running.seats[0].asked == asked
