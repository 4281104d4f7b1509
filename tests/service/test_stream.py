"""The WebSocket: what an observation is answered with, and what is malformed."""

from __future__ import annotations

import json
import math
import random
import time
from pathlib import Path

import msgspec
import pytest

from tests.service.doubles import Running, service, until
from tests.service.raw import state
from wmrt.core.wire import MSGPACK, VERSION, pack_observed

pytestmark = pytest.mark.usefixtures("each_codec", "each_way")


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


def test_the_first_message_opens_a_session(running: Running) -> None:
    raw = running.raw()
    raw.say({"kind": "observation", "version": 1})
    assert raw.hear()["error"]["name"] == "malformed" and raw.closed() == 4400
    raw = running.raw()
    raw.say(b"WM\x01\x01")
    assert raw.hear()["error"]["name"] == "malformed" and raw.closed() == 4400
    for name in ("", "../up", "a/b", ".hidden", "x" * 65, "a b"):
        assert running.raw().open(name)["error"]["name"] == "malformed"
