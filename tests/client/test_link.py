"""The link to a service: reconnecting, sessions that are lost or taken over, silence, TLS."""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.client.support import QUICK, held
from tests.core.codecs import MOSTLY, arm
from tests.service.doubles import CanarySeat, Running, service
from tests.service.raw import state
from tools import faults_tls
from tools.proxy import Proxy
from wmrt.client import Client, connect
from wmrt.client.address import Address
from wmrt.client.channel import Channel, Lost
from wmrt.core.errors import DeadlineError, ServiceError, UsageError
from wmrt.service.settings import ServeSettings


@pytest.fixture(params=MOSTLY, autouse=True)
def codec(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What makes and reads the messages: all of it holds for both."""
    arm(request.param, monkeypatch)


def test_a_service_that_is_not_there_is_a_deadline(tmp_path: Path) -> None:
    events: list[str] = []
    began = time.monotonic()
    with pytest.raises(DeadlineError, match=r"not connected: .*No such file"):
        connect(
            f"unix:{tmp_path}/none", "r1", opening=0.2, on_event=lambda name, _: events.append(name)
        )
    assert 0.2 <= time.monotonic() - began < 20.0
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
    with service(tmp_path, snapshots=folder, snapshot_every=0.0):
        robot._link.lost(Lost("killed"))
        robot._link.channel(time.monotonic() + 10.0, "a look")
        assert robot.counters["steps_lost"] == 4
    (folder / "r1.safetensors").write_bytes(old)  # and again, before a step
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
    monkeypatch.setattr("wmrt.client.link.SILENCE", 0.8)
    events: list[str] = []
    with service(tmp_path, tcp=True) as running, Proxy(int(running.tcp.split(":")[-1])) as proxy:
        robot = connect(
            f"ws://127.0.0.1:{proxy.port}", "r1", on_event=lambda name, _: events.append(name),
            **QUICK,
        )  # fmt: skip
        assert robot.act(state(0.1)).step == 1
        proxy.cut.set()
        with pytest.raises(DeadlineError):
            robot.act(state(0.2), deadline=0.05)  # so soon it is only late
        assert robot.state == "connected"
        with pytest.raises(DeadlineError):
            robot.act(state(0.2), deadline=1.2)
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


def test_tls_where_there_is_none_is_told(tmp_path: Path) -> None:
    with service(tmp_path, tcp=True) as running:
        with pytest.raises(DeadlineError, match="without TLS it is at ws://"):
            connect(running.tcp.replace("http", "wss"), "r1", opening=0.3)
