from __future__ import annotations

import gc
from fractions import Fraction

import pytest

from tests.runtime.bench.doubles import FakeArm, FakeStream, FakeTimer, FakeUsage
from wmrt.runtime.bench.floor import SAMPLES, Floor
from wmrt.runtime.bench.rounds import (
    FEWEST,
    MOST,
    SETTLE,
    Effort,
    Instruments,
    no_collection,
    run_rounds,
)

MS = 1_000_000


def test_arms_take_turns_and_the_floor_is_sampled_between() -> None:
    timer = FakeTimer(look=1000)
    arms = [FakeArm(timer, [MS], "a"), FakeArm(timer, [2 * MS], "b")]
    floor = Floor(FakeStream(1000, [1000]), (1,))
    told: list[str] = []
    courses = run_rounds(
        arms,
        (None, Fraction(100)),
        Effort(rounds=3, steps=6, warm_up=1),
        Instruments(floor, timer, FakeUsage()),
        told.append,
    )
    assert told == ["a", "a", "b", "b"] * 3
    assert [(c.arm.name, c.mode) for c in courses] == [
        ("a", "back-to-back"),
        ("a", "paced"),
        ("b", "back-to-back"),
        ("b", "paced"),
    ]
    for course in courses:
        assert course.recording.steps == 6
        assert [len(r) for r in course.recording.rounds().values()] == [2, 2, 2]
    assert set(courses[0].recording.column("duration")) == {MS + 1000}  # one look at the clock
    assert len(arms[0].taken) == 2 * 1 + 2 * 3 * (SETTLE + 2)
    first_b, last_a = arms[1].taken[-1][1], arms[0].taken[-1][1]
    assert first_b > last_a  # b comes after a in every round, the last one too
    samples = floor.to_json()["threads"]
    assert isinstance(samples, dict)
    assert samples["1"]["samples"] == {"before": SAMPLES, "between": 2, "after": SAMPLES}


def test_effort_by_time() -> None:
    effort = Effort(rounds=10, seconds=5.0)
    assert effort.steps_a_round(10 * MS) == 50
    assert effort.steps_a_round(5_000 * MS) == FEWEST
    assert effort.steps_a_round(1) == MOST
    assert Effort(rounds=4, steps=10).steps_a_round(1) == 3  # no fewer than asked for
    assert Effort(rounds=4, steps=1).steps_a_round(1) == 1


def test_a_paced_arm_takes_as_many_steps_as_its_rate_lets_it() -> None:
    timer = FakeTimer(look=1000)
    floor = Floor(None, (1,), "none")
    effort = Effort(rounds=2, seconds=1.0, warm_up=1)
    (course,) = run_rounds(
        [FakeArm(timer, [MS])], (Fraction(50),), effort, Instruments(floor, timer, FakeUsage())
    )
    assert course.steps == 25


@pytest.mark.parametrize("enabled", [True, False])
def test_collection_is_put_back(enabled: bool) -> None:
    was = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        with pytest.raises(RuntimeError), no_collection():
            assert not gc.isenabled()
            raise RuntimeError
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if was else gc.disable)()
