"""The WebSocket: which observations are stepped, and what a connection may not do."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from tests.client.support import held
from tests.service.doubles import CanarySeat, Running, service, until
from tests.service.raw import state
from wmrt.core.errors import ServiceError
from wmrt.core.wire import Acted

pytestmark = pytest.mark.usefixtures("each_codec", "each_way")


def test_the_newest_observation_wins(tmp_path: Path) -> None:
    hold, seat = held()
    with service(tmp_path, [seat]) as running:
        raw = running.raw()
        raw.open()
        raw.acted(0)
        hold.clear()
        asked = seat.asked
        raw.say(raw.packed(1, state=state(0.1)))
        until(lambda: seat.asked == asked + 1)  # its step has begun; the others have to wait
        for sequence in range(2, 6):
            raw.say(raw.packed(sequence, state=state(sequence / 10)))
            until(lambda: running.host.registry.places["r1"].session.sequence == sequence)  # noqa: B023
        hold.set()
        got = [raw.hear()]
        while not isinstance(got[-1], Acted) or got[-1].sequence < 5:  # 1's may be replaced by 5's
            got.append(raw.hear())
        refused = [one["sequence"] for one in got if isinstance(one, dict)]
        answered = [one for one in got if isinstance(one, Acted)]
        assert refused == [2, 3, 4] and answered[0].sequence in (1, 5)
        assert answered[-1].sequence == 5 and answered[-1].skipped == 3
        assert answered[-1].action[0] == 0.5
        names = {one["error"]["name"] for one in got if isinstance(one, dict)}
        assert names == {"superseded"}


def test_a_reset_discards_what_is_in_work(tmp_path: Path) -> None:
    hold, seat = held()
    with service(tmp_path, [seat]) as running:
        raw = running.raw()
        raw.open()
        raw.acted(0)
        hold.clear()
        raw.say(raw.packed(1))
        until(lambda: running.host.registry.places["r1"].session.sequence == 1)
        raw.say({"kind": "reset", "version": 1, "robot": "r1"})
        until(lambda: running.host.registry.places["r1"].session.epoch == 1)
        raw.say(raw.packed(2))  # still of the old epoch
        assert raw.hear()["error"]["name"] == "stale_epoch"
        hold.set()
        first, second = raw.hear(), raw.hear()
        assert first["error"]["name"] == "discarded" and first["sequence"] == 1
        assert second["kind"] == "opened" and second["epoch"] == 1
        raw.opened = second
        assert raw.acted(2).action[1] == pytest.approx(1e-4)  # its first step since


def test_nothing_of_a_new_episode_is_stepped_before_its_reset(running: Running) -> None:
    """From a client that sends on without waiting to be told that it begins."""
    raw = running.raw()
    raw.open()
    raw.acted(0)
    host, first = running.host, raw.seen(1, epoch=1)

    async def at_once() -> Any:
        answer = asyncio.get_running_loop().create_future()
        ended = host.end_episode("r1", first.session, None)
        host.submit(first, answer.set_result)
        await host.restart(*ended)
        return await answer

    answer = asyncio.run_coroutine_threadsafe(at_once(), host.outbox.loop).result(20.0)
    assert isinstance(answer, Acted) and answer.action[1] == pytest.approx(1e-4)


def test_a_flood_is_named_and_slowed(tmp_path: Path) -> None:
    with service(tmp_path, rate=50.0) as running:
        raw = running.raw()
        raw.open()
        for sequence in range(150):
            raw.say(raw.packed(sequence))
        names = set()
        with pytest.raises(TimeoutError):
            while True:
                got = raw.hear(0.5)
                if isinstance(got, dict):
                    names.add(got["error"]["name"])
        assert "too_fast" in names
        assert raw.acted(1000).sequence == 1000


def test_a_message_that_is_too_large_ends_the_connection(tmp_path: Path) -> None:
    with service(tmp_path, max_body=4096) as running:
        raw = running.raw()
        raw.open()
        raw.say(b"W" * 5000)
        assert raw.closed() == 1009
        until(lambda: running.host.registry.places["r1"].session.holder is None)


def test_a_slow_client_gets_the_newest_answer_and_delays_nobody(tmp_path: Path) -> None:
    with service(tmp_path, [CanarySeat(), CanarySeat()]) as running:
        slow, other = running.raw(), running.raw()
        slow.open("r1")
        other.open("r2")
        big = slow.seen(0)
        text = {**big._asdict(), "session": slow.opened["session"]}
        sent = 0
        place = running.host.registry.places["r1"]
        end = time.monotonic() + 5.0
        # It asks in JSON and reads nothing.
        while sent < 3_000 and time.monotonic() < end:
            slow.say({"kind": "observation", "version": 1, **text, "sequence": sent})
            sent += 1
        until(lambda: place.session.sequence == sent - 1)
        for sequence in range(20):
            assert other.acted(sequence, state=state(0.5)).action[0] == 0.5
        last = -1
        while last < sent - 1:
            got = slow.hear()
            last = max(last, got["sequence"] or 0)
        assert place.session.counts["answered"] > 0


def test_tokens(tmp_path: Path) -> None:
    token = "t" * 32
    with service(tmp_path, token=token) as running:
        for wrong in (None, "", "x" * 32, token[:-1], token + "t", "é" * 16):
            with pytest.raises(ServiceError, match="401") as caught:
                running.raw(wrong)
            assert caught.value.name == "unauthorized"
        raw = running.raw(token)
        raw.open()
        assert raw.acted(0).step == 1


def test_connections_are_limited(tmp_path: Path) -> None:
    with service(tmp_path, connections=2) as running:
        held = [running.raw(), running.raw()]
        with pytest.raises(ServiceError) as caught:
            running.raw()
        assert caught.value.name == "too_many_connections"
        held[0].channel.drop()
        until(lambda: running.server.gate.connections == 1)
        running.raw()
