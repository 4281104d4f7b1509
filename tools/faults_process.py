"""Faults of the process itself: a power cut, a stop under load, a disk that is full."""

from __future__ import annotations

import threading
import time

from tools.fault_case import Scene, Seen, case
from tools.service_rig import Robot, until


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


CASES = [kill, drain, full_disk]
