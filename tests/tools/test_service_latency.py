"""The round trip's tool: its pieces are those of one service and one clock."""

from __future__ import annotations

import random

import pytest

from tools.service_latency import figures, others
from tools.service_trace import PIECES, segments, stamped


def test_pieces_add_up_to_the_round_trip(seed: int) -> None:
    draw = random.Random(seed)
    ends = list(PIECES.values())
    assert [end for _, end in ends[:-1]] == [begin for begin, _ in ends[1:]]  # nothing is left out
    client, service, took = [], [], []
    for _ in range(40):
        at, row = 0, {"called": 0}
        for _, end in ends:
            at += draw.randrange(1, 100_000)
            row[end] = at
        ours = {name: row[name] for name in ("called", "sending", "heard", "returned")}
        client.append(ours)
        service.append({name: at for name, at in row.items() if name not in ours})
        took.append(row["returned"])
    found = segments(client, service, 10)
    assert list(found) == list(PIECES)
    assert {one["n"] for one in found.values()} == {30}
    assert max(one["max"] for one in found.values()) <= 100.0  # microseconds
    assert sum(one["p50"] for one in found.values()) == pytest.approx(
        sorted(took[10:])[15] / 1e3, rel=0.3
    )


def test_a_service_and_a_client_that_do_not_fit_are_told() -> None:
    with pytest.raises(ValueError, match="zip"):
        segments([{}], [], 0)


def test_a_method_leaves_stamps_and_does_what_it_did() -> None:
    class Thing:
        def double(self, value: int, *, more: int = 0) -> int:
            return 2 * value + more

    stamps: dict[str, int] = {}
    seen: list[dict[str, int]] = []
    stamped(Thing, "double", stamps, "before", "after", lambda: seen.append({**stamps}))
    assert Thing().double(3, more=1) == 7
    assert stamps["before"] <= stamps["after"]
    assert seen == [{"before": stamps["before"]}]


def test_steps_that_were_not_the_policy_s_are_told() -> None:
    """All of them were blocked once, and the figures did not say so."""
    fine = figures([(9_000, 5_000, 2_000, "policy")] * 3)
    assert fine["above_act_us"]["p50"] == 4.0 and fine["above_step_us"]["p50"] == 7.0
    blocked = figures([(9_000, 5_000, 2_000, "policy"), (9_000, 5_000, 2_000, "blocked")])
    told = others({"a": fine, "b": blocked, "c": figures([(9_000, 0, 0, "echo")])})
    assert told == ["b: {'policy': 1, 'blocked': 1}"]
