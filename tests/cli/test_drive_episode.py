"""One episode: what is counted, and what is kept for the report."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.cli.drive_doubles import Scripted, Straight, outcome
from wmrt.cli.driving.episode import drive_episode


def test_row_counts_what_happened() -> None:
    env = Straight(steps=4, crash=True)
    arm = Scripted(
        [
            outcome(1.0),
            outcome(3.0, tripped=(1, 2)),
            outcome(2.0, tripped=(2,), state="degraded", late=True),
            outcome(None, tripped=(0,), source="fallback", state="open"),
        ],
        told={"channels": {"rule": {"votes": 4}}, "monitor": {"alarms": 2}},
    )
    found = drive_episode(env, arm, 7)
    assert env.seeds == arm.seeds == [7]
    assert found.row == {
        "seed": 7,
        "return": 0.25 + 0.5 + 0.75 + 1.0,
        "steps": 4,
        "crashed": True,
        "offroad": False,
        "mean_speed": 22.5,
        "distance_m": 8.0,
        "trips": {"0": 1, "1": 1, "2": 2, "3": 0},
        "deadline_misses": 1,
        "fallback_steps": 1,
        "degraded_steps": 1,
        "openings": 1,
        "latched": False,
        "channels": {"rule": {"votes": 4}},
        "monitor": {"alarms": 2},
        "step_ms": {"p50": 2.0, "p99": 3.0, "max": 3.0},
    }
    assert found.step_ns == [1_000_000, 3_000_000, 2_000_000]  # the step that was not asked is none
    assert found.act_ns == [2_000_000] * 4
    assert all(np.array_equal(a, [0.5, -0.5]) for a in env.received)


def test_without_breakers_their_counts_are_missing_not_zero() -> None:
    arm = Scripted([outcome(state=None, late=None)] * 4, controlled=False)
    row = drive_episode(Straight(offroad=True), arm, 1).row
    assert row["offroad"] and not row["crashed"]
    keys = ("trips", "deadline_misses", "fallback_steps", "degraded_steps", "latched")
    assert [row[key] for key in (*keys, "openings", "channels", "monitor")] == [None] * 8


@pytest.mark.parametrize(
    ("states", "openings"),
    [
        (["open", "open", "half_open", "open"], 2),
        (["closed", "open", "latched", "latched"], 1),  # one stop, however it went on
        (["degraded", "half_open", "closed", "closed"], 0),
    ],
)
def test_openings_are_stops_of_the_policy(states: list[str], openings: int) -> None:
    arm = Scripted([outcome(state=state) for state in states])
    assert drive_episode(Straight(steps=4), arm, 1).row["openings"] == openings


def test_without_a_deadline_no_step_counts_as_in_time() -> None:
    row = drive_episode(Straight(), Scripted([outcome(late=None)] * 4), 1).row
    assert row["deadline_misses"] is None and row["fallback_steps"] == 0


def test_trace_has_one_more_instant_than_steps_and_is_plain_data() -> None:
    arm = Scripted([outcome(1.25, tripped=(0, 3)), *[outcome(None)] * 3])
    trace = drive_episode(Straight(), arm, 1).trace
    assert json.loads(json.dumps(trace, allow_nan=False)) == trace
    instants, steps = ("x", "y", "speed", "heading", "others"), ("tripped", "source", "state", "ms")
    assert {len(trace[key]) for key in instants} == {5}
    assert {len(trace[key]) for key in (*steps, "late", "reward")} == {4}
    assert trace["tripped"] == [0b1001, 0, 0, 0] and trace["ms"] == [1.25, None, None, None]
    steering, acceleration = trace["actions"]  # in physical units
    assert steering == [pytest.approx(0.03)] * 4 and acceleration == [pytest.approx(-2.5)] * 4
    assert trace["others"][2] == [-690, 40, 123, 40, 1290, 40]  # decimetres, only those nearby


def test_progress_is_told_step_by_step() -> None:
    told: list[tuple[int, bool | None]] = []
    arm = Scripted([outcome(late=n == 2) for n in range(4)])
    drive_episode(Straight(), arm, 1, lambda step, last: told.append((step, last.late)))
    assert told == [(1, False), (2, False), (3, True), (4, False)]
