"""A recording of a controller whose steps are decided in the policy's thread is replayed as any
other, whoever decided: the policy's thread, the alarm, or the caller's."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import FULL
from tests.control.recording.drives import Habit, items, restless, storm
from tests.control.recording.test_replay import rewrite
from tests.control.stalls import until
from tests.control.support import PERIOD, STATE, UNFIT
from wmrt.control import TimedController
from wmrt.control.recording import FileRecorder, messages
from wmrt.control.recording.reader import Recording
from wmrt.control.recording.replay import replay
from wmrt.control.recording.topics import COMMANDS, STEPS


@pytest.mark.parametrize("round_", range(20 if FULL else 2))
def test_a_storm_is_replayed_bit_for_bit(round_: int, seed: int, tmp_path: Path) -> None:
    counts = storm(tmp_path / "a.mcap", seed, 400, TimedController)
    report = replay(Recording(tmp_path / "a.mcap"), Habit())
    assert report.identical, report.said()
    assert (report.steps, report.commands) == (400, counts["commands"])


def test_storms_bring_what_makes_a_step_another_one(seed: int, tmp_path: Path) -> None:
    """One of four does: a robot that latches early is not late any more (1 of 20 seeds)."""
    late = fallback = False
    for i in range(4):
        storm(tmp_path / f"{i}.mcap", seed + i, 400, TimedController)
        seen = [message for _, message in items(tmp_path / f"{i}.mcap", STEPS)]
        late |= any(message["late"] for message in seen)
        fallback |= any(message["inputs"]["fallback"] for message in seen)
    assert late and fallback


@pytest.mark.parametrize("begin", [False, True], ids=["act", "start"])
@pytest.mark.parametrize("round_", range(10 if FULL else 2))
def test_a_drive_in_real_time_is_replayed_whoever_decided(
    round_: int, begin: bool, seed: int, tmp_path: Path
) -> None:
    controller = restless(tmp_path / "a.mcap", seed, 200, TimedController, begin)
    assert controller.stats()["record_failures"] == 0
    report = replay(Recording(tmp_path / "a.mcap"), Habit())
    assert report.identical and report.steps == 201, report.said()
    inputs = [message["inputs"] for _, message in items(tmp_path / "a.mcap", STEPS)]
    assert any(given["late"] and not given["answered"] for given in inputs)  # the alarm's
    assert any(given["finished"] for given in inputs) and any(given["estop"] for given in inputs)


class Held(Habit):
    """Answers at once, or, for a speed above 30, when it may."""

    def __init__(self) -> None:
        super().__init__(0.0)
        self.go = threading.Event()

    def step(self, state: Any, previous: Any) -> Any:
        if state["speed"] > 30.0:
            assert self.go.wait(60.0)
        return super().step(state, previous)


def late_drive(path: Path) -> list[tuple[list[float], Any, str]]:
    """Record steps by all three who may decide one; what was sent, how, and in which thread.

    The third is late: the alarm decides it, the fourth comes while the policy is still at it, and
    its answer advances the memory before the fifth.
    """
    policy, sent = Held(), []
    with FileRecorder(path) as recorder:
        controller = TimedController(policy, PERIOD, 1.0, recorder=recorder)

        def decided(action: Any, outcome: Any) -> None:
            sent.append((list(action), outcome, threading.current_thread().name))

        def step(number: int, obs: Any) -> None:
            rest = controller.start(obs, None, decided)
            if rest is not None:
                worker = threading.Thread(target=rest, name="mine")
                worker.start()
                worker.join(60.0)
            until(lambda: len(sent) == number)

        step(1, {**STATE, "speed": 20.5})
        step(2, UNFIT)
        step(3, {**STATE, "speed": 33.0})
        step(4, {**STATE, "speed": 21.5})
        policy.go.set()
        until(lambda: not controller._timed._worker._busy)
        for number in range(5, 12):
            step(number, {**STATE, "speed": 20.0 + number / 4})
        controller.reset([0.1, -0.1], heal=False)
        step(12, {**STATE, "speed": 22.0})
    return sent


def test_a_late_step_is_replayed_with_the_memory_that_it_left(tmp_path: Path) -> None:
    sent = late_drive(tmp_path / "a.mcap")
    assert [name for _, _, name in sent[:4]] == [
        "wmrt-policy", "mine", "wmrt-deadline", "wmrt-deadline",
    ]  # fmt: skip
    steps = [message for _, message in items(tmp_path / "a.mcap", STEPS)]
    assert [m["late"] for m in steps[:4]] == [False, False, True, True]
    assert 3 in steps[4]["inputs"]["finished"] or 3 in steps[5]["inputs"]["finished"]
    recorded = [np.array(m["action"], np.float32).tolist() for m in steps]
    assert recorded == [action for action, _, _ in sent]
    recording = Recording(tmp_path / "a.mcap")
    report = replay(recording, Habit(0.0))
    assert report.identical and report.steps == 12, report.said()
    assert [m["name"] for _, m in items(tmp_path / "a.mcap", COMMANDS)] == ["reset"]


def test_a_late_step_that_never_reached_the_memory_is_found(tmp_path: Path) -> None:
    """The test above can fail."""
    late_drive(tmp_path / "a.mcap")

    def forget(topic: str, message: dict[str, Any]) -> dict[str, Any]:
        if topic == STEPS and message["step"] == 4:
            message["inputs"]["skipped"] = [3]
            message["digest"] = messages.digest(message)
        return message

    altered = rewrite(tmp_path / "a.mcap", tmp_path / "b.mcap", forget)
    assert not replay(altered, Habit(0.0)).identical


def test_whether_a_reset_heals_is_replayed(tmp_path: Path) -> None:
    with FileRecorder(tmp_path / "a.mcap") as recorder:
        controller = TimedController(Habit(0.0), PERIOD, 60.0, recorder=recorder)
        controller.act(UNFIT)
        controller.reset(heal=False)
        controller.act(STATE)
        controller.reset()
        controller.act(STATE)
    assert replay(Recording(tmp_path / "a.mcap"), Habit(0.0)).identical
    after = [message["after"] for _, message in items(tmp_path / "a.mcap", STEPS)]
    assert after == ["open", "open", "closed"]

    def heal(topic: str, message: dict[str, Any]) -> dict[str, Any]:
        if topic == COMMANDS:
            message["arguments"]["heal"] = True
        return message

    altered = rewrite(tmp_path / "a.mcap", tmp_path / "b.mcap", heal)
    assert not replay(altered, Habit(0.0)).identical
