"""The client against a service: deadlines, reconnecting, newest answers, lost sessions."""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from tests.house.tree import ROOT
from tests.service.doubles import CanarySeat, Running, service, until
from tests.service.raw import state
from tools import faults_tls
from tools.proxy import Proxy
from wmrt.client import Backoff, Client, connect
from wmrt.client.address import Address
from wmrt.client.channel import Channel, Lost
from wmrt.core.errors import DeadlineError, SchemaError, ServiceError, StateError, UsageError
from wmrt.service.settings import ServeSettings

QUICK: dict[str, Any] = {"deadline": 10.0, "backoff": Backoff(0.01, 0.05)}


def held() -> tuple[threading.Event, CanarySeat]:
    """A seat that steps while the event is set."""
    go = threading.Event()
    go.set()
    return go, CanarySeat(lambda: go.wait(30.0) * 0.0)


def test_it_loads_no_torch_and_no_server() -> None:
    code = (
        "import wmrt.client, sys; heavy = {'torch', 'fastapi', 'gymnasium', 'pydantic', 'msgspec'};"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("encoding", ["floats", "msgpack", "json"])
def test_a_control_step(tmp_path: Path, encoding: Any) -> None:
    with service(tmp_path) as running:
        with connect(running.address, "r1", encoding=encoding, **QUICK) as robot:
            answer = robot.act(state(0.25), captured_ns=time.monotonic_ns())
            assert answer.action.dtype == np.float32 and answer.action[0] == 0.25
            assert answer.source == "policy" and answer.breakers == "closed" and not answer.late
            assert answer.round_trip_ns > answer.act_ns >= (answer.policy_ns or 0) > 0
            assert (robot.period, robot.clock, robot.epoch) == (0.01, "system", 0)
            assert robot.actions.names == ("a", "b") and robot.state == "connected"
            robot.reset([0.5, 0.5])
            assert robot.epoch == 1
            assert robot.act(state(0.5)).epoch == 1
            assert robot.counters["answers"] == 2
        assert robot.state == "closed"
        with pytest.raises(ServiceError, match="closed"):
            robot.act(state())


@pytest.mark.parametrize("address", ["tcp", "unix"])
def test_over_both_kinds_of_socket(tmp_path: Path, address: str) -> None:
    with service(tmp_path, tcp=True, token="t" * 32) as running:
        where = running.address if address == "unix" else running.tcp.replace("http", "ws")
        with connect(where, "r1", token="t" * 32, **QUICK) as robot:
            assert robot.act(state(0.5)).action[0] == 0.5
        with pytest.raises(ServiceError, match="HTTP 401") as caught:
            connect(where, "r1", token="wrong")
        assert caught.value.name == "unauthorized"


def test_a_deadline_is_honoured_and_its_answer_dropped(tmp_path: Path) -> None:
    go, seat = held()
    with service(tmp_path, [seat]) as running:
        with connect(running.address, "r1", **QUICK) as robot:
            robot.act(state(0.1))
            go.clear()
            asked, began = seat.asked, time.monotonic()
            with pytest.raises(DeadlineError, match="sequence 1"):
                robot.act(state(0.2), deadline=0.5)
            assert 0.5 <= time.monotonic() - began < 5.0
            assert robot.counters["deadline_misses"] == 1
            until(lambda: seat.asked > asked)  # it is in work, and cannot be replaced any more
            go.set()
            until(lambda: running.host.registry.places["r1"].session.counts["answered"] == 2)
            assert robot.act(state(0.3)).action[0] == np.float32(0.3)  # and not 0.2
            assert robot.counters["late_answers"] == 1


def test_a_reset_that_was_not_answered_in_time_is_caught_up_with(tmp_path: Path) -> None:
    """The service is in the new epoch, and the answer that would tell was not waited for."""
    go, seat = held()
    with service(tmp_path, [seat]) as running:
        with connect(running.address, "r1", **QUICK) as robot:
            go.clear()
            asked = seat.asked
            robot.send(state(0.1))
            until(lambda: seat.asked > asked)
            with pytest.raises(DeadlineError, match="reset"):  # it waits for the step
                robot.reset(deadline=0.2)
            go.set()
            assert robot.act(state(0.2)).epoch == robot.epoch == 1
            robot.reset()
            assert robot.act(state(0.3)).epoch == robot.epoch == 2


@pytest.mark.parametrize("encoding", ["floats", "msgpack", "json"])
def test_a_reset_that_is_refused_changes_nothing(tmp_path: Path, encoding: Any) -> None:
    with service(tmp_path) as running:
        with connect(running.address, "r1", encoding=encoding, **QUICK) as robot:
            with pytest.raises(ServiceError, match="2 finite numbers"):
                robot.reset([0.0] * 3)
            assert robot.act(state(0.5)).epoch == 0


def test_a_deadline_that_is_over_at_once_leaves_the_connection(tmp_path: Path) -> None:
    with service(tmp_path) as running:
        with connect(running.address, "r1", **QUICK) as robot:
            for _ in range(3):
                with pytest.raises(DeadlineError, match="in time"):
                    robot.act(state(0.5), deadline=1e-9)
            assert robot.act(state(0.5)).action[0] == 0.5
            assert robot.counters["connected"] == 1 and robot.counters["lost"] == 0


@pytest.mark.parametrize("end", ["", "\n", " \r\n"])
def test_a_token_as_it_stands_in_its_file(tmp_path: Path, end: str) -> None:
    with service(tmp_path, token="t" * 32) as running:
        with connect(running.address, "r1", token="t" * 32 + end, **QUICK) as robot:
            assert robot.act(state(0.5)).action[0] == 0.5


@pytest.mark.parametrize("token", ["secret\r\nHost: x", "secret\x00", "s\u00e9cret" * 4])
def test_a_token_that_no_header_carries_is_told_and_not_shown(token: str) -> None:
    with pytest.raises(UsageError, match="visible ASCII") as caught:
        connect("unix:/tmp/none", "r1", token=token)
    assert "cret" not in str(caught.value)


@pytest.mark.parametrize("encoding", ["floats", "msgpack", "json"])
def test_states_and_times_of_numpy_are_sent(tmp_path: Path, encoding: Any) -> None:
    own = state() | {"canary": np.float32(0.25), "gap": np.float64(3.0), "wet": np.bool_(True)}
    own["pose"] = np.array([1.0, 2.0], np.float32)
    with service(tmp_path) as running:
        with connect(running.address, "r1", encoding=encoding, **QUICK) as robot:
            answer = robot.act(own, captured_ns=np.int64(time.monotonic_ns()))  # type: ignore[arg-type]
            assert answer.action[0] == 0.25 and answer.source == "policy"


@pytest.mark.parametrize("encoding", ["msgpack", "json"])
@pytest.mark.parametrize("value", [object(), 1j, b"x", 2**70])
def test_a_state_that_cannot_be_sent_is_told(tmp_path: Path, encoding: Any, value: Any) -> None:
    with service(tmp_path) as running:
        with connect(running.address, "r1", encoding=encoding, **QUICK) as robot:
            if (encoding, type(value)) in (("msgpack", bytes), ("json", int)):  # these it can hold
                assert robot.act(state() | {"canary": value}).source == "fallback"
            else:
                with pytest.raises(StateError, match=f"{encoding} cannot hold"):
                    robot.act(state() | {"canary": value})
            assert robot.state == "connected"


@pytest.mark.parametrize("captured", [-5, 1.5, 2**70, "now", float("nan")])
def test_a_time_that_is_none_is_told(tmp_path: Path, captured: Any) -> None:
    with service(tmp_path) as running:
        with connect(running.address, "r1", **QUICK) as robot:
            with pytest.raises(UsageError, match=r"captured_ns=.*time\.monotonic_ns"):
                robot.act(state(), captured_ns=captured)
            assert robot.act(state(0.5)).action[0] == 0.5


def test_a_time_of_another_clock_is_told_which_one_is_meant(tmp_path: Path) -> None:
    wall = getattr(time, "time_ns")()  # noqa: B009 - the house does not read it, and users do
    with service(tmp_path) as running, connect(running.address, "r1", **QUICK) as robot:
        with pytest.raises(ServiceError, match=r"time\.monotonic_ns, not time\.time_ns") as caught:
            robot.act(state(), captured_ns=wall)
        assert caught.value.name == "malformed"
        assert robot.act(state(0.5), captured_ns=time.monotonic_ns()).source == "policy"


def test_a_service_that_is_not_there_is_a_deadline(tmp_path: Path) -> None:
    events: list[str] = []
    began = time.monotonic()
    with pytest.raises(DeadlineError, match=r"not connected: .*No such file"):
        connect(
            f"unix:{tmp_path}/none", "r1", opening=0.2, on_event=lambda name, _: events.append(name)
        )
    assert 0.2 <= time.monotonic() - began < 2.0
    assert len(events) >= 2 and set(events) == {"waiting"}


def test_it_goes_on_after_the_service_was_restarted(tmp_path: Path) -> None:
    """In the middle of a stream; the session is restored, and the client says so."""
    events: list[tuple[str, Any]] = []
    kept = {"snapshots": tmp_path / "kept"}
    with service(tmp_path, **kept) as running:
        robot = Client(running.address, "r1", on_event=lambda *event: events.append(event), **QUICK)
        own = robot.session
        for i in range(5):
            assert robot.act(state(i / 10)).step == i + 1
    restarted: list[Any] = []

    def restart() -> None:
        time.sleep(0.2)
        restarted.append(service(tmp_path, **kept))
        restarted.append(restarted[0].__enter__())

    thread = threading.Thread(target=restart)
    thread.start()
    answer = robot.act(state(0.5))  # waits for it
    thread.join()
    try:
        assert answer.action[0] == 0.5 and round(answer.action[1] * 1e4) == 6  # its sixth step
        assert robot.session == own and robot.state == "connected"
        counters = robot.counters
        assert (counters["connected"], counters["resumed"], counters["steps_lost"]) == (2, 1, 0)
        assert counters["lost"] >= 1 and counters["attempts"] >= 2
        names = [name for name, _ in events]
        assert names[0] == "connected" and "lost" in names and names[-1] == "connected"
        robot.close()
    finally:
        restarted[0].__exit__(None, None, None)


@pytest.mark.parametrize("on_lost", ["raise", "reopen"])
def test_a_session_that_is_lost_is_told(tmp_path: Path, on_lost: Any) -> None:
    with service(tmp_path) as running:
        robot = connect(running.address, "r1", on_lost=on_lost, **QUICK)
        robot.act(state(0.75))
    with service(tmp_path) as running:  # without snapshots
        if on_lost == "raise":
            with pytest.raises(ServiceError) as caught:
                robot.act(state(0.5))
            assert caught.value.name == "unknown_session"
        else:
            assert robot.act(state(0.5)).step == 1
            desk = running.host.registry.places["r1"].desk
            assert desk.breakers.step == 1  # fresh, and from where the actuators were left
        assert robot.counters["sessions_lost"] == 1
        robot.close()


def test_steps_that_a_restored_session_has_forgotten_are_counted(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    with service(tmp_path, snapshots=folder, snapshot_every=0.0) as running:
        robot = connect(running.address, "r1", **QUICK)
        robot.act(state(0.1))
        place = running.host.registry.places["r1"]
        import asyncio

        loop = running.host.outbox.loop
        asyncio.run_coroutine_threadsafe(running.host.registry.keep(place), loop).result(10.0)
        old = (folder / "r1.safetensors").read_bytes()
        for _ in range(4):
            robot.act(state(0.2))
    (folder / "r1.safetensors").write_bytes(old)  # as if it had been killed
    with service(tmp_path, snapshots=folder) as running:
        answer = robot.act(state(0.3))
        assert robot.counters["steps_lost"] == 4 and round(answer.action[1] * 1e4) == 2
        robot.close()


def test_who_was_taken_over_does_not_fight(tmp_path: Path) -> None:
    with service(tmp_path, on_second_client="takeover") as running:
        first = connect(running.address, "r1", **QUICK)
        first.act(state())
        second = connect(running.address, "r1", **QUICK)
        second.act(state())
        for _ in range(3):
            with pytest.raises(ServiceError) as caught:
                first.act(state())
            assert caught.value.name == "taken_over"
        assert second.act(state()).step == 3
        assert second.counters["lost"] == 0
        first.close()
        second.close()


def test_another_process_goes_on_with_a_session(tmp_path: Path) -> None:
    with service(tmp_path) as running:
        first = connect(running.address, "r1", **QUICK)
        first.act(state())
        first.close()
        with connect(running.address, "r1", session=first.session, **QUICK) as second:
            assert second.counters["resumed"] == 1
            assert second.act(state()).sequence == 1


def test_the_newest_answer_wins(tmp_path: Path) -> None:
    go, seat = held()
    with service(tmp_path, [seat]) as running:
        with connect(running.address, "r1", **QUICK) as robot:
            robot.act(state(0.1))
            counts = running.host.registry.places["r1"].session.counts
            for i in range(3):  # each of them is answered
                robot.send(state(i / 10))
                until(lambda want=i + 2: counts["answered"] == want)
            time.sleep(0.05)  # the last answer is on its way
            answer = robot.receive()
            assert answer.sequence >= 1
            older = robot.counters["older_answers"]
            assert older == answer.sequence - 1 and answer.action[0] == np.float32(
                (answer.sequence - 1) / 10
            )
            go.clear()
            robot.send(state(0.5))
            with pytest.raises(DeadlineError):
                robot.receive(0.05)
            go.set()
            assert robot.receive().action[0] == 0.5


def test_a_stream_has_one_answer_or_none_for_each_state(tmp_path: Path) -> None:
    with service(tmp_path) as running, connect(running.address, "r1", **QUICK) as robot:
        answers = list(robot.stream(state(i / 10) for i in range(5)))
        got = [answer.sequence for answer in answers if answer is not None]
        assert len(answers) == 5 and got == sorted(set(got)) and got[-1] == 4


def test_states_that_do_not_fit_are_told_before_they_are_sent(tmp_path: Path) -> None:
    with service(tmp_path) as running, connect(running.address, "r1", **QUICK) as robot:
        with pytest.raises(StateError, match="fuel"):
            robot.act(state(fuel=1.0))
        assert robot.act(state(0.5)).action[0] == 0.5


def test_requests_that_cannot_be_meant() -> None:
    with pytest.raises(UsageError, match="raise or reopen"):
        connect("unix:/x", "r1", on_lost="ignore")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="floats, msgpack, json"):
        connect("unix:/x", "r1", encoding="pickle")  # type: ignore[arg-type]
    for wrong in (0.0, -1.0, float("nan"), True, "1", None, [1.0]):
        with pytest.raises(UsageError, match=f"above 0, got {type(wrong).__name__}"):
            connect("unix:/x", "r1", deadline=wrong)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="above 0"):
            connect("unix:/x", "r1", opening=wrong)  # type: ignore[arg-type]
    for robot in (5, None, b"r1", ["r1"]):
        with pytest.raises(UsageError, match=f"robot=.*a text, got {type(robot).__name__}"):
            connect("unix:/x", robot)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("token", 5, "the token: a text, got int"),
        ("measured", 0.5, "one number for each, got float"),
        ("measured", "00", "one number for each, got str"),
        ("measured", [None, 0.0], "one number for each, got list"),
        ("backoff", 0.1, "a wmrt.client.Backoff, got float"),
        ("on_event", "print", r"a function \(name, details\), got str"),
        ("tls", "ca.pem", "an ssl.SSLContext, got str"),
    ],
)
def test_arguments_of_another_type(name: str, value: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        connect("unix:/x", "r1", **{name: value})


@pytest.mark.parametrize("encoding", ["floats", "msgpack", "json"])
@pytest.mark.parametrize("wrong", [None, 5, "ego_speed", [1.0], []])
def test_what_is_no_state_is_told(tmp_path: Path, encoding: Any, wrong: Any) -> None:
    with service(tmp_path) as running:
        with connect(running.address, "r1", encoding=encoding, **QUICK) as robot:
            for call in (robot.act, robot.send):
                with pytest.raises(
                    UsageError, match=f"state=.*mapping.*, got {type(wrong).__name__}"
                ):
                    call(wrong)
            with pytest.raises(UsageError, match="above 0, got str"):
                robot.act(state(), deadline="1")  # type: ignore[arg-type]
            with pytest.raises(UsageError, match="one number for each"):
                robot.reset(["left", 0.0])  # type: ignore[list-item]
            assert robot.act(MappingProxyType(state(0.5))).action[0] == 0.5
            assert robot.counters["lost"] == 0


def test_whoever_sends_and_never_receives_piles_nothing_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wmrt.client.sent.SENT", 8)
    with service(tmp_path) as running, connect(running.address, "r1", **QUICK) as robot:
        for i in range(20):
            robot.send(state(i / 20))
        assert len(robot._sent) == 8
        began = time.monotonic_ns()
        while (answer := robot.receive()).sequence < 19:
            assert 0 < answer.round_trip_ns < time.monotonic_ns()
        assert answer.round_trip_ns <= time.monotonic_ns() - began + int(10e9)
        assert len(robot._sent) == 0


def test_an_instruction_needs_another_encoding(tmp_path: Path) -> None:
    from tests.model.networks import schemas

    class Talking(CanarySeat):
        schema = schemas()["an instruction"]

        def step(self, state: Any, previous_action: Any) -> Any:
            return super().step({"canary": 0.0}, previous_action)

    with service(tmp_path, [Talking()]) as running:
        with pytest.raises(SchemaError, match="msgpack or JSON"):
            connect(running.address, "r1")
        until(lambda: running.host.registry.places["r1"].session.holder is None)
        with connect(running.address, "r1", encoding="json", **QUICK) as robot:
            assert robot.act({"a": 1.0, "say": "stop"}).step == 1


def test_back_off_doubles_up_to_its_longest(seed: int) -> None:
    plain = Backoff(0.1, 0.5, jitter=0.0)
    assert [round(plain.wait(), 3) for _ in range(5)] == [0.1, 0.2, 0.4, 0.5, 0.5]
    plain.reset()
    assert plain.wait() == 0.1
    drawn = Backoff(0.1, 10.0, seed=seed)
    waits = [drawn.wait() for _ in range(5)]
    assert all(0.05 * 2**i <= wait <= 0.1 * 2**i for i, wait in enumerate(waits))
    for wrong in ((0.0, 1.0), (2.0, 1.0), (1.0, float("inf"))):
        with pytest.raises(UsageError, match="back-off"):
            Backoff(*wrong)


@pytest.mark.parametrize(
    ("status", "body", "raised", "said"),
    [
        (500, b"Internal Server Error", Lost, "a proxy answers with HTTP 500"),
        (503, b"", Lost, "a proxy answers with HTTP 503"),
        (503, b'{"error": {"name": "draining", "message": "stopping"}}', ServiceError, "stopping"),
        (404, b"nothing here", ServiceError, r"no reason given \(HTTP 404\)"),
    ],
)
def test_a_proxy_that_finds_no_service_is_asked_again(
    status: int, body: bytes, raised: type[Exception], said: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            with listener.accept()[0] as own:
                own.recv(65536)
                own.sendall(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n" % (status, len(body)))
                own.sendall(body)

        thread = threading.Thread(target=answer)
        thread.start()
        address = Address(f"ws://127.0.0.1:{listener.getsockname()[1]}")
        with pytest.raises(raised, match=said):
            Channel(address, None, time.monotonic() + 10.0, None)
        thread.join(10.0)


def test_a_peer_that_vanishes_is_noticed_and_the_session_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a FIN nor a reset comes from a host that is gone, or through a cut network."""
    monkeypatch.setattr("wmrt.client.link.SILENCE", 0.3)
    events: list[str] = []
    with service(tmp_path, tcp=True) as running, Proxy(int(running.tcp.split(":")[-1])) as proxy:
        robot = connect(
            f"ws://127.0.0.1:{proxy.port}", "r1", on_event=lambda name, _: events.append(name),
            **QUICK,
        )  # fmt: skip
        assert robot.act(state(0.1)).step == 1
        proxy.cut.set()
        with pytest.raises(DeadlineError):
            robot.act(state(0.2), deadline=0.1)  # so soon it is only late
        assert robot.state == "connected"
        with pytest.raises(DeadlineError):
            robot.act(state(0.2), deadline=0.5)
        assert robot.state == "reconnecting" and events[-1] == "lost"
        proxy.cut.clear()
        assert robot.act(state(0.3)).step == 2
        assert robot.counters["resumed"] == 1 and robot.counters["lost"] == 1
        robot.close()


def test_a_step_that_takes_long_is_no_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wmrt.client.link.SILENCE", 30.0)
    go, seat = held()
    with service(tmp_path, [seat]) as running, connect(running.address, "r1", **QUICK) as robot:
        robot.act(state(0.1))
        go.clear()
        for _ in range(3):
            with pytest.raises(DeadlineError):
                robot.act(state(0.2), deadline=0.1)
        assert robot.counters["lost"] == 0
        go.set()


@contextlib.contextmanager
def over_tls(folder: Path, host: str = "IP:127.0.0.1", ended: bool = False) -> Iterator[Any]:
    """A service with a certificate, its address, and a context that trusts its authority."""
    if shutil.which("openssl") is None:
        pytest.skip("makes certificates with the program openssl: apt-get install openssl")
    own = faults_tls.authority(folder, "own")
    cert, key = faults_tls.certificate(folder, "service", own, host, ended)
    settings = ServeSettings(port=0, period=0.01, deadline=10.0, cpu=-1, tls_cert=cert, tls_key=key)
    running = Running(settings, [CanarySeat()])
    try:
        yield running.address, ssl.create_default_context(cafile=str(own[0]))
    finally:
        running.stop()


def test_over_tls(tmp_path: Path) -> None:
    with over_tls(tmp_path) as (address, trust):
        assert address.startswith("wss://")
        with connect(address, "r1", tls=trust, **QUICK) as robot:
            assert robot.act(state(0.5)).action[0] == 0.5
            for i in range(3):
                robot.send(state(i / 10))
            while robot.receive().sequence < 3:
                pass
        with pytest.raises(ServiceError, match="certificate is not accepted") as caught:
            connect(address, "r1")  # whose system does not know the authority
        assert caught.value.name == "certificate"
        with pytest.raises(DeadlineError, match="with TLS it is at wss://"):
            connect(address.replace("wss", "ws"), "r1", opening=0.3)
        with pytest.raises(UsageError, match=r"tls for ws://.*: it is for wss://"):
            connect(address.replace("wss", "ws"), "r1", tls=trust)


def test_tls_where_there_is_none_is_told(tmp_path: Path) -> None:
    with service(tmp_path, tcp=True) as running:
        with pytest.raises(DeadlineError, match="without TLS it is at ws://"):
            connect(running.tcp.replace("http", "wss"), "r1", opening=0.3)


@pytest.mark.parametrize(
    ("changes", "said"), [({"ended": True}, "expired"), ({"host": "DNS:robot.example"}, "mismatch")]
)
def test_a_certificate_that_is_not_right_is_told_at_once(
    tmp_path: Path, changes: Any, said: str
) -> None:
    with over_tls(tmp_path, **changes) as (address, trust):
        began = time.monotonic()
        with pytest.raises(ServiceError, match=said) as caught:
            connect(address, "r1", tls=trust, opening=60.0)
        assert caught.value.name == "certificate" and time.monotonic() - began < 30.0
