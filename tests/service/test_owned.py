"""The policy's thread reads its robot's socket: who reads changes nothing but the time it takes."""

from __future__ import annotations

import json
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

from tests.core.codecs import WAYS, arm
from tests.service.doubles import CanarySeat, Running, service, until
from tests.service.raw import Raw, state
from tests.service.test_desk import Hanging
from tests.service.test_direct import CONT, PING, TEXT, frame, own_socket
from wmrt.core.errors import UnsupportedError
from wmrt.core.wire import VERSION, Acted
from wmrt.service.crew import Crew
from wmrt.service.doorbell import Doorbell
from wmrt.service.host import Host
from wmrt.service.outbox import UNCOUNTED
from wmrt.service.owned import OwnedWebSocket
from wmrt.service.refusals import Refusal
from wmrt.service.settings import ServeSettings

PONG = 10


@pytest.fixture(params=WAYS, autouse=True)
def codec(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What makes and reads the messages: all of it holds for both."""
    arm(request.param, monkeypatch)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Observations by the thread that took them in."""
    found: Counter[str] = Counter()
    post = Host._post

    def counting(self: Host, *arguments: Any) -> None:
        found[threading.current_thread().name] += 1
        post(self, *arguments)

    monkeypatch.setattr(Host, "_post", counting)
    return found


@pytest.fixture
def running(tmp_path: Path, taken: Counter[str]) -> Iterator[Running]:
    with service(tmp_path, websocket="owned", on_second_client="takeover", tcp=True) as one:
        yield one


def protocol(running: Running) -> OwnedWebSocket:
    """Of the one WebSocket that is open."""
    found = [one for one in running.server.server_state.connections if hasattr(one, "share")]
    assert len(found) == 1 and isinstance(found[0], OwnedWebSocket)
    return found[0]


def owned(running: Running, raw: Raw, sequence: int = 0) -> OwnedWebSocket:
    """Have the policy's thread wait for the socket."""
    if not raw.opened:
        raw.open()
    assert raw.acted(sequence).sequence == sequence
    one = protocol(running)
    until(lambda: one._watched)
    return one


def test_the_thread_that_steps_reads(running: Running, taken: Counter[str]) -> None:
    raw = running.raw()
    one = owned(running, raw)  # the first message starts it
    taken.clear()
    for sequence in range(1, 50):
        until(lambda: one._watched)
        assert raw.acted(sequence, state=state(sequence / 100)).action[0] == pytest.approx(
            sequence / 100
        )
    assert taken == {"wmrt-policy": 49}
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


def test_a_thread_that_spins_lets_the_event_loop_run(tmp_path: Path, taken: Counter[str]) -> None:
    with service(tmp_path, websocket="owned", spin=2e5, tcp=True) as running:
        raw = running.raw()
        one = owned(running, raw)
        with httpx.Client(base_url=running.tcp, trust_env=False, timeout=20.0) as http:
            for sequence in range(1, 10):
                assert raw.acted(sequence).sequence == sequence
                assert http.get("/v1/info").json()["crew"]["websocket"]["spin_us"] == 2e5
                until(lambda: one._watched)
        raw.channel.drop()  # while it looks for the next one
        until(lambda: not running.server.server_state.connections)
    assert taken["wmrt-policy"] >= 8


def test_to_spin_takes_the_native_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("wmrt.kernels.native.library._library", None)
    monkeypatch.setattr("wmrt.kernels.native.library.PATH", tmp_path / "none.so")
    with pytest.raises(UnsupportedError, match="native library"):
        Crew([CanarySeat()], ServeSettings(cpu=-1, spin=50.0))
    crew = Crew([CanarySeat()], ServeSettings(cpu=-1))
    assert crew.described["websocket"] == {
        "requested": "owned", "resolved": "owned", "spin_us": 0.0,
    }  # fmt: skip
    crew.close()


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
        assert unfit.breakers == "open" and woken["catch_up"] == 1
        until(lambda: not outbox.jobs and outbox.idle.is_set())
    finally:
        outbox.loop = loop


class Pipe:
    """A source that counts."""

    def __init__(self) -> None:
        self.reads, self.writes = os.pipe()
        self.calls: list[str] = []

    def watch(self) -> int:
        self.calls.append("watch")
        return self.reads

    def take_in(self) -> None:
        self.calls.append("take_in")
        os.read(self.reads, 100)

    def unwatch(self) -> None:
        self.calls.append("unwatch")


@pytest.mark.parametrize("spin", [0.0, 0.001, 10.0])
def test_a_doorbell_tells_who_has_come(spin: float) -> None:
    bell, pipe = Doorbell(spin), Pipe()
    bell.ring()
    bell.ring()
    bell.wait()  # for both
    bell.attach(pipe)
    os.write(pipe.writes, b"x")
    bell.wait()
    bell.ring()
    bell.wait()
    assert pipe.calls == ["watch", "take_in", "watch", "unwatch"]
    waiting = threading.Thread(target=bell.wait)
    waiting.start()
    until(lambda: pipe.calls[-1] == "watch")
    bell.detach(pipe)
    waiting.join(10.0)
    assert not waiting.is_alive() and pipe.calls[-1] == "unwatch"
    os.write(pipe.writes, b"x")
    bell.ring()
    bell.wait()
    assert pipe.calls.count("watch") == 3
    os.close(pipe.reads)
    os.close(pipe.writes)
