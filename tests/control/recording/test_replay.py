"""Recorded, replayed, compared: identical, or the first difference by step and field."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import FULL
from tests.control.planning.toys import Cart
from tests.control.recording.drives import Habit, items, plain_drive, restless, storm
from tests.control.support import PERIOD, STATE, FakeTimer, answer
from wmrt.control import Channel, Controller, StepClock
from wmrt.control.planning import MPPI
from wmrt.control.recording import FileRecorder, messages
from wmrt.control.recording.parts import PartWriter
from wmrt.control.recording.reader import Recording
from wmrt.control.recording.replay import replay, require_same
from wmrt.control.recording.topics import COMMANDS, EVENTS, GAPS, STEPS
from wmrt.core.clock import ManualClock
from wmrt.core.errors import RecordingError
from wmrt.safety import State


def rewrite(source: Path, target: Path, change: Callable[[str, dict[str, Any]], Any]) -> Recording:
    """A copy of a recording with ``change`` made to each message; None leaves it out."""
    recording = Recording(source)
    writer = PartWriter(target)
    writer.start({key: value for key, value in recording.head.items() if key != "part"})
    for topic, message in recording.items():
        changed = change(topic, message)
        if changed is not None:
            writer.write(topic, messages.text(changed), 0, 0)
    assert recording.end is not None
    writer.end(recording.end)
    return Recording(target)


@pytest.mark.parametrize("round_", range(20 if FULL else 3))
def test_a_storm_is_replayed_bit_for_bit(round_: int, seed: int, tmp_path: Path) -> None:
    counts = storm(tmp_path / "a.mcap", seed, 600)
    report = replay(Recording(tmp_path / "a.mcap"), Habit())
    assert report.identical, report.said()
    assert (report.steps, report.events) == (600, counts["events"])
    assert report.commands == counts["commands"] > 20
    assert report.said().endswith("identical, bit for bit")
    seen = [message for topic, message in items(tmp_path / "a.mcap", STEPS)]
    assert any(m["late"] for m in seen) and any(m["inputs"]["fallback"] for m in seen)
    after = {m["after"] for m in seen}  # of 138 storms four knew three of the states alone
    assert "open" in after and len(after) >= 3


@pytest.mark.parametrize("round_", range(10 if FULL else 2))
def test_a_drive_in_real_time_is_replayed_whatever_the_threads_did(
    round_: int, seed: int, tmp_path: Path
) -> None:
    controller = restless(tmp_path / "a.mcap", seed, 200)
    assert controller.stats()["record_failures"] == 0
    report = replay(Recording(tmp_path / "a.mcap"), Habit())
    assert report.identical and report.steps == 201, report.said()
    inputs = [message["inputs"] for _, message in items(tmp_path / "a.mcap", STEPS)]
    assert any(given["late"] and not given["answered"] for given in inputs)
    assert any(given["finished"] for given in inputs) and any(given["estop"] for given in inputs)


def test_a_resampled_drive_is_replayed(seed: int, tmp_path: Path) -> None:
    """The policy is asked in every third step; a reset in between begins anew."""

    class Slow(Habit):
        period = 3 * PERIOD

    rng, clock = random.Random(seed), ManualClock()
    with FileRecorder(tmp_path / "a.mcap") as recorder:
        controller = Controller(
            Slow(), PERIOD, recorder=recorder, clock=clock, timer=FakeTimer(), resample="linear"
        )
        for _ in range(200):
            clock.advance(PERIOD)
            if rng.random() < 0.05:
                controller.reset()
            controller.act({**STATE, "speed": 20.0 + rng.random()})
    report = replay(Recording(tmp_path / "a.mcap"), Slow())
    assert report.identical and report.steps == 200, report.said()
    asked = [m["inputs"]["asked"] for _, m in items(tmp_path / "a.mcap", STEPS)]
    assert 200 / 4 < sum(asked) < 200 / 2


def test_a_planner_is_built_again(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    planner = MPPI(budget=64, horizon=4, margin=0.0, spread=(0.4,), seed=seed)
    with FileRecorder(tmp_path / "a.mcap") as recorder:
        controller = Controller(
            Cart(), PERIOD, math.inf, recorder=recorder, clock=StepClock(PERIOD), planner=planner
        )
        for _ in range(30):
            controller.act({"position": rng.uniform(-3, 3), "speed": rng.uniform(-1, 1)})
        controller.reset()
        controller.act({"position": 1.0, "speed": 0.0})
    actions = [message["action"] for _, message in items(tmp_path / "a.mcap", STEPS)]
    assert any(action != [0.0] for action in actions)
    recording = Recording(tmp_path / "a.mcap")
    assert replay(recording, Cart()).identical
    other = MPPI(budget=64, horizon=4, margin=0.0, seed=seed + 1)
    report = replay(recording, other.around(Cart(), controller.breakers.limits, math.inf))
    assert report.difference is not None and report.difference.field == "action"


@pytest.mark.parametrize("every", [1, 3])
def test_a_channel_that_is_a_model_votes_again(every: int, seed: int, tmp_path: Path) -> None:
    class Twin(Habit):
        """As memorable, and never of one mind with the first."""

    channels = [
        Channel.from_policy("twin", Twin(0.0), every),
        Channel("rule", lambda state, previous: previous),
    ]
    with FileRecorder(tmp_path / "a.mcap") as recorder:
        controller = Controller(
            Habit(0.0), PERIOD, math.inf, recorder=recorder, channels=channels,
            clock=StepClock(PERIOD),
        )  # fmt: skip
        for step in range(30):
            controller.act({**STATE, "speed": 20.0 + step / 10})
    recording = Recording(tmp_path / "a.mcap")
    assert replay(recording, Habit(0.0)).identical  # from the record
    assert replay(recording, Habit(0.0), channels={"twin": Twin(0.0)}).identical
    at = next(n for n in range(1 + seed % 20, 31) if (n - 1) % every == 0)

    def change(topic: str, message: dict[str, Any]) -> dict[str, Any]:
        if topic == STEPS and message["step"] == at:
            message["inputs"]["votes"][0][0] += 1e-9
            message["digest"] = messages.digest(message)
        return message

    altered = rewrite(tmp_path / "a.mcap", tmp_path / "b.mcap", change)
    found = replay(altered, Habit(0.0), channels={"twin": Twin(0.0)}).difference
    assert found is not None and (found.step, found.field) == (at, "vote of twin")


def test_another_policy_is_found_at_its_first_other_answer(seed: int, tmp_path: Path) -> None:
    path = tmp_path / "a.mcap"
    plain_drive(path, [STATE] * 30)

    class Other(Habit):
        def step(self, state: Any, previous: Any) -> Any:
            told = super().step(state, previous)
            return answer([0.0, 0.0]) if len(self.seen) == 17 else told

    report = replay(Recording(path), Other(0.0))
    assert not report.identical and report.difference is not None
    assert (report.difference.step, report.difference.field) == (17, "action")
    assert report.difference.replayed == "(0.0, 0.0)" and "step 17: action" in report.said()


#: A message of a topic, altered so that it cannot be read.
UNREADABLE: dict[str, tuple[str, Callable[[dict[str, Any]], Any]]] = {
    "an action that is text": (STEPS, lambda m: m.update(action="x")),
    "an action of nothing": (STEPS, lambda m: m.update(action=[None])),
    "an event without a step": (EVENTS, lambda m: (m.pop("step"), m.update(value="other"))),
    "an event without a cause": (EVENTS, lambda m: m.pop("cause")),
    "a command without arguments": (COMMANDS, lambda m: m.update(arguments=None)),
    "arguments of another command": (COMMANDS, lambda m: m.update(arguments={"a": 1})),
    "a command without a name": (COMMANDS, lambda m: m.pop("name")),
}


@pytest.mark.parametrize("what", UNREADABLE)
def test_a_message_that_cannot_be_read_is_an_error_of_the_file(
    what: str, seed: int, tmp_path: Path
) -> None:
    storm(tmp_path / "a.mcap", seed, 60)
    topic, spoil = UNREADABLE[what]

    def change(found: str, message: dict[str, Any]) -> dict[str, Any]:
        if found == topic:
            spoil(message)
        return message

    changed = rewrite(tmp_path / "a.mcap", tmp_path / "b.mcap", change)
    with pytest.raises(RecordingError, match=r"b\.mcap: a message of /wmrt/.* cannot be read"):
        replay(changed, Habit())


def nan(message: dict[str, Any]) -> None:
    message["observation"]["gap"] = {"$": "float", "value": "nan"}


#: What may be altered in a recorded observation; each one must be found at its step.
ALTERATIONS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "number": lambda m: m["observation"].update(speed=m["observation"]["speed"] + 0.5),
    "last bit": lambda m: m["observation"].update(speed=math.nextafter(21.5, 22)),
    "category": lambda m: m["observation"].update(lane="right"),
    "flag": lambda m: m["observation"].update(wet=True),
    "vector": lambda m: m["observation"]["pose"].__setitem__(1, 3.0),
    "nan": nan,
    "missing": lambda m: m["observation"].pop("gap"),
    "required missing": lambda m: m["observation"].pop("speed"),
    "extra key": lambda m: m["observation"].update(more=1),
    "type": lambda m: m["observation"].update(gap={"$": "opaque", "type": "Camera"}),
    "no mapping": lambda m: m.update(observation=None),
    "capture time": lambda m: m.update(captured_ns=m["now_ns"] - 10**10),
    "clock": lambda m: m.update(now_ns=m["now_ns"] - 10**8),
    "late": lambda m: m["inputs"].update(late=True),
}


@pytest.mark.parametrize("kind", ALTERATIONS)
def test_an_altered_input_is_found_at_that_step(kind: str, seed: int, tmp_path: Path) -> None:
    at = 3 + seed % 20
    plain_drive(tmp_path / "a.mcap", [STATE] * 30)

    def change(topic: str, message: dict[str, Any]) -> dict[str, Any]:
        if topic == STEPS and message["step"] == at:
            ALTERATIONS[kind](message)
        return message

    report = replay(rewrite(tmp_path / "a.mcap", tmp_path / "b.mcap", change), Habit(0.0))
    assert report.difference is not None
    assert (report.difference.step, report.difference.field) == (at, "observation")


@pytest.mark.parametrize("kind", [kind for kind in ALTERATIONS if kind != "last bit"])
def test_it_is_found_by_computing_too(kind: str, seed: int, tmp_path: Path) -> None:
    """With a digest that fits: a forger's, or one that was recorded so. A change below the schema's
    resolution is no other state, and only the digest tells."""
    at = 3 + seed % 20
    plain_drive(tmp_path / "a.mcap", [STATE] * 30)

    def change(topic: str, message: dict[str, Any]) -> dict[str, Any]:
        if topic == STEPS and message["step"] == at:
            ALTERATIONS[kind](message)
            message["digest"] = messages.digest(message)
        return message

    report = replay(rewrite(tmp_path / "a.mcap", tmp_path / "b.mcap", change), Habit(0.0))
    assert report.difference is not None, report.said()
    assert report.difference.step == at and report.difference.field != "observation"


def test_an_altered_outcome_is_found_at_that_step(seed: int, tmp_path: Path) -> None:
    storm(tmp_path / "a.mcap", seed, 200)
    changes: dict[str, Callable[[dict[str, Any]], Any]] = {
        "action": lambda m: m["action"].__setitem__(0, math.nextafter(m["action"][0], 2)),
        "source": lambda m: m.update(source="magic"),
        "before": lambda m: m.update(before="closed" if m["before"] != "closed" else "open"),
        "after": lambda m: m.update(after="closed" if m["after"] != "closed" else "open"),
        "tripped": lambda m: m.update(tripped=[4]),
    }
    at = 1 + seed % 200
    for field, alter in changes.items():

        def change(
            topic: str, message: dict[str, Any], alter: Callable[[dict[str, Any]], Any] = alter
        ) -> dict[str, Any]:
            if topic == STEPS and message["step"] == at:
                alter(message)
            return message

        target = tmp_path / f"{field}.mcap"
        report = replay(rewrite(tmp_path / "a.mcap", target, change), Habit())
        assert report.difference is not None
        assert (report.difference.step, report.difference.field) == (at, field)


@pytest.mark.parametrize("how", ["gone", "altered", "invented"])
def test_an_event_that_differs_is_found(how: str, seed: int, tmp_path: Path) -> None:
    storm(tmp_path / "a.mcap", seed, 300)
    events = items(tmp_path / "a.mcap", EVENTS)
    chosen = next(e.message for e in events[seed % 50 :] if e.message["step"] > 0)
    done = []

    def change(topic: str, message: dict[str, Any]) -> Any:
        if topic == EVENTS and message == chosen and not done:
            done.append(message)
            if how == "gone":
                return None
            return {**message, "kind": message["kind"] + "!"}
        return message

    report = replay(rewrite(tmp_path / "a.mcap", tmp_path / "b.mcap", change), Habit())
    assert report.difference is not None and report.difference.field == "event"
    assert report.difference.step in (chosen["step"], chosen["step"] + 1)


def test_a_command_that_is_left_out_or_refused_is_found(tmp_path: Path, seed: int) -> None:
    storm(tmp_path / "a.mcap", seed, 400)

    def without(topic: str, message: dict[str, Any]) -> Any:
        return None if topic == COMMANDS and message["name"] == "disengage" else message

    report = replay(rewrite(tmp_path / "a.mcap", tmp_path / "b.mcap", without), Habit())
    assert report.difference is not None

    def nameless(topic: str, message: dict[str, Any]) -> Any:
        if topic == COMMANDS and message["name"] == "engage":
            message["arguments"]["operator"] = ""
        return message

    report = replay(rewrite(tmp_path / "a.mcap", tmp_path / "c.mcap", nameless), Habit())
    assert report.difference is not None and report.difference.field == "engage"
    assert "refused: engage: an operator's name is needed" in report.difference.replayed


def test_a_gap_ends_a_replay_and_is_told(tmp_path: Path) -> None:
    plain_drive(tmp_path / "a.mcap", [STATE] * 9)
    recording = rewrite(tmp_path / "a.mcap", tmp_path / "b.mcap", lambda topic, message: message)
    assert replay(recording, Habit(0.0)).identical
    writer = PartWriter(tmp_path / "c.mcap")
    writer.start({key: value for key, value in recording.head.items() if key != "part"})
    for number, (topic, message) in enumerate(recording.items()):
        if number == 5:
            gap = {"after_step": 5, "missing": 3, "reason": "the ring was full"}
            writer.write(GAPS, json.dumps(gap), 0, 0)
        writer.write(topic, messages.text(message), 0, 0)
    writer.end({})
    report = replay(Recording(tmp_path / "c.mcap"), Habit(0.0))
    assert not report.identical and report.steps == 5
    assert report.said() == (
        "3 missing after step 5: the ring was full; the 5 steps, 0 events and 0 commands before it "
        "are identical"
    )


def test_a_recording_without_an_end_is_told(tmp_path: Path) -> None:
    plain_drive(tmp_path / "a.mcap", [STATE] * 9)
    recording = Recording(tmp_path / "a.mcap")
    writer = PartWriter(tmp_path / "b.mcap")
    writer.start({key: value for key, value in recording.head.items() if key != "part"})
    for topic, message in recording.items():
        writer.write(topic, messages.text(message), 0, 0)
    writer.flush()
    writer.abandon()
    report = replay(Recording(tmp_path / "b.mcap"), Habit(0.0))
    assert not report.identical and report.steps == 9 and "it has no end" in report.said()


def test_an_observation_that_was_not_kept_is_told(tmp_path: Path) -> None:
    large = {**STATE, "gap": list(range(10_000))}
    plain_drive(tmp_path / "a.mcap", [STATE, STATE, large, STATE])
    report = replay(Recording(tmp_path / "a.mcap"), Habit(0.0))
    assert report.steps == 2 and not report.identical
    assert report.gap is not None and "a sequence of 10000 values" in report.gap


class Broken:
    """A clock that raises, or reads nonsense, as told."""

    def __init__(self, readings: list[Any]) -> None:
        self._readings = readings

    def now_ns(self) -> Any:
        reading = self._readings.pop(0)
        if isinstance(reading, Exception):
            raise reading
        return reading


def test_a_controller_that_fails_inside_is_replayed(tmp_path: Path) -> None:
    readings = [10**8, 2e8, OSError("none"), 3 * 10**8, "x", np.int64(4 * 10**8), None, -5, 10**30]
    clock = Broken([*readings])
    with FileRecorder(tmp_path / "a.mcap") as recorder:
        controller = Controller(
            Habit(0.0), PERIOD, math.inf, recorder=recorder, clock=clock, timer=lambda: 0
        )
        for _ in readings:
            controller.act(STATE)
    assert controller.breakers.state is State.LATCHED
    report = replay(Recording(tmp_path / "a.mcap"), Habit(0.0))
    assert report.identical and report.steps == len(readings), report.said()
    failures = [m["inputs"]["failure"] for _, m in items(tmp_path / "a.mcap", STEPS)]
    assert failures == ["", "", "OSError", "", "ValueError", "", "TypeError", "", ""]


def test_a_replay_resets_the_model_first(tmp_path: Path) -> None:
    plain_drive(tmp_path / "a.mcap", [STATE] * 5)
    used = Habit(0.0)
    used.step(STATE, np.zeros(2, np.float32))
    assert replay(Recording(tmp_path / "a.mcap"), used).identical


def test_of_a_policy_that_is_no_world_model_nobody_can_say_whether_it_is_the_same(
    tmp_path: Path,
) -> None:
    plain_drive(tmp_path / "a.mcap", [STATE])
    with pytest.raises(RecordingError, match="is of a Habit, which is no world model"):
        require_same(Recording(tmp_path / "a.mcap"), Habit())
