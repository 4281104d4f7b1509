"""2 of 3: the table of outcomes, and a second implementation over all small cases."""

from __future__ import annotations

import itertools
import statistics

import pytest

from tests.safety.support import Rig
from wmrt.safety import Cause, Finding, Level, Proposal, State
from wmrt.safety.consensus import vote

A, B, C, FAR = (0.0, 0.0), (0.1, -0.1), (0.05, 0.1), (0.9, 0.0)
TOLERANCE = (0.25, 0.25)


def test_three_agree_median_of_each_dimension() -> None:
    assert vote((A, B, C), TOLERANCE) == (None, (0.05, 0.0), None)


@pytest.mark.parametrize(
    ("votes", "action", "out"),
    [
        ((A, B, FAR), A, 2),
        ((A, FAR, B), A, 1),
        ((FAR, A, B), (0.05, -0.05), 0),
        ((A, B, None), A, 2),
        ((A, None, B), A, 1),
        ((None, A, B), (0.05, -0.05), 0),
    ],
)
def test_one_pair(votes: tuple[tuple[float, ...] | None, ...], action: object, out: int) -> None:
    assert vote(votes, TOLERANCE) == (Cause.PAIR, action, out)


@pytest.mark.parametrize(
    "votes",
    [
        (A, FAR, (-0.9, 0.0)),
        (A, FAR, None),
        (FAR, None, A),
        (None, A, FAR),
        (A, None, None),
        (None, A, None),
        (None, None, A),
        (None, None, None),
    ],
)
def test_no_majority(votes: tuple[tuple[float, ...] | None, ...]) -> None:
    assert vote(votes, TOLERANCE) == (Cause.NO_MAJORITY, None, None)


@pytest.mark.parametrize(
    ("votes", "out"), [((0.0, 0.2, -0.2), 2), ((0.0, 0.2, 0.4), 2), ((0.0, 0.4, 0.2), 1)]
)
def test_overlapping_pairs_follow_the_model(votes: tuple[float, ...], out: int) -> None:
    assert vote([(v,) for v in votes], (0.25,)) == (Cause.PAIR, (0.0,), out)


def test_one_dimension_beyond_its_tolerance_is_disagreement() -> None:
    assert vote(((0.0, 0.0), (0.0, 0.25), (0.0, 0.26)), (0.25, 0.25)).out == 2
    assert vote(((0.0, 0.0), (0.0, 0.25), (0.0, 0.25)), (0.25, 0.25)).cause is None


def test_every_small_case_against_a_second_implementation() -> None:
    values = (None, -1.0, -0.75, -0.5, 0.0, 0.25, 0.5, 1.0)
    for trio in itertools.product(values, repeat=3):
        pairs = [
            {i, j}
            for i, j in ((0, 1), (0, 2), (1, 2))
            if trio[i] is not None and trio[j] is not None and abs(trio[i] - trio[j]) <= 0.25
        ]
        verdict = vote([None if v is None else (v,) for v in trio], (0.25,))
        if len(pairs) == 3:
            assert verdict == (None, (statistics.median(trio),), None)
        elif not pairs:
            assert verdict == (Cause.NO_MAJORITY, None, None)
        elif any(0 in pair for pair in pairs):
            assert verdict[:2] == (Cause.PAIR, (trio[0],))
        else:
            assert verdict == (Cause.PAIR, ((trio[1] + trio[2]) / 2,), 0)


# In the breakers


def test_the_median_leaves() -> None:
    rig = Rig()
    decision = rig.step((0.1, 0.1), votes=[(0.2, 0.0), (0.15, 0.2)])
    assert decision.action == pytest.approx((0.15, 0.1))
    assert (decision.source, decision.after) == ("consensus", State.CLOSED)


def test_degraded_follows_the_model_and_says_who_is_out() -> None:
    rig = Rig()
    decision = rig.step((0.1, 0.1), votes=[(0.2, 0.0), (0.9, 0.2)])
    assert (decision.source, decision.after) == ("policy", State.DEGRADED)
    (event,) = rig.breakers.events.drain()
    assert (event.cause, event.field, event.kind, event.value) == (
        Cause.PAIR,
        "channel 2",
        "live",
        3,
    )


def test_an_outvoted_model_gives_way_to_the_pairs_mean() -> None:
    rig = Rig()
    decision = rig.step((-0.4, 0.1), votes=[(0.2, 0.0), (0.3, 0.1)])
    assert decision.action == pytest.approx((0.25, 0.05))
    assert (decision.source, decision.after) == ("consensus", State.DEGRADED)


def test_a_failed_model_is_a_range_trip_and_the_pair_drives_until_the_third() -> None:
    rig = Rig()
    votes = [(0.2, 0.0), (0.3, 0.1)]
    for _ in range(2):
        decision = rig.step((float("nan"), 0.0), votes=votes)
        assert decision.action == pytest.approx((0.25, 0.05))
        assert decision.tripped == {Level.RANGE}
    decision = rig.step((float("nan"), 0.0), votes=votes)
    assert (decision.source, decision.after) == ("fallback", State.OPEN)


@pytest.mark.parametrize("bad", [None, (2.0, 0.0), (float("nan"), 0.0), (0.0,), (0.1, 0.0, 0.0)])
def test_a_channel_that_is_no_action_is_a_failed_one(bad: tuple[float, ...] | None) -> None:
    rig = Rig()
    decision = rig.step((0.1, 0.1), votes=[bad, (0.1, 0.1)])
    assert (decision.source, decision.after) == ("policy", State.DEGRADED)
    assert rig.step((0.1, 0.1), votes=[bad, (0.9, 0.1)]).after is State.OPEN


def test_no_majority_opens_and_counts_as_a_trip_of_level_3() -> None:
    rig = Rig()
    decision = rig.step((0.1, 0.1), votes=[None, None])
    assert (decision.source, decision.after) == ("fallback", State.OPEN)
    assert decision.tripped == {Level.CONSENSUS}
    assert rig.breakers.stats()["trips"]["consensus"] == 1


def test_degraded_heals_only_after_enough_votes_and_says_so() -> None:
    rig = Rig(heal_steps=4)
    good, bad = [(0.0, 0.0), (0.0, 0.0)], [(0.0, 0.0), None]
    rig.step((0.0, 0.0), votes=bad)
    assert rig.steps(3, (0.0, 0.0), votes=good).after is State.DEGRADED
    rig.step((0.0, 0.0), votes=bad)  # starts anew
    assert rig.steps(3, (0.0, 0.0), votes=good).after is State.DEGRADED
    assert rig.steps(50, (0.0, 0.0)).after is State.DEGRADED  # steps without a vote heal nothing
    assert rig.step((0.0, 0.0), votes=good).after is State.CLOSED
    healed = rig.breakers.events.drain()[-1]
    assert (healed.cause, healed.value) == (Cause.HEALED, 4)
    rig.steps(9, (0.0, 0.0), votes=good)
    assert len(rig.breakers.events) == 0  # healed once, not again and again


def test_half_open_leads_back_to_degraded_while_a_channel_is_out() -> None:
    rig = Rig()
    bad = [(0.0, 0.0), None]
    rig.step((0.0, 0.0), votes=bad)
    rig.step(Proposal((0.0, 0.0)), faults=[Finding("speed", "required")])
    assert rig.steps(5, (0.0, 0.0), votes=bad).after is State.HALF_OPEN
    assert rig.steps(20, (0.0, 0.0), votes=bad).after is State.DEGRADED
    assert rig.causes()[-1] == "clean_degraded"
