"""deploy/haproxy: a robot has one process, and an observation is never sent twice."""

from __future__ import annotations

import contextlib
import http.server
import json
import random
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.test_serve import start
from tests.deploy.proxy import CONFIG, Proxy, client, free_port, program, proxy, variables
from tests.service.doubles import TOKEN, CanarySeat, Running, service, until
from tests.service.raw import state
from tools.service_latency import whole_state
from wmrt.client import Backoff, Client, connect

#: So many fit into one process, wherever chance sends them.
ROBOTS = 15
#: `opening`: three processes that import and load on a busy machine took longer than the default.
QUICK: dict[str, Any] = {"deadline": 30.0, "opening": 120.0, "backoff": Backoff(0.01, 0.05)}


def names(count: int, seed: int) -> list[str]:
    """As fleets name them: alike but for a number."""
    start = random.Random(seed).randrange(1000)
    return [f"robot-{start + i}" for i in range(count)]


@contextlib.contextmanager
def serving(tmp_path: Path, number: int, **changes: Any) -> Iterator[Running]:
    folder = tmp_path / str(number)
    folder.mkdir(exist_ok=True)
    seats: list[Any] = [CanarySeat() for _ in range(16)]
    with service(folder, seats, tcp=True, idle=0.0, **changes) as running:
        yield running


def where(servers: list[Running]) -> dict[str, int]:
    """Robot to server; each once."""
    found = [(r, i) for i, one in enumerate(servers) for r in one.host.registry.places]
    assert len(dict(found)) == len(found), "a robot is in two processes"
    return dict(found)


def spread(
    stack: contextlib.ExitStack, made: Proxy, seed: int, homes: Callable[[], dict[str, int]]
) -> dict[int, list[Client]]:
    """Five robots at home in each process, by process; `homes` tells where each robot is."""
    found: dict[int, list[Client]] = {0: [], 1: [], 2: []}
    for name in names(200, seed):
        robot = Client(made.ws, name, on_lost="reopen", **QUICK)
        own = found[homes()[name]]
        if len(own) < 5:
            own.append(stack.enter_context(robot))
        else:
            robot.close()
        if all(len(own) == 5 for own in found.values()):
            return found
    raise AssertionError({home: len(own) for home, own in found.items()})


@pytest.fixture
def three(tmp_path: Path) -> Iterator[tuple[Proxy, list[Running]]]:
    program()
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(serving(tmp_path, i)) for i in (1, 2, 3)]
        addresses = [one.tcp.removeprefix("http://") for one in servers]
        yield stack.enter_context(proxy(tmp_path, addresses)), servers


@pytest.mark.parametrize("tls", [False, True])
def test_haproxy_takes_the_file(tmp_path: Path, tls: bool) -> None:
    own = variables(tmp_path, ["127.0.0.1:1", "unix@/tmp/two", "[::1]:3"])
    if tls:
        own["WMRT_TLS"] = str(certificate(tmp_path))
    for environment in (own, {"WMRT_TLS": own["WMRT_TLS"]} if tls else {}):
        done = subprocess.run(
            [program(), "-c", "-f", CONFIG], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "WARNING" not in done.stderr.upper(), done.stderr


def test_whom_limits_and_the_audit_log_mean(tmp_path: Path) -> None:
    """Whoever connects: what somebody says to have been asked by is not believed."""
    audit = tmp_path / "audit.jsonl"
    said = {"x-forwarded-for": "192.0.2.7", "forwarded": "for=192.0.2.7"}
    with serving(tmp_path, 1, token=TOKEN, audit=audit) as running:
        asked = httpx.get(f"{running.tcp}/v1/info", headers=said, trust_env=False)
        assert asked.status_code == 401
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    assert {line["client"] for line in lines if line["event"] == "unauthorized"} == {"127.0.0.1"}


def certificate(tmp_path: Path) -> Path:
    """One of our own, with its key, for 127.0.0.1."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl: make setup-system installs it")
    key, own, both = (tmp_path / name for name in ("key.pem", "own.pem", "both.pem"))
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", "2", "-subj", "/CN=wmrt", "-addext"]
    command += ["subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(own)]
    subprocess.run(command, check=True, capture_output=True)
    both.write_bytes(own.read_bytes() + key.read_bytes())
    return both


def test_tls_ends_at_the_proxy(tmp_path: Path) -> None:
    program()
    own = certificate(tmp_path)
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(serving(tmp_path, i)) for i in (1, 2, 3)]
        addresses = [one.tcp.removeprefix("http://") for one in servers]
        made = stack.enter_context(proxy(tmp_path, addresses, WMRT_TLS=str(own)))
        trusted = ssl.create_default_context(cafile=str(own))
        with connect(f"wss://{made.address}", "r1", tls=trusted, **QUICK) as robot:
            assert robot.act(state(0.5)).action[0] == 0.5
        with socket.create_connection(made.address.split(":")) as plain:  # type: ignore[arg-type]
            plain.sendall(b"GET /v1/schema HTTP/1.1\r\nHost: x\r\n\r\n")
            assert not plain.recv(100).startswith(b"HTTP/1.1 200")


def test_a_robot_has_one_process(three: tuple[Proxy, list[Running]], seed: int) -> None:
    made, servers = three
    robots = names(ROBOTS, seed)
    with contextlib.ExitStack() as stack:
        first = [stack.enter_context(connect(made.ws, r, **QUICK)) for r in robots[::2]]
        for robot in first:
            canary = round(random.Random(robot.robot).uniform(-1, 1), 4)
            assert robot.act(state(canary)).action[0] == pytest.approx(canary)
    homes = where(servers)
    for robot in robots[1::2]:  # over HTTP, every request over a connection of its own
        with client(made, robot) as one:
            opened = one.post("/v1/reset", json={"robot": robot}).json()
        for sequence in range(4):
            message = {key: opened[key] for key in ("version", "robot", "session", "epoch")}
            message |= {"sequence": sequence, "state": state(0.5)}
            with client(made, robot) as one:
                assert one.post("/v1/act", json=message).json()["step"] == sequence + 1
    homes = where(servers)
    assert set(homes) == set(robots) and len(set(homes.values())) >= 2
    for robot in robots[::2]:  # and it comes back there
        with connect(made.ws, robot, **QUICK) as again:
            again.act(state(0.1))
    assert where(servers) == homes


def test_what_does_not_name_its_robot_is_not_sent_anywhere(
    three: tuple[Proxy, list[Running]],
) -> None:
    made, servers = three
    two = [("x-session-id", "r1"), ("x-session-id", "r2")]
    for headers in ([], two, two[:1] * 2, [("x-session-id", "r 1")], [("x-session-id", "")]):
        with client(made) as one:
            answer = one.post("/v1/reset", json={"robot": "r1"}, headers=headers)
            assert answer.status_code == 400 and answer.json()["error"]["name"] == "malformed"
            assert one.get("/v1/breakers", headers=headers).status_code == 400
    assert where(servers) == {}
    with client(made, "r2") as one:
        answer = one.post("/v1/reset", json={"robot": "r1"})
        assert answer.status_code == 421 and answer.json()["error"]["name"] == "misrouted"
        for path in ("/", "/metrics", "/v1/info", "/readyz", "/nowhere"):
            assert one.get(path).status_code == 404, path
            assert one.get(path).json()["error"]["name"] == "not_found"
        assert one.get("/healthz").status_code == 200
    with client(made) as one:
        assert {one.get("/v1/schema").json()["schema_hash"] for _ in range(6)}
        assert one.get("/openapi.json").status_code == 200


def test_a_latched_robot_is_not_sent_to_where_nobody_knows_of_it(
    three: tuple[Proxy, list[Running]],
) -> None:
    made, servers = three
    with connect(made.ws, "r1", **QUICK) as robot:
        robot.act(state(0.5))
        with client(made, "r1") as one:
            assert one.post("/v1/breakers/estop", json={"robot": "r1"}).status_code == 200
        assert robot.act(state(0.5)).breakers == "latched"
        home = where(servers)["r1"]
        assert servers[home].host.reasons() != []
        time.sleep(2.0)  # four looks, of which two would do
        assert len(made.up()) == 3
        assert robot.act(state(0.5)).breakers == "latched" and robot.counters["lost"] == 0
    with connect(made.ws, "r1", **QUICK) as robot:
        assert robot.act(state(0.5)).breakers == "latched"
    assert where(servers) == {"r1": home}


def test_a_process_goes_and_comes_back(tmp_path: Path, seed: int) -> None:
    """Its robots are told and move; nobody else notices; they are at home again afterwards."""
    program()
    with contextlib.ExitStack() as stack:
        port = free_port()
        gone = stack.enter_context(contextlib.ExitStack())
        servers = [gone.enter_context(serving(tmp_path, 1, port=port))]
        servers += [stack.enter_context(serving(tmp_path, i)) for i in (2, 3)]
        addresses = [one.tcp.removeprefix("http://") for one in servers]
        made = stack.enter_context(proxy(tmp_path, addresses))
        found = spread(stack, made, seed, lambda: where(servers))
        robots = [robot for own in found.values() for robot in own]
        for robot in robots:
            robot.act(state(0.5))
        homes = {robot.robot: home for home, own in found.items() for robot in own}
        gone.close()
        for robot in robots:
            assert robot.act(state(0.25)).action[0] == 0.25
            moved = homes[robot.robot] == 0
            assert robot.counters["sessions_lost"] == moved  # 409, and a new session
            assert (robot.counters["lost"] > 0) == moved
        now = where(servers[1:])
        assert all(now[robot] == home - 1 for robot, home in homes.items() if home)
        assert homes.keys() <= now.keys()
        servers[0] = gone.enter_context(serving(tmp_path, 1, port=port))
        until(lambda: len(made.up()) == 3, 30.0)
        for robot in robots:  # connections stay where they are
            robot.act(state(0.5))
            assert robot.counters["sessions_lost"] == (homes[robot.robot] == 0)
        for robot in robots:
            robot.close()
            with connect(made.ws, robot.robot, **QUICK) as again:
                again.act(state(0.5))
        assert {r for r, home in homes.items() if home == 0} == set(servers[0].host.registry.places)


def test_a_stop_reaches_a_robot_whose_process_came_back_without_it(tmp_path: Path) -> None:
    """Its requests go home again, its connection has stayed where it went."""
    program()
    options: dict[str, Any] = {"snapshots": tmp_path / "kept", "shared": True}
    with contextlib.ExitStack() as stack:
        ports = [free_port(), free_port()]
        alone = [stack.enter_context(contextlib.ExitStack()) for _ in ports]
        servers = [
            own.enter_context(serving(tmp_path, i, port=port, **options))
            for i, (own, port) in enumerate(zip(alone, ports, strict=True))
        ]
        made = stack.enter_context(proxy(tmp_path, [f"127.0.0.1:{port}" for port in ports]))
        robot = stack.enter_context(connect(made.ws, "r1", on_lost="reopen", **QUICK))
        robot.act(state(0.5))
        home = where(servers)["r1"]
        alone[home].close()
        assert robot.act(state(0.5)).source == "policy"
        servers[home] = alone[home].enter_context(
            serving(tmp_path, home, port=ports[home], **options)
        )
        until(lambda: len(made.up()) == 2, 30.0)
        assert robot.act(state(0.5)).source == "policy" and where(servers) == {"r1": 1 - home}
        with client(made, "r1") as one:
            answer = one.post("/v1/breakers/estop", json={"robot": "r1"})
            assert answer.status_code == 200 and answer.json()["owner"]
        assert robot.act(state(0.5)).breakers == "latched" and where(servers) == {"r1": 1 - home}


class Dies(http.server.BaseHTTPRequestHandler):
    """Healthy, until it gets something to do: takes it in and closes."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.taken.append(self.path)  # type: ignore[attr-defined]
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, *_: Any) -> None:
        pass


def test_what_may_have_been_done_is_not_done_again(tmp_path: Path) -> None:
    program()
    with contextlib.ExitStack() as stack:
        doors = []
        for _ in range(3):
            door = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Dies)
            door.taken = []  # type: ignore[attr-defined]
            stack.callback(door.server_close)
            thread = threading.Thread(target=door.serve_forever, args=(0.05,))
            thread.start()
            stack.callback(thread.join)
            stack.callback(door.shutdown)
            doors.append(door)
        addresses = [f"127.0.0.1:{door.server_port}" for door in doors]
        made = stack.enter_context(proxy(tmp_path, addresses))
        for i in range(12):
            with client(made, f"r{i}") as one:
                assert one.post("/v1/act", json={"i": i}).status_code == 502
        assert sum(len(door.taken) for door in doors) == 12  # type: ignore[attr-defined]


@pytest.mark.full
@pytest.mark.parametrize("way", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("shared", [False, True])
def test_a_process_that_is_killed_or_hangs(
    tmp_path: Path, seed: int, way: signal.Signals, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real ones: how long its robots wait for their next action, and that the others do not.

    With a shared folder of snapshots their sessions go on; without, they are told and begin anew.
    """
    program()
    monkeypatch.setenv("WMRT_SERVE_IDLE", "0")
    ports = [free_port() for _ in range(3)]
    kept = ["--shared", "--snapshots", str(tmp_path / "kept"), "--snapshot-every", "0.5"]
    kept = kept if shared else []
    common = ["--robots", "16", "--clock", "step", "--rate", "100000", *kept]
    processes = [start("--port", str(port), *common) for port in ports]
    try:
        for process in processes:
            assert process.stderr is not None
            assert any("serving on" in line for line in process.stderr)
        with contextlib.ExitStack() as stack:
            servers = [f"127.0.0.1:{port}" for port in ports]
            made = stack.enter_context(proxy(tmp_path, servers, WMRT_PATIENCE="1s"))
            found = spread(stack, made, seed, lambda: told_by(servers))
            whole = whole_state(found[0][0].schema)
            for robot in (each for own in found.values() for each in own):
                assert robot.act(whole).step == 1
            time.sleep(2.0)  # a snapshot is written
            processes[0].send_signal(way)
            waits = [waited(robot, whole) for robot in found[0]]
            print(f"{way.name}, shared {shared}: {[round(1e3 * one) for one in waits]} ms")
            for robot in found[0]:
                assert robot.counters["lost"] > 0
                assert robot.counters["sessions_lost"] == (0 if shared else 1)
            for robot in found[1] + found[2]:
                robot.act(whole)
                assert robot.counters["lost"] == 0
        assert max(waits) < 20.0
    finally:
        for process in processes:
            process.kill()
            process.wait()
            assert process.stderr is not None
            process.stderr.close()


def told_by(servers: list[str]) -> dict[str, int]:
    """Robot to server, as the processes themselves say."""
    return {
        robot: number
        for number, server in enumerate(servers)
        for robot in httpx.get(f"http://{server}/v1/info", trust_env=False).json()["robots"]
    }


def waited(robot: Client, state: dict[str, Any]) -> float:
    """Seconds until its next action."""
    began = time.monotonic()
    robot.act(state)
    return time.monotonic() - began
