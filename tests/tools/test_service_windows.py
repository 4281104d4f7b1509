"""Windows: their order, when clients knock in them, and whose a change of p99 is."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from typing import Any

import pytest

from tools.intruders import Heard
from tools.service_windows import BURST, KINDS, WINDOW, change, figures, schedule, tries

PORTS = {"decoy": 1, "true": 2}


def test_each_block_has_each_kind_once_in_an_order_of_its_own(seed: int) -> None:
    kinds = schedule(100.0, seed)
    blocks = [kinds[at : at + len(KINDS)] for at in range(0, len(kinds), len(KINDS))]
    assert len(blocks) == 10
    assert all(sorted(block) == sorted(KINDS) for block in blocks)
    assert len({tuple(block) for block in blocks}) > 1
    assert kinds == schedule(100.0, seed)
    assert len(schedule(0.0, seed)) == 2 * len(KINDS)


def test_every_client_knocks_once_in_a_window(seed: int) -> None:
    kinds = schedule(0.0, seed)
    found = tries(kinds, 184, 1000.0, PORTS)
    assert [one.due for one in found] == sorted(one.due for one in found)
    for number, kind in enumerate(kinds):
        own = [one for one in found if one.group == number]
        begin = 1000.0 + number * WINDOW
        if kind == "quiet":
            assert not own
            continue
        assert len(own) == 184
        assert {one.port for one in own} == {PORTS[kind.split()[0]]}
        if kind.endswith("burst"):
            assert {one.due for one in own} == {begin + BURST}
        else:
            gaps = {round(b.due - a.due, 6) for a, b in itertools.pairwise(own)}
            assert len(gaps) == 1 and begin < own[0].due and own[-1].due < begin + WINDOW


def test_a_change_has_its_median_and_its_spread(seed: int) -> None:
    rng = random.Random(seed)
    shift = rng.uniform(-3, 3)
    found = change([shift + rng.gauss(0, 0.1) for _ in range(50)], seed)
    assert found["low"] <= found["median"] <= found["high"]
    assert abs(found["median"] - shift) < 0.15 and found["high"] - found["low"] < 0.3
    assert change([shift] * 6, seed) == {"median": shift, "low": shift, "high": shift}


def robots(kinds: list[str], rng: random.Random, more: dict[str, float]) -> list[Any]:
    """160 steps a second of a machine whose speed drifts; ``more`` milliseconds by kind."""
    found = []
    for number, kind in enumerate(kinds):
        drift = number * 0.2 / len(kinds)
        for step in range(int(160 * WINDOW)):
            at = (number + (step + 0.5) / (160 * WINDOW)) * WINDOW
            found.append((at, 2.0 + drift + rng.uniform(0.0, 0.5) + more.get(kind, 0.0)))
    return found


@pytest.mark.parametrize("whose", ["nobody", "harness", "service"])
def test_a_change_is_whose_it_is(seed: int, whose: str) -> None:
    rng, kinds = random.Random(seed), schedule(120.0, seed)
    more = {
        "nobody": {},
        "harness": {"decoy even": 1.0, "true even": 1.0},
        "service": {"true even": 1.0},
    }[whose]
    heard = [
        Heard(number, "too_many_robots", 150.0 if kind == "true burst" else 3.0, 0.5)
        for number, kind in enumerate(kinds)
        if kind != "quiet"
        for _ in range(5)
    ]
    found = figures(kinds, robots(kinds, rng, more), heard, seed)
    changes = found["p99_change_ms"]["even"]
    expected = {"service": whose == "service", "harness": whose == "harness"}
    for name, changed in expected.items():
        assert abs(changes[name]["median"] - changed) < 0.15, (name, changes)
    assert abs(changes["both"]["median"] - (whose != "nobody")) < 0.15
    assert found["noisy"] is False
    assert found["p99_unchanged"] == {"even": whose != "service", "burst": True}
    assert found["round_trip_ms"]["quiet"]["n"] == 12 * 320
    assert found["steps_in_a_burst_ms"]["true"]["n"] == 12 * 16
    assert {kind: one["later_than_100_ms"] for kind, one in found["refused"].items()} == {
        "decoy even": 0, "true even": 0, "decoy burst": 0, "true burst": 60,
    }  # fmt: skip
    assert Counter(found["refused"]["true even"]["said"]) == {"too_many_robots": 60}


def test_a_machine_that_is_not_quiet_gives_no_verdict(seed: int) -> None:
    rng, kinds = random.Random(seed), schedule(120.0, seed)
    steps = [(at, ms * (1.0 + 9.0 * (int(at / WINDOW / len(KINDS)) % 2)))
             for at, ms in robots(kinds, rng, {})]  # fmt: skip
    heard = [Heard(n, "too_many_robots", 3.0, 0.5) for n, k in enumerate(kinds) if k != "quiet"]
    assert figures(kinds, steps, heard, seed)["noisy"] is True
