from __future__ import annotations

from tests.runtime.bench.doubles import recorded
from wmrt.runtime.bench.deadline import find_misses


def test_no_step_is_late() -> None:
    misses = find_misses(recorded([10, 20, 30]), 30)
    assert (misses.steps, misses.streak, misses.causes) == ((), 0, {})


def test_streaks_and_the_wake_up_count() -> None:
    late = [0, 15, 0, 0, 0, 0, 0]
    misses = find_misses(recorded([10, 10, 30, 10, 30, 30, 30], late=late), 20)
    # Most steps take longer than the deadline here: that is the cause of all of them.
    assert misses.steps == (1, 2, 4, 5, 6) and misses.streak == 3
    assert misses.causes == {"the median step is above the deadline": 5}


def test_causes_are_told_apart() -> None:
    n = 20
    durations = [10] * n
    columns: dict[str, list[int]] = {
        name: [0] * n for name in ("late", "skipped", "switches", "major", "minor")
    }
    for index in (1, 3, 5, 7, 9, 11):
        durations[index] = 50
    columns["skipped"][1] = 1
    columns["major"][3] = 2
    columns["switches"][3] = columns["switches"][5] = 1
    columns["minor"][7] = columns["minor"][5] = 4
    columns["late"][13] = 45
    misses = find_misses(recorded(durations, **columns), 40)  # type: ignore[arg-type]
    assert misses.steps == (1, 3, 5, 7, 9, 11, 13)
    assert misses.causes == {
        "the step before ran over": 1,
        "major page fault": 1,
        "involuntary context switch": 1,
        "late wake-up": 1,
        "minor page faults": 1,
        "unknown": 2,
    }
    assert sum(misses.causes.values()) == len(misses.steps)


def test_a_streak_goes_over_the_border_of_rounds() -> None:
    misses = find_misses(recorded([10, 10, 90, 90, 10, 10], rounds=2), 40)
    assert misses.streak == 2
    assert misses.to_json() == {"longest_streak": 2, "causes": {"unknown": 2}}
