"""Faults of the process itself: a power cut, a stop under load, a disk that is full."""

from __future__ import annotations

import contextlib
import threading
import time

from tools.fault_case import STATE, Scene, Seen, case
from tools.service_rig import Robot, post, until
from wmrt.service.snapshots import SnapshotStore


@case("kill -9 in the middle of a stream", "clients resume by themselves; lost steps counted")
def kill(scene: Scene) -> Seen:
    others = [Robot(scene.service.unix, f"k{i}") for i in range(2)]
    time.sleep(1.0)
    service, began = scene.service, time.monotonic()
    robots = [scene.by, *others]
    before = [one.client.counters.copy() for one in robots]
    service.kill()
    service.start()
    started = time.monotonic()
    counts = [one.counts["answers"] for one in robots]
    until(lambda: all(r.counts["answers"] > n for r, n in zip(robots, counts, strict=True)), 30.0)
    took = time.monotonic() - started
    lost = 0
    for one, was in zip(robots, before, strict=True):
        now = one.client.counters
        scene.expect(now["resumed"] == was["resumed"] + 1, f"resumed {now['resumed']}")
        scene.expect(now["lost"] == was["lost"] + 1, f"lost {now['lost']} connections")
        lost += now["steps_lost"] - was["steps_lost"]
    for one in others:
        one.stop()
        scene.expect(not one.mixed and not one.unsafe and not one.counts["steps_apart"], "mixed")
    away = started - began
    return Seen(f"away for {away:.1f} s, all resumed, {lost} steps forgotten", took, lost)


@case(
    "kill -9 right after a breaker opened, a latch, a disengage",
    "on disk in milliseconds, though a policy hangs; none is closed by the restart",
)
def kill_tripped(scene: Scene) -> Seen:
    service, store = scene.service, SnapshotStore(scene.service.folder / "robots")
    took: dict[str, float] = {}

    def stands(robot: str, breakers: str, engaged: bool) -> bool:
        found = store.read_standing(robot)
        return found is not None and (found.breakers, found.engaged) == (breakers, engaged)

    with contextlib.ExitStack() as stack:
        made = {n: stack.enter_context(scene.raw(f"t-{n}")) for n in ("open", "free", "stop")}
        for raw in made.values():
            scene.expect(raw.name(raw.packed(0)) == "action", "not stepped")
        hanging = made["stop"]
        hanging.say(hanging.packed(1, state=STATE | {"wait": 9.0}))
        bad = made["open"]
        bad.say(bad.packed(1, state=STATE | {"canary": None}))
        scene.expect(bad.hear().breakers == "open", "not open")
        took["open"] = until(lambda: stands("t-open", "open", True), 10.0)
        for name, action in (("stop", "estop"), ("free", "disengage")):
            robot = made[name].client.robot
            status = post(service.port, f"/v1/breakers/{action}", {"robot": robot})
            scene.expect(status == 200, f"{action}: {status}")
            wanted = ("latched", True) if name == "stop" else ("closed", False)
            took[name] = until(lambda r=robot, w=wanted: stands(r, *w), 10.0)
        service.kill()
    service.start()
    for name, breakers in (("open", "open"), ("free", "closed"), ("stop", "latched")):
        with scene.raw(f"t-{name}") as raw:
            raw.say(raw.packed(0))
            answer = raw.hear()
        fits = (answer.source, answer.breakers) == ("fallback", breakers)
        scene.expect(fits, f"{name}: {answer.source}, {answer.breakers}")
    until(lambda: scene.service.info()["robots"]["by"]["connected"], 30.0)
    slowest = max(took.values())
    return Seen(f"on disk within {slowest * 1e3:.0f} ms of the answer, and so after the restart")


@case("SIGTERM under load", "what is in work is answered; exit 0; nothing is lost")
def drain(scene: Scene) -> Seen:
    service = scene.service
    others = [Robot(service.unix, f"d{i}", hz=100.0) for i in range(2)]
    time.sleep(1.0)
    robots = [scene.by, *others]
    before = [one.client.counters["steps_lost"] for one in robots]
    ends: list[float] = []
    began = time.monotonic()
    thread = threading.Thread(target=lambda: ends.append(service.stop()))
    thread.start()
    thread.join(60.0)
    stopped = time.monotonic() - began
    scene.expect(ends == [0], f"exit status {ends}")
    service.start()
    counts = [one.counts["answers"] for one in robots]
    took = until(
        lambda: all(r.counts["answers"] > n for r, n in zip(robots, counts, strict=True)), 30.0
    )
    lost = sum(
        one.client.counters["steps_lost"] - was for one, was in zip(robots, before, strict=True)
    )
    for one in others:
        one.stop()
        scene.expect(not one.mixed and not one.unsafe and not one.counts["steps_apart"], "mixed")
    scene.expect(lost == 0, f"{lost} steps were forgotten")
    return Seen(f"stopped within {stopped:.1f} s, exit 0", took, lost)


@case("the disk is full", "snapshots fail and are counted; the last ones stay; steps go on")
def full_disk(scene: Scene) -> Seen:
    service, by = scene.service, scene.by
    path = service.folder / "robots" / f"{by.client.robot}.safetensors"
    until(path.exists, 10.0)
    with service.full_disk():
        failed, answers = service.info()["snapshots"]["failed"], by.counts["answers"]
        until(lambda: service.info()["snapshots"]["failed"] > failed + 1, 20.0)
        last = path.read_bytes()
        scene.expect(len(last) > 512, "the last snapshot is not whole")
        scene.expect(by.counts["answers"] > answers, "the robot stood")
        scene.expect(service.status("/readyz") == 200, "not ready")
    written = service.info()["snapshots"]["written"]
    took = until(lambda: service.info()["snapshots"]["written"] > written, 20.0)
    # This process's own, of which one may be being written; another's was killed as it wrote.
    left = [one.name for one in path.parent.glob(f".*.{service.pid}")]
    scene.expect(len(left) <= 1, f"left over: {left}")
    return Seen("failures counted in /v1/info, ready, written again afterwards", took)


CASES = [kill, kill_tripped, drain, full_disk]
