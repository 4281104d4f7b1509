"""Faults of the network and of slow peers."""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any

from tools.fault_case import STATE, Scene, Seen, case
from tools.proxy import Proxy
from tools.service_rig import until
from tools.wire import TEXT, Wire, dial, frame, heard, http_request, request
from wmrt.client import Backoff, connect
from wmrt.core import measure
from wmrt.core.errors import WmrtError


def connected(scene: Scene, name: str) -> bool:
    """Whether the service believes that the robot's client is there."""
    robot: dict[str, Any] = scene.service.info()["robots"].get(name, {"connected": False})
    return bool(robot["connected"])


@case("a robot's client asks and reads nothing", "newest answers only; dropped; its robot freed")
def slow_client(scene: Scene) -> Seen:
    with Wire(scene.service.port) as wire:
        wire.send(frame(TEXT, b'{"kind": "open", "version": 1, "robot": "slow"}'))
        own = json.loads(wire.hear(1.0)[0][1])
        message = {"kind": "observation", "version": 1, "state": STATE, "epoch": own["epoch"]}
        message |= {"robot": "slow", "session": own["session"]}
        sent, end = 0, time.monotonic() + 3 * scene.patience + 20.0
        began = time.monotonic()
        with contextlib.suppress(TimeoutError, OSError):
            while time.monotonic() < end:
                wire.send(frame(TEXT, json.dumps({**message, "sequence": sent}).encode()))
                sent += 1
        took = until(lambda: not connected(scene, "slow"), max(1.0, end - time.monotonic()))
    return Seen(f"{sent} observations unread, dropped", time.monotonic() - began if took else None)


@case(
    "half-open: the client's side vanishes",
    "noticed within two pings; the robot is held, then freed",
)
def half_open_server(scene: Scene) -> Seen:
    ping, hold = 1.0, 2.0  # of the settings
    with Proxy(scene.service.port) as proxy:
        robot = connect(f"ws://127.0.0.1:{proxy.port}", "half", deadline=10.0, opening=20.0)
        robot.act(STATE)
        proxy.cut.set()
        noticed = until(lambda: not connected(scene, "half"), 2 * ping + 10.0)
        with contextlib.suppress(WmrtError):
            connect(scene.service.unix, "half", opening=0.2).close()
            scene.expect(False, "another client had the robot while it was held")
        freed = until(lambda: _taken(scene, "half"), hold + 10.0)
        robot.close()
    return Seen(
        f"noticed after {noticed:.1f} s, another client had it {freed:.1f} s later", noticed
    )


def _taken(scene: Scene, name: str) -> bool:
    try:
        connect(scene.service.unix, name, opening=5.0).close()
    except WmrtError:
        return False
    return True


@case("half-open: the service's side vanishes", "the client says so, and goes on over another way")
def half_open_client(scene: Scene) -> Seen:
    with Proxy(scene.service.port) as proxy:
        where = f"ws://127.0.0.1:{proxy.port}"
        robot = connect(where, "away", deadline=0.5, opening=20.0, backoff=Backoff(0.05, 0.2))
        before = robot.act(STATE)
        proxy.cut.set()
        began, missed = time.monotonic(), 0
        while robot.counters["lost"] == 0 and time.monotonic() < began + 30.0:
            try:
                robot.act(STATE)
            except WmrtError:
                missed += 1
        said = time.monotonic() - began
        scene.expect(robot.counters["lost"] == 1, "the client never said that it is lost")
        proxy.cut.clear()
        while True:
            try:
                after = robot.act(STATE, deadline=5.0)
                break
            except WmrtError:
                missed += 1
                scene.expect(time.monotonic() < began + 60.0, "it never came back")
        took = time.monotonic() - began
        scene.expect(after.step > before.step, "the session began anew")
        scene.expect(robot.counters["resumed"] == 1, f"not resumed: {robot.counters}")
        robot.close()
    return Seen(f"said after {said:.1f} s; {missed} calls missed their deadline", took, missed)


@case("50 clients with a head of one byte a second", "closed by the head's time; others served")
def slow_heads(scene: Scene) -> Seen:
    owns = [dial(scene.service.port) for _ in range(50 if scene.long else 20)]
    began, left = time.monotonic(), set(owns)
    text = b"GET /v1/info HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 1000
    for byte in text:
        for own in list(left):
            try:
                own.sendall(bytes([byte]))
            except OSError:
                left.discard(own)
        if not left:
            break
        scene.expect(time.monotonic() - began < 2 * scene.patience + 10.0, f"{len(left)} are left")
        time.sleep(0.25)
    took = time.monotonic() - began
    for own in owns:
        own.close()
    return Seen(f"all {len(owns)} closed after {took:.1f} s", took)


@case("bodies of one byte a second", "408 by the body's time")
def slow_bodies(scene: Scene) -> Seen:
    head = request("POST", "/v1/act").replace(b"Length: 0", b"Length: 5000")
    owns = [dial(scene.service.port) for _ in range(20)]
    began = time.monotonic()
    for own in owns:
        own.sendall(head)
    replies = []
    while time.monotonic() - began < scene.patience + 1.0:
        for own in owns:
            with contextlib.suppress(OSError):
                own.sendall(b"{")
        time.sleep(0.25)
    for own in owns:
        replies.append(heard(own, 10.0))
        scene.status(replies[-1], 408)
        own.close()
    told = sum("408" in reply[:20] for reply in replies)
    scene.expect(told > 0, "nobody was told")
    return Seen(f"{told} of {len(owns)} told 408, all closed", time.monotonic() - began)


@case("600 connections that say nothing", "bounded; the oldest go; probes and robots are served")
def idle_connections(scene: Scene) -> Seen:
    limits = scene.service.info()["limits"]
    before = scene.service.files()
    owns = [dial(scene.service.port) for _ in range(600)]
    began = time.monotonic()
    bound = limits["connections"] + 80
    until(lambda: scene.service.files() - before < bound, 5.0)
    most = scene.service.files() - before
    healthy = scene.service.status("/healthz")
    scene.expect(healthy == 200, f"/healthz said {healthy}")
    answered = time.monotonic() - began
    took = until(lambda: scene.service.files() <= before + 1, 2 * scene.patience + 15.0)
    for own in owns:
        own.close()
    return Seen(f"{most} of 600 kept, /healthz after {1e3 * answered:.0f} ms, none later", took)


@case("requests in one go, answers unread", "dropped; the requests' places come back")
def slow_readers(scene: Scene) -> Seen:
    before = scene.service.files()
    owns = [dial(scene.service.port) for _ in range(10)]
    until(lambda: scene.service.files() >= before + 10, 10.0)
    began = time.monotonic()
    for own in owns:
        own.setblocking(False)
        with contextlib.suppress(BlockingIOError, OSError):
            for _ in range(50):
                own.send(request("GET", "/openapi.json") * 20)
    until(lambda: scene.service.files() <= before + 1, 3 * scene.patience + 60.0)
    for own in owns:
        own.close()
    return Seen("all 10 dropped", time.monotonic() - began)


@case("a step takes 2 s", "/healthz p99 below 50 ms meanwhile, or below twice what it is without")
def slow_step(scene: Scene) -> Seen:
    without, took = healthz(scene, 3.0), list[float]()
    with scene.raw("slowest") as raw:
        for sequence in range(3 if scene.long else 1):
            raw.say(raw.packed(sequence, state={**STATE, "wait": 2.0}))
            took += healthz(scene, 1.8)
            got = raw.hear(20.0)
            scene.expect(got.act_ns > 1.9e9 and got.action[0] == STATE["canary"], f"{got}")
    found, idle = measure.summary(took), measure.summary(without)["p99"] or 0.0
    p99 = found["p99"] or 0.0
    scene.expect(p99 < max(50.0, 2 * idle), f"/healthz p99 {p99:.1f} ms, {idle:.1f} without")
    said = f"{len(took)} times: p50 {found['p50']:.1f} ms, p99 {p99:.1f} ms"
    return Seen(f"{said}; without such a step p99 {idle:.1f} ms")


def healthz(scene: Scene, seconds: float) -> list[float]:
    """Milliseconds of each request, one after the other for ``seconds``."""
    took, end = list[float](), time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.monotonic()
        reply = http_request(scene.service.port, _HEALTH, 5.0)
        took.append(1e3 * (time.monotonic() - began))
        scene.expect(reply.startswith("HTTP/1.1 200"), reply[:80])
    return took


_HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"

CASES = [
    slow_client, half_open_server, half_open_client, slow_heads, slow_bodies, idle_connections,
    slow_readers, slow_step,
]  # fmt: skip
