"""The policy's thread reads its robot's socket: who reads changes nothing but the time it takes."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from websockets.protocol import State

from tests.service.doubles import Running, owned, service, until
from tests.service.raw import Raw, state
from tests.service.test_direct import CONT, PING, TEXT, frame, own_socket
from wmrt.core.wire import VERSION, Acted
from wmrt.service.host import Host
from wmrt.service.outbox import UNCOUNTED

PONG = 10

pytestmark = pytest.mark.usefixtures("each_codec")


@pytest.fixture
def running(tmp_path: Path, taken: Counter[str]) -> Iterator[Running]:
    with service(tmp_path, websocket="owned", on_second_client="takeover", tcp=True) as one:
        yield one


def test_the_thread_that_steps_reads(running: Running, taken: Counter[str]) -> None:
    raw = running.raw()
    one = owned(running, raw)  # the first message starts it
    taken.clear()
    for sequence in range(1, 50):
        until(lambda: one._watched)
        assert raw.acted(sequence, state=state(sequence / 100)).action[0] == pytest.approx(
            sequence / 100
        )
    assert sum(taken.values()) == 49
    assert taken["wmrt-policy"] >= 45  # one that comes while the thread looks up is the loop's
    assert running.host.crew.described["websocket"]["resolved"] == "owned"


def heard(raw: Raw, sequence: int) -> list[Any]:
    """What comes up to the binary answer to ``sequence``, which is the last one."""
    told = [raw.hear()]
    while not (isinstance(told[-1], Acted) and told[-1].sequence == sequence):
        told.append(raw.hear())
    return told


def test_texts_between_binary_messages(running: Running, taken: Counter[str]) -> None:
    raw = running.raw()
    one = owned(running, raw)
    base = {**raw.seen(0)._asdict(), "session": raw.opened["session"]}
    malformed = 0
    for turn in range(20):
        sequence = 1 + 4 * turn
        text = {"kind": "observation", "version": VERSION, **base, "sequence": sequence}
        own_socket(raw).sendall(
            frame(json.dumps(text | {"state": state(0.25)}).encode(), TEXT)
            + frame(b'{"kind": "fly", "version": 1}', TEXT)
            + frame(raw.packed(sequence + 1, state=state(0.5)))
        )
        # The answer to the text goes a longer way, and comes later or is replaced.
        told = heard(raw, sequence + 1)
        assert told[-1].action[0] == 0.5
        for number in (sequence + 2, sequence + 3):
            until(one.queue.empty)
            raw.say(raw.packed(number, state=state(0.75)))
            told += heard(raw, number)
            assert told[-1].action[0] == 0.75
            until(lambda: one._watched)
        names = [part.get("error", {}).get("name") for part in told if isinstance(part, dict)]
        malformed += names.count("malformed")
        assert set(names) <= {"malformed", "superseded", None}
    assert malformed == 20 == running.host.counts["malformed"]
    assert taken["wmrt-policy"] >= 20 and taken["wmrt-policy"] < sum(taken.values())


def test_frames_in_pieces_at_every_byte(running: Running) -> None:
    raw = running.raw()
    one = owned(running, raw)
    size = len(frame(raw.packed(1)))
    for cut in range(1, size):
        until(lambda: one._watched)
        data = frame(raw.packed(cut, state=state(cut / 1000)))
        assert len(data) == size
        own_socket(raw).sendall(data[:cut])
        until(lambda: len(one._rest) == cut)  # noqa: B023
        own_socket(raw).sendall(data[cut:])
        answer = raw.hear()
        assert answer.sequence == cut and answer.action[0] == pytest.approx(cut / 1000)


def test_fragments_and_several_frames_at_once(running: Running) -> None:
    raw = running.raw()
    one = owned(running, raw)
    data = raw.packed(1, state=state(0.5))
    own_socket(raw).sendall(
        frame(data[:9], fin=False) + frame(b"", PING) + frame(data[9:], CONT) + frame(b"", PING)
    )
    assert raw.hear().action[0] == 0.5
    assert raw.acted(2).sequence == 2  # read by the event loop
    until(lambda: one._watched)
    own_socket(raw).sendall(b"".join(frame(raw.packed(n, state=state(n / 100))) for n in (3, 4, 5)))
    told = heard(raw, 5)
    named = {one["error"]["name"] for one in told if isinstance(one, dict)}
    assert named <= {"superseded"} and told[-1].action[0] == pytest.approx(0.05)
    counts = running.host.registry.places["r1"].session.counts
    until(lambda: counts["answered"] + counts["superseded"] == counts["taken"] == 6)


def test_a_ping_is_answered_and_the_thread_goes_on_reading(
    running: Running, taken: Counter[str]
) -> None:
    raw = running.raw()
    one = owned(running, raw)
    for _ in range(5):
        own_socket(raw).sendall(frame(b"are you there", PING))
        own_socket(raw).settimeout(10.0)
        assert own_socket(raw).recv(100) == b"\x8a\x0dare you there"
        until(lambda: one._watched and not one._rest)
    taken.clear()
    assert raw.acted(1).sequence == 1 and taken == {"wmrt-policy": 1}


def test_its_own_pings_are_answered_by_the_client(tmp_path: Path) -> None:
    with service(tmp_path, websocket="owned", ping=1.0) as running:
        raw = running.raw()
        one = owned(running, raw)
        own_socket(raw).settimeout(10.0)
        asked = own_socket(raw).recv(100)
        assert asked[:2] == b"\x89\x04"
        own_socket(raw).sendall(frame(asked[2:6], PONG))
        until(lambda: one.last_ping_rtt > 0 and one._watched)
        # It does not read any more, so it answers none, and is found to be gone.
        until(lambda: not running.server.server_state.connections)
        until(lambda: running.host.registry.places["r1"].session.holder is None)


def test_refusals_are_counted_once(running: Running, seed: int) -> None:
    raw = running.raw()
    one = owned(running, raw)
    wrong = {
        "duplicate": lambda: raw.packed(0),
        "unknown_session": lambda: raw.packed(9, session=raw.seen(0).session ^ 1),
        "malformed": lambda: random.Random(seed).randbytes(60),
    }
    for name, made in wrong.items():
        until(lambda: one._watched)
        own_socket(raw).sendall(frame(made()))
        assert raw.hear()["error"]["name"] == name
    session = running.host.registry.places["r1"].session
    assert [running.host.counts[name] for name in wrong] == [1, 1, 1]
    assert (session.counts["taken"], session.counts["duplicate"]) == (1, 1)
    assert raw.acted(1).sequence == 1


def test_a_rate_that_is_too_high_is_told_once_a_message(tmp_path: Path) -> None:
    with service(tmp_path, websocket="owned", rate=40.0) as running:
        raw = running.raw()
        raw.open()
        told = []
        for sequence in range(100):
            raw.say(raw.packed(sequence))
            told.append(raw.hear())
        refused = [one for one in told if isinstance(one, dict)]
        assert {one["error"]["name"] for one in refused} == {"too_fast"}
        assert len(refused) == running.host.counts["too_fast"] and len(refused) <= 40
        assert running.host.registry.places["r1"].session.counts["taken"] == 100 - len(refused)


def test_a_loop_that_is_fast_is_counted_a_few_times_a_second(running: Running) -> None:
    """Each answer once; at once where a step is no ordinary one, or somebody asks."""
    raw = running.raw()
    owned(running, raw)
    outbox, woken = running.host.outbox, Counter[str]()

    class Loop:
        """The event loop, and who wakes it."""

        def __getattr__(self, name: str) -> Any:
            return getattr(loop, name)

        def call_soon_threadsafe(self, do: Any, *arguments: Any) -> None:
            woken[do.__name__] += 1
            loop.call_soon_threadsafe(do, *arguments)

    loop, outbox.loop = outbox.loop, Loop()  # type: ignore[assignment]
    try:
        began = time.monotonic()
        for sequence in range(1, 301):
            assert raw.acted(sequence).sequence == sequence
        took = time.monotonic() - began
        assert 1 <= woken["_catch_up_soon"] <= took / UNCOUNTED + 2 and not woken["catch_up"]
        with httpx.Client(base_url=running.tcp, trust_env=False) as http:
            told = http.get("/v1/info").json()["robots"]["r1"]["observations"]
        assert told["answered"] == told["taken"] == 301  # whoever has got it may ask about it
        unfit = raw.acted(301, state=state(float("nan")))
        assert unfit.breakers == "open"
        until(lambda: woken["catch_up"] == 1)  # the answer leaves first
        until(lambda: not outbox.jobs and outbox.idle.is_set())
    finally:
        outbox.loop = loop


#: What alone keeps the policy's thread from reading: the next bytes begin no message, something
#: comes before them, or nothing may be taken.
ALONE: dict[str, Any] = {
    "_gate": None,
    "_file": None,
    "_quick": False,  # a text or fragment came last; the event loop may be at it still
    "_known": False,
    "_rest": b"\x82",
    "_parts": True,
    "_held": True,
    "_paused": True,
    "_ended": True,
    "take": None,
    "close_sent": True,
    "conn": SimpleNamespace(state=State.CLOSING),
    "transport": SimpleNamespace(is_closing=lambda: True),
    "queue": SimpleNamespace(empty=lambda: False),
}


@pytest.mark.parametrize("name", ALONE)
def test_each_thing_that_keeps_the_thread_from_reading_does_so_alone(
    running: Running, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    raw = running.raw()
    one = owned(running, raw)
    with one._reading:
        assert one._free_to_take()
        with monkeypatch.context() as patch:
            patch.setattr(one, name, ALONE[name])
            assert not one._free_to_take()
        assert one._free_to_take()
    assert raw.acted(1).sequence == 1


def test_a_text_that_the_event_loop_is_at_is_not_overtaken(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in no queue any more, and its robot does not have it yet. The thread has just been
    woken, by the text before it, and looks what it may wait for."""
    raw = running.raw()
    one = owned(running, raw)
    base = {"kind": "observation", "version": VERSION, "robot": "r1", "epoch": 0}
    base["session"] = raw.opened["session"]
    at, submit = threading.Event(), Host.submit

    def slow(self: Host, seen: Any, *arguments: Any) -> None:
        if seen.sequence == 2:
            at.set()
            until(lambda: running.seats[0].asked == asked + 1)
            time.sleep(0.3)
        submit(self, seen, *arguments)

    monkeypatch.setattr(Host, "submit", slow)
    asked = running.seats[0].asked
    texts = (json.dumps({**base, "sequence": n, "state": state(n / 10)}) for n in (1, 2))
    own_socket(raw).sendall(b"".join(frame(text.encode(), TEXT) for text in texts))
    assert at.wait(30.0)
    own_socket(raw).sendall(frame(raw.packed(3, state=state(0.3))))
    told = heard(raw, 3)
    names = [part["error"]["name"] for part in told if isinstance(part, dict) and "error" in part]
    assert set(names) <= {"superseded"}, told  # not stale: the text was taken in before
    assert running.host.registry.places["r1"].session.counts["taken"] == 4
    until(lambda: one._watched or one.queue.empty())
