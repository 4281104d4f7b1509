"""The process: sockets, a stop that loses nothing, a model that fails."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.service.doubles import CanarySeat, service, until
from tools import faults_tls
from tools.service_rig import robot, serving
from wmrt.core.errors import UsageError, WmrtError
from wmrt.core.wire import Acted
from wmrt.service.crew import Crew
from wmrt.service.server import Server, addresses, listening
from wmrt.service.settings import ServeSettings


def test_a_unix_socket_is_its_owner_s_alone_and_goes_with_the_service(tmp_path: Path) -> None:
    path = tmp_path / "wmrt.sock"
    with service(tmp_path) as running:
        assert path.stat().st_mode & 0o777 == 0o600
        assert running.address == f"unix:{path}"
        with pytest.raises(UsageError, match="another process listens there"):
            with listening(ServeSettings(socket=path)):
                raise AssertionError
        assert path.exists()
    assert not path.exists()


def test_a_socket_that_was_left_behind_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "wmrt.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with service(tmp_path) as running:
        running.raw().open()


def test_another_file_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "wmrt.sock"
    path.write_text("precious")
    with pytest.raises(UsageError, match="something else of that name"):
        with listening(ServeSettings(socket=path)):
            raise AssertionError
    assert path.read_text() == "precious"
    for name, why in (("x" * 200, "too long"), ("none/s", "no folder .*none; make it first")):
        with pytest.raises(UsageError, match=f"socket .*: .*{why}"):
            with listening(ServeSettings(socket=tmp_path / name)):
                raise AssertionError


def test_a_port_that_is_taken_is_told() -> None:
    with listening(ServeSettings(port=0)) as (first,):
        port = first.getsockname()[1]
        assert addresses([first], ServeSettings(port=0)) == [f"ws://127.0.0.1:{port}"]
        assert first.getsockname()[0] == "127.0.0.1"
        # Without it, an answer in two parts takes 40 ms on accepted connections.
        assert first.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        with pytest.raises(UsageError, match=f"port {port}: .*another process"):
            with listening(ServeSettings(port=port)):
                raise AssertionError


def test_a_certificate_that_is_none_is_told(tmp_path: Path) -> None:
    files = {name: tmp_path / name for name in ("tls_cert", "tls_key")}
    settings = ServeSettings(port=0, cpu=-1, **files)
    with pytest.raises(UsageError, match="tls_cert"):
        Server(Crew([CanarySeat()], settings), settings)
    for path in files.values():
        path.write_text("no certificate")
    with pytest.raises(UsageError, match="tls_cert") as caught:
        Server(Crew([CanarySeat()], settings), settings)
    assert not isinstance(caught.value, ssl.SSLError)


def test_what_is_wrong_with_a_certificate_is_said_before_the_work(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("makes certificates with the program openssl: apt-get install openssl")
    own = faults_tls.authority(tmp_path, "own")
    cert, key = faults_tls.certificate(tmp_path, "service", own, "IP:127.0.0.1", False)
    other = faults_tls.certificate(tmp_path, "other", own, "IP:127.0.0.1", False)[1]
    locked = tmp_path / "locked.pem"
    subprocess.run(
        ["openssl", "pkey", "-in", key, "-aes256", "-passout", "pass:secret", "-out", locked],
        check=True, capture_output=True,
    )  # fmt: skip
    wrong = {
        "is another certificate's": (cert, other),
        "is encrypted; decrypt it": (cert, locked),
        "no certificate and key in PEM": (key, cert),
        f"tls_key {tmp_path}/none: No such file": (cert, tmp_path / "none"),
        f"tls_cert {tmp_path}: Is a directory": (tmp_path, key),
    }
    for said, (tls_cert, tls_key) in wrong.items():
        settings = ServeSettings(port=0, tls_cert=tls_cert, tls_key=tls_key)
        with pytest.raises(UsageError, match=said), listening(settings):
            raise AssertionError
    with listening(ServeSettings(port=0, tls_cert=cert, tls_key=key)) as sockets:
        assert len(sockets) == 1


def test_what_is_in_work_is_answered_before_it_stops(tmp_path: Path) -> None:
    go = threading.Event()
    go.set()
    seat = CanarySeat(lambda: go.wait(30.0) * 0.0)
    with service(tmp_path, [seat], drain=20.0) as running:
        raw, other = running.raw(), running.raw()
        raw.open()
        raw.acted(0)
        go.clear()
        raw.say(raw.packed(1))
        until(lambda: running.host.registry.places["r1"].session.sequence == 1)
        running.server.should_exit = True
        until(lambda: running.host.draining)
        assert any("stopping" in reason for reason in running.host.reasons())
        assert other.open("r2")["error"]["name"] == "draining"
        raw.say(raw.packed(2))
        assert raw.hear()["error"]["name"] == "draining"
        go.set()
        answer = raw.hear()
        assert isinstance(answer, Acted) and answer.sequence == 1 and answer.source == "policy"
        assert raw.closed() == 1012


def test_a_step_that_hangs_does_not_hang_the_stop(tmp_path: Path) -> None:
    go = threading.Event()
    go.set()
    seat = CanarySeat(lambda: go.wait(120.0) * 0.0)
    try:
        with service(tmp_path, [seat], drain=0.2, deadline=0.05) as running:
            raw = running.raw()
            raw.open()
            raw.acted(0)
            go.clear()
            assert raw.acted(1).late  # the controller's own deadline answers
            assert running.host.registry.places["r1"].desk.policy.running()
            running.server.should_exit = True
            until(lambda: not running._thread.is_alive(), 30.0)
    finally:
        go.set()


def test_a_hang_up_ends_nothing() -> None:
    """Of the terminal, or of whoever takes every service for one that reads files again."""
    with serving(snapshots="robots") as running:
        with robot(running.unix, "r1") as own:
            until(lambda: own.counts["answers"] > 3, 60.0)
            os.kill(running.pid, signal.SIGHUP)
            until(lambda: any("no certificate to renew" in line for line in running.said), 60.0)
            before = own.counts["answers"]
            until(lambda: own.counts["answers"] > before + 3, 60.0)
            assert own.client.counters["connected"] == 1
        assert running.stop() == 0


def test_a_second_ctrl_c_is_no_fault(tmp_path: Path) -> None:
    with serving(snapshots=str(tmp_path / "robots")) as running:
        with robot(running.unix, "r1", deadline=1.0) as own:  # it waits in vain at the end
            until(lambda: own.counts["answers"] > 3, 60.0)
            for _ in range(2):
                os.kill(running.pid, signal.SIGINT)
                time.sleep(0.02)
            running.process.wait(60.0)
        running.kill()
        assert "Traceback" not in "".join(running.said)
        assert (tmp_path / "robots/r1.safetensors").exists()


def test_a_model_that_cannot_be_stepped_ends_the_service(tmp_path: Path) -> None:
    class Broken(CanarySeat):
        def step(self, state: Any, previous_action: Any) -> Any:
            raise ValueError("no such thing")

    settings = ServeSettings(socket=tmp_path / "s", cpu=-1)
    with listening(settings) as sockets:
        server = Server(Crew([Broken()], settings), settings)
        with pytest.raises(WmrtError, match="cannot be stepped: no such thing"):
            server.run_on(sockets)


def test_it_is_alive_and_not_ready_while_it_warms_up(tmp_path: Path, settled: list[int]) -> None:
    go = threading.Event()
    settings = ServeSettings(socket=tmp_path / "s", cpu=-1)
    with listening(settings) as sockets:
        server = Server(Crew([CanarySeat(lambda: go.wait(30.0) * 0.0)], settings), settings)
        thread = threading.Thread(target=server.run_on, args=(sockets,))
        thread.start()
        try:
            until(lambda: server.started)
            assert http_status(tmp_path / "s", "/healthz") == 200
            assert http_status(tmp_path / "s", "/readyz") == 503
            assert http_status(tmp_path / "s", "/readyz?for=routing") == 503
            assert not settled  # what warming up leaves belongs to it, too
            go.set()
            until(lambda: http_status(tmp_path / "s", "/readyz") == 200)
            assert settled == [1]
        finally:
            go.set()
            server.should_exit = True
            thread.join(20.0)


def http_status(path: Path, target: str) -> int:
    with socket.socket(socket.AF_UNIX) as own:
        own.settimeout(10.0)
        own.connect(str(path))
        own.sendall(
            f"GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
        )
        return int(own.recv(4096).split()[1])


def test_a_listener_that_fails_stops_nobody(tmp_path: Path) -> None:
    heard: list[Acted] = []

    def fails(_: Acted) -> None:
        raise RuntimeError("a display")

    with service(tmp_path) as running:
        running.host.acted += [fails, heard.append]
        raw = running.raw()
        raw.open()
        assert raw.acted(0).sequence == 0
        until(lambda: [one.sequence for one in heard] == [0])


def test_the_event_loop_is_asyncio_s_whatever_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", ModuleType("uvloop"))
    with service(tmp_path) as running:
        assert isinstance(running.host.outbox.loop, asyncio.SelectorEventLoop)
