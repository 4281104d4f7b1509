"""Probes that mean something: stuck steps, failing models and disks, a late loop; and to whom."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.service.doubles import CanarySeat, Running, service, until
from wmrt.core.errors import DeviceError
from wmrt.core.wire import Acted
from wmrt.service.health import FAILURES, SNAPSHOTS
from wmrt.service.meter import Histogram
from wmrt.service.pulse import IN_A_ROW, Pulse

TOKEN, OPERATOR, READER = "client-" + "t" * 16, "operator-" + "o" * 16, "metrics-" + "m" * 16


class FailingSeat(CanarySeat):
    """Raises ``error`` while there is one."""

    error: Exception | None = None

    def step(self, state: Any, previous_action: Any) -> Any:
        if self.error is not None:
            raise self.error
        return super().step(state, previous_action)


def ask(running: Running, path: str, token: str | None = None) -> tuple[int, dict[str, Any]]:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    answer = httpx.get(running.tcp + path, headers=headers, trust_env=False, timeout=30.0)
    return answer.status_code, answer.json()


@pytest.mark.parametrize(
    "changes",
    [
        {
            "clock": "step",
            "deadline": 0.4,
        },  # the step runs in the robot's own thread, and nobody is answered
        {"deadline": 0.05},  # under a watchdog: every step is answered, with the fallback
    ],
)
def test_a_step_that_is_stuck_calls_for_a_restart(tmp_path: Path, changes: dict[str, Any]) -> None:
    go = threading.Event()
    go.set()
    seat = CanarySeat(lambda: go.wait(60.0) * 0.0)
    with service(tmp_path, [seat], tcp=True, stuck_after=0.4, **changes) as running:
        raw = running.raw()
        raw.open("r1")
        raw.acted(0)
        assert ask(running, "/healthz") == (200, {"ok": True})
        go.clear()
        raw.say(raw.packed(1))
        until(lambda: ask(running, "/healthz")[0] == 503)
        status, told = ask(running, "/healthz")
        assert status == 503 and not told["ok"] and "policy of robot r1" in told["reasons"][0]
        assert ask(running, "/readyz")[0] == 503
        assert ask(running, "/v1/info")[1]["alive"] is False
        go.set()
        until(lambda: ask(running, "/healthz") == (200, {"ok": True}))


@pytest.mark.parametrize("sends_on", [False, True])
def test_a_robot_s_thread_that_hangs_elsewhere_is_stuck_too(tmp_path: Path, sends_on: bool) -> None:
    """Also where each observation is replaced by the next one, long before it is old."""
    go, sent = threading.Event(), [0]
    with service(tmp_path, tcp=True, stuck_after=0.5, deadline=0.3) as running:
        raw = running.raw()
        raw.open("r1")
        raw.say(raw.packed(0))
        assert raw.hear().sequence == 0
        running.host.registry.places["r1"].desk.call(lambda: go.wait(60.0))

        def sick() -> bool:
            if sends_on or not sent[0]:
                sent[0] += 1
                raw.say(raw.packed(sent[0]))
            time.sleep(0.02)
            return ask(running, "/healthz")[0] == 503

        until(sick)
        assert "robot r1 has waited" in ask(running, "/healthz")[1]["reasons"][0]
        go.set()
        while not isinstance(told := raw.hear(), Acted):
            assert told["error"]["name"] == "superseded"
        assert told.sequence == sent[0]
        until(lambda: ask(running, "/healthz") == (200, {"ok": True}))


def test_a_client_that_sends_faster_than_its_robot_steps_is_no_trouble(tmp_path: Path) -> None:
    """Nearly all of it is replaced, for longer than a step may hang; but answers come."""
    with service(tmp_path, [CanarySeat(0.05)], tcp=True, stuck_after=0.5, deadline=0.3) as running:
        raw, answers = running.raw(), 0
        raw.open("r1")
        end = time.monotonic() + 2.0
        for sequence in itertools.count():
            if time.monotonic() > end:
                break
            raw.say(raw.packed(sequence))
            time.sleep(0.005)
            assert running.host.dying() == []
        raw.say(raw.packed(sequence))
        while not isinstance(told := raw.hear(), Acted) or told.sequence < sequence:
            answers += isinstance(told, Acted)
        assert answers > 5 and running.host.counts["superseded"] > answers


@pytest.mark.parametrize(
    ("error", "alive"),
    [(ValueError("no such thing"), 200), (DeviceError("the device is gone"), 503)],
)
def test_a_model_that_fails_is_not_ready(tmp_path: Path, error: Exception, alive: int) -> None:
    """A device's error stays, so that it takes a new process; another one may pass."""
    seat = FailingSeat()
    with service(tmp_path, [seat], tcp=True) as running:
        raw = running.raw()
        raw.open("r1")
        seat.error = error
        for sequence in range(FAILURES):
            assert ask(running, "/readyz")[1]["ready"] is True
            assert raw.acted(sequence).source == "fallback"
        status, told = ask(running, "/readyz")
        assert status == 503 and f"{FAILURES} steps in a row failed" in told["reasons"][-1]
        assert str(error) in told["reasons"][-1]
        assert ask(running, "/healthz")[0] == alive
        seat.error = None
        raw.acted(FAILURES)
        assert ask(running, "/healthz") == (200, {"ok": True})
        assert not any("failed" in reason for reason in running.host.reasons())


def test_reasons_are_for_those_who_have_the_token(tmp_path: Path) -> None:
    tokens = {"token": TOKEN, "operator_token": OPERATOR, "metrics_token": READER}
    with service(tmp_path, tcp=True, **tokens) as running:
        raw = running.raw(TOKEN)
        raw.open("secret-robot")
        running.host.registry.places["secret-robot"].desk.controller.estop()
        raw.acted(0)
        for token in (None, "x" * 20, READER):
            assert ask(running, "/readyz", token) == (503, {"ready": False})
            assert ask(running, "/healthz", token) == (200, {"ok": True})
        for token in (TOKEN, OPERATOR):
            status, told = ask(running, "/readyz", token)
            assert status == 503 and told["reasons"] == [
                "latched until an operator resets: secret-robot"
            ]


def test_a_disk_that_fails_again_and_again_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All replicas may share it: none of them may leave its robots for that."""
    changes = {"snapshots": tmp_path / "kept", "snapshot_every": 0.0}
    with service(tmp_path, tcp=True, token=TOKEN, **changes) as running:
        raw = running.raw(TOKEN)
        raw.open("r1")
        store, place = running.host.registry.store, running.host.registry.places["r1"]
        assert store is not None

        def keep() -> bool:
            raw.acted(place.session.sequence + 1)  # else there is nothing new to keep
            kept = asyncio.run_coroutine_threadsafe(
                running.host.registry.keep(place), running.host.outbox.loop
            )
            return kept.result(30.0)

        assert keep()
        store.folder = tmp_path / "gone"
        assert [keep() for _ in range(SNAPSHOTS)] == [False] * SNAPSHOTS
        status, told = ask(running, "/readyz", TOKEN)
        assert (status, told["ready"]) == (200, True)
        assert f"the last {SNAPSHOTS} snapshots failed" in told["warnings"][0]
        assert ask(running, "/readyz")[1]["ready"] is True
        assert ask(running, "/v1/info", TOKEN)[1]["warnings"] == told["warnings"]
        store.folder = tmp_path / "kept"
        assert keep()
        assert "snapshots" not in str(ask(running, "/readyz", TOKEN)[1].get("warnings"))


def test_a_loop_that_is_late_again_and_again_is_not_ready() -> None:
    async def blocked(turns: int, blocks: Callable[[int], float]) -> Pulse:
        lag = Histogram((0.1, 0.2))
        pulse = Pulse(lag)
        task = asyncio.create_task(pulse.run())
        for turn in range(turns):
            await asyncio.sleep(0.05)
            time.sleep(blocks(turn))
        await asyncio.sleep(0.0)
        task.cancel()
        assert lag.count >= 1
        return pulse

    once = asyncio.run(blocked(8, lambda turn: 0.5 if turn == 1 else 0.0))
    assert once.worst > 0.3 and once.steady < once.worst
    always = asyncio.run(blocked(2 * IN_A_ROW, lambda turn: 0.3))
    assert always.steady > 0.1


def test_a_late_loop_is_told(tmp_path: Path) -> None:
    with service(tmp_path, tcp=True) as running:
        running.host.pulse._recent.extend([0.0, *[0.6] * IN_A_ROW])
        assert any("again and again" in reason for reason in running.host.reasons())
        running.host.pulse._recent.extend([3.0, 0.0])
        assert not any("again" in reason for reason in running.host.reasons())
        assert "3.0 s late" in running.host.warnings()[0]
