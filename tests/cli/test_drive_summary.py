"""From episodes to figures."""

from __future__ import annotations

import itertools
import random

import pytest

from tests.cli.drive_doubles import channel, episode
from wmrt.cli.driving.summary import Selection, Tally, histogram, summarise
from wmrt.core import measure


def test_summary_of_three_episodes() -> None:
    tally = Tally()
    tally.add(episode(2, 30.0, crashed=True, mean_speed=20.0, distance_m=50.0))
    tally.add(episode(0, 10.0))
    tally.add(episode(1, 20.0, offroad=True))
    found = tally.summary(jobs=1, resident_bytes=99)
    assert [row["seed"] for row in tally.rows()] == [0, 1, 2]
    assert found["return_mean"] == 20.0
    assert found["return_ci95"] == measure.mean_ci95([10.0, 20.0, 30.0])[1]
    assert (found["collisions"], found["collision_rate"]) == (1, pytest.approx(1 / 3))
    assert found["offroad_rate"] == pytest.approx(1 / 3)
    assert found["mean_speed"] == pytest.approx(70 / 3)
    assert found["distance_m"] == pytest.approx(250 / 3)
    assert found["trips"] == {"0": 0, "1": 3, "2": 6, "3": 9}
    assert (found["deadline_misses"], found["fallback_steps"], found["degraded_steps"]) == (3, 6, 9)
    assert (found["openings"], found["channels"], found["monitor"]) == (3, {}, None)
    assert found["step_ms"]["n"] == 30 and found["step_ms"]["p50"] == 1.0
    assert found["act_ms"]["p50"] == 2.0 and found["resident_bytes"] == 99
    assert found["latency"] == "one process"
    assert tally.summary(jobs=3)["latency"] == "shared cores (3 processes)"


def test_one_episode_has_no_interval_and_missing_stays_missing() -> None:
    row = episode(0, 10.0, trips=None, deadline_misses=None).row
    found = summarise([row], [], [])
    assert found["return_ci95"] is None and found["trips"] is None
    assert found["fallback_steps"] is None and found["step_ms"]["p50"] is None
    some = [episode(0, 1.0).row, episode(1, 1.0, deadline_misses=None).row]
    assert summarise(some, [], [])["deadline_misses"] is None
    assert summarise(some, [], [])["fallback_steps"] == 4


def test_what_channels_cost_over_all_episodes() -> None:
    told = [
        channel(3, 1.0, resident_bytes=7),
        channel(0, None, late=2),
        channel(5, 4.0, failures=1),
    ]
    told[1]["resident_bytes"] = told[2]["resident_bytes"] = 7
    rows = [episode(n, 1.0, channels={"twin": one}).row for n, one in enumerate(told)]
    (found,) = summarise(rows, [], [])["channels"].values()
    assert found == {
        "every": 1, "resident_bytes": 7, "votes": 8, "failures": 1, "late": 2,
        "ms": {"n": 8, "p50": 2.5, "p99": 4.0, "max": 4.0},
        "observe_ms": {"n": 0, "p50": None, "p99": None, "max": None},
    }  # fmt: skip


def test_what_the_monitor_found_over_all_episodes() -> None:
    told = [{"compared": 9, "alarms": n, "failures": 1, "fields": {}} for n in (0, 3, 4)]
    rows = [episode(n, 1.0, monitor=one).row for n, one in enumerate(told)]
    assert summarise(rows, [], [])["monitor"] == {
        "compared": 27, "alarms": 7, "failures": 3, "episodes_with_alarm": 2,
    }  # fmt: skip


def test_histogram_holds_every_sample_between_its_edges(seed: int) -> None:
    generator = random.Random(seed)
    samples = [int(generator.lognormvariate(15, 1)) for _ in range(1000)]
    found = histogram(samples)
    assert found is not None
    edges, counts = found["edges"], found["counts"]
    assert len(edges) == len(counts) + 1 and edges == sorted(edges) and sum(counts) == 1000
    inside = [sum(a <= ns / 1e6 < b for ns in samples) for a, b in itertools.pairwise(edges)]
    # A sample within rounding of an edge may be counted on either side of it.
    assert all(abs(a - b) <= 1 for a, b in zip(inside, counts, strict=True))


def test_histogram_of_nothing_and_of_one_value() -> None:
    assert histogram([]) is None
    same = histogram([5_000_000] * 7)
    assert same is not None and sum(same["counts"]) == 7 and same["edges"][0] < same["edges"][-1]
    zero = histogram([0, 0])
    assert zero is not None and sum(zero["counts"]) == 2


def test_selection_keeps_the_first_and_the_worst_in_any_order(seed: int) -> None:
    episodes = [episode(n, float((n * 37) % 100)) for n in range(60)]
    expected = {e.row["seed"] for e in episodes[:4]}
    worst = sorted(episodes[4:], key=lambda e: e.row["return"])[:4]
    expected |= {e.row["seed"] for e in worst}
    random.Random(seed).shuffle(episodes)
    selection = Selection()
    for one in episodes:
        selection.offer(one)
    kept = [e.row["seed"] for e in selection.episodes()]
    assert set(kept) == expected and kept == sorted(kept)
