"""The WebSocket: sessions, sequence numbers, what is malformed, who holds a robot."""

from __future__ import annotations

import json
import math
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import pytest

from tests.core.codecs import MOSTLY, arm
from tests.service.doubles import CanarySeat, Running, service, until
from tests.service.raw import state
from wmrt.client.address import Address
from wmrt.client.channel import Channel
from wmrt.core.errors import ServiceError
from wmrt.core.wire import MSGPACK, VERSION, Acted, pack_observed


@pytest.fixture(params=MOSTLY, autouse=True)
def codec(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What makes and reads the messages: all of it holds for both."""
    arm(request.param, monkeypatch)


@pytest.fixture(autouse=True, params=["owned", "direct", "asgi"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever takes binary messages: what is said here holds."""
    monkeypatch.setenv("WMRT_SERVE_WEBSOCKET", request.param)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    with service(tmp_path) as one:
        yield one


def test_an_observation_is_answered(running: Running) -> None:
    raw = running.raw()
    opened = raw.open("r1")
    assert opened["memory"] == "fresh" and not opened["resumed"] and opened["sequence"] == -1
    answer = raw.acted(0, state=state(0.25), captured_ns=77)
    assert answer.action[0] == 0.25 and answer.source == "policy" and answer.breakers == "closed"
    assert (answer.robot, answer.sequence, answer.step, answer.captured_ns) == ("r1", 0, 1, 77)
    assert answer.policy_ns is not None and answer.act_ns >= answer.policy_ns > 0


def test_the_three_encodings_say_the_same(running: Running) -> None:
    raw = running.raw()
    raw.open()
    floats = raw.acted(0, state=state(0.5))
    seen = raw.seen(1, state=state(0.5))
    packed = pack_observed(seen, MSGPACK, msgspec.msgpack.encode(seen.state))
    raw.say(packed)
    msgpack = raw.hear()
    text = {**seen._asdict(), "sequence": 2, "session": raw.opened["session"]}
    raw.say({"kind": "observation", "version": 1, **text})
    told = raw.hear()
    assert floats.action[0] == msgpack.action[0] == told["action"][0] == 0.5
    assert told["kind"] == "action" and told["session"] == raw.opened["session"]


def test_stale_and_duplicate_observations_are_named(running: Running) -> None:
    raw = running.raw()
    raw.open()
    raw.acted(5)
    assert raw.refused(5) == "duplicate"
    assert raw.refused(4) == "stale"
    raw.acted(6)
    assert running.seats[0].steps == 2
    counts = running.host.registry.places["r1"].session.counts
    until(lambda: counts["answered"] == 2)  # counted in the event loop, after it was sent
    assert (counts["duplicate"], counts["stale"]) == (1, 1)


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


def test_garbage_is_answered_and_the_connection_goes_on(running: Running, seed: int) -> None:
    rng = random.Random(seed)
    raw = running.raw()
    raw.open()
    whole = raw.packed(0)
    cases: list[bytes | str] = [b"", b"WM", rng.randbytes(100), whole[:-1], whole[:20], "", "[]"]
    cases += ["{}", '{"kind": "fly", "version": 1}', '{"kind": "observation", "version": 1}']
    cases += [whole + b"x", json.dumps({"kind": "reset", "version": 1, "robot": 7})]
    cases += [pack_observed(raw.seen(0), MSGPACK, b"\x91" * 5_000)]
    cases += [pack_observed(raw.seen(0), MSGPACK, msgspec.msgpack.encode([1]))]
    for case in cases:
        raw.say(case)
        got = raw.hear()
        assert got["error"]["name"] == "malformed", (case, got)
        assert "Traceback" not in json.dumps(got) and ".py" not in json.dumps(got)
    assert raw.acted(0).step == 1


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_reading_that_is_no_number_never_becomes_an_action(
    running: Running, value: float
) -> None:
    raw = running.raw()
    raw.open()
    raw.acted(0, state=state(0.5))
    answer = raw.acted(1, state=state(value))
    assert answer.source == "fallback" and answer.breakers == "open" and answer.tripped == (0,)
    assert all(math.isfinite(part) for part in answer.action)
    answer = raw.acted(2, state=state(0.5, gap=value))  # an optional one: reported, read as unknown
    assert answer.tripped == () and running.seats[0].seen == [0.5, 0.5]


def test_an_old_observation_is_named_and_not_stepped(tmp_path: Path) -> None:
    with service(tmp_path, max_age=0.5) as running:
        raw = running.raw()
        raw.open()
        base = 10**15  # a clock that is nowhere near this one's
        assert raw.acted(0, captured_ns=base, sent_ns=base + 10).source == "policy"
        fresh = base + 10**7
        assert raw.acted(1, captured_ns=fresh, sent_ns=fresh).source == "policy"
        time.sleep(0.7)  # and its clock goes on as this one does
        late = raw.acted(2, captured_ns=fresh + 10, sent_ns=fresh + 7 * 10**8)
        assert late.source == "fallback" and late.tripped == (0,)
        assert raw.refused(3, captured_ns=fresh + 10**9, sent_ns=fresh) == "malformed"


def test_the_newest_observation_wins(tmp_path: Path) -> None:
    hold = threading.Event()
    hold.set()
    seat = CanarySeat(lambda: hold.wait(10.0) * 0.0)
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
    hold = threading.Event()
    hold.set()
    seat = CanarySeat(lambda: hold.wait(10.0) * 0.0)
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


def test_a_malformed_observation_is_named_by_its_number(running: Running) -> None:
    """Its sender waits for an answer to that number."""
    raw = running.raw()
    raw.open()
    whole = {"kind": "observation", "version": VERSION, "robot": "r1", "epoch": 0, "state": state()}
    for wrong in ({"captured_ns": 1.5}, {"session": "zz"}, {"epoch": "0"}):
        raw.say(whole | {"session": raw.opened["session"], "sequence": 7} | wrong)
        said = raw.hear()
        assert (said["error"]["name"], said["sequence"]) == ("malformed", 7)
    raw.say(whole | {"session": raw.opened["session"], "sequence": "7"})
    assert raw.hear()["sequence"] is None


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


def test_the_first_message_opens_a_session(running: Running) -> None:
    raw = running.raw()
    raw.say({"kind": "observation", "version": 1})
    assert raw.hear()["error"]["name"] == "malformed" and raw.closed() == 4400
    raw = running.raw()
    raw.say(b"WM\x01\x01")
    assert raw.hear()["error"]["name"] == "malformed" and raw.closed() == 4400
    for name in ("", "../up", "a/b", ".hidden", "x" * 65, "a b"):
        assert running.raw().open(name)["error"]["name"] == "malformed"


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


def test_connections_are_limited(tmp_path: Path) -> None:
    with service(tmp_path, connections=2) as running:
        held = [running.raw(), running.raw()]
        with pytest.raises(ServiceError) as caught:
            running.raw()
        assert caught.value.name == "too_many_connections"
        held[0].channel.drop()
        until(lambda: running.server.gate.connections == 1)
        running.raw()
