"""Whole-episode rows of the control arms."""

from __future__ import annotations

import pytest

pytest.importorskip("highway_env", reason="pip install 'wmrt[drive]'")

from wmrt.core.errors import UsageError
from wmrt.envs.drivers import evaluate_driver


def test_rows_do_not_depend_on_the_number_of_processes():
    seeds = [600_103, 600_101, 600_102]
    one = evaluate_driver("random", seeds, processes=1)
    two = evaluate_driver("random", seeds, processes=2)
    assert one == two
    assert [row["seed"] for row in one] == seeds


def test_random_ends_early_and_says_how():
    for row in evaluate_driver("random", range(600_110, 600_130), processes=1):
        assert row["crashed"] != row["offroad"] or row["steps"] == 300
        assert 0 < row["return"] <= 0.1 * row["steps"] and row["distance"] > 0
        assert row["over_rate"] > 0.5


def test_rule_on_the_occluded_variant():
    row = evaluate_driver("rule", [600_140], "wmrt/HighwayOccluded-v0", processes=1)[0]
    assert row["steps"] == 300 or row["crashed"]


def test_unknown_driver():
    with pytest.raises(UsageError, match="random, rule, expert"):
        evaluate_driver("bogus", [1])
