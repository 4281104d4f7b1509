"""Driving as it should be trips no breaker: the expert behind them, seed after seed."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("highway_env", reason="pip install 'wmrt[drive]'")

from wmrt.cli.driving.fleet import drive_here
from wmrt.cli.driving.stand import Plan, set_up
from wmrt.core.seeds import HELD_OUT

SEEDS = 30 if os.environ.get("WMRT_FULL") == "1" else 1


def test_clean_drives_trip_on_at_most_a_hundredth_of_their_steps(seed: int) -> None:
    stand = set_up(Plan("wmrt/Highway-v0", "expert", deadline=False))
    first = HELD_OUT.start + seed % (len(HELD_OUT) - SEEDS)
    rows = [e.row for e in drive_here(stand, range(first, first + SEEDS), lambda done: None)]
    steps, trips = sum(row["steps"] for row in rows), [sum(row["trips"].values()) for row in rows]
    print(f"seeds from {first}: {sum(trips)} trips in {steps} steps")
    assert len(rows) == SEEDS and steps > 100 * SEEDS
    assert sum(trips) <= 0.01 * steps
