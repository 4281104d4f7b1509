"""The latch, the emergency stop, taking over and giving back; the fallback; inner failures."""

from __future__ import annotations

import math
import threading
from typing import Any

import pytest

from tests.safety.support import Rig
from wmrt.core.errors import SafetyError
from wmrt.safety import Cause, Finding, Level, Proposal, State

BAD = Finding("speed", "required")


def opened(rig: Rig) -> None:
    """Three range trips."""
    rig.steps(3, (1.2, 0.0))


def latched_by_openings() -> Rig:
    rig = Rig()
    for _ in range(2):
        opened(rig)
        assert rig.steps(5, (0.0, 0.0)).after is State.HALF_OPEN
    assert rig.step((1.2, 0.0)).after is State.LATCHED
    return rig


def test_the_third_opening_within_the_window_latches() -> None:
    rig = latched_by_openings()
    assert rig.causes().count("opened_repeatedly") == 1
    assert not rig.breakers.engaged
    assert rig.steps(100, (0.2, 0.2)).source == "fallback"


def test_openings_far_apart_do_not_latch() -> None:
    rig = Rig()
    for _ in range(6):
        opened(rig)
        rig.steps(160, (0.0, 0.0))
    assert rig.breakers.state is State.CLOSED


def test_openings_count_across_episodes() -> None:
    rig = Rig()
    for n in range(3):
        rig.breakers.reset()
        rig.watch.restart(rig.breakers.reference)
        opened(rig)
        assert rig.breakers.state is (State.LATCHED if n == 2 else State.OPEN)


def test_bad_input_opens_but_never_latches() -> None:
    rig = Rig()
    for _ in range(20):
        rig.step(None, faults=[BAD])
        rig.steps(5, (0.0, 0.0))
    assert rig.breakers.state is State.HALF_OPEN


def test_a_latch_survives_an_episode_reset() -> None:
    rig = latched_by_openings()
    for _ in range(5):
        rig.breakers.reset()
        rig.watch.restart(rig.breakers.reference)
        assert rig.steps(30, (0.1, 0.1)).after is State.LATCHED


def test_a_reset_is_refused_while_the_cause_persists() -> None:
    rig = latched_by_openings()
    with pytest.raises(SafetyError, match="opened_repeatedly, and only the last 0 steps were good"):
        rig.breakers.reset_latch("Ada")
    rig.steps(4, (0.0, 0.0))
    with pytest.raises(SafetyError, match="only the last 4 steps were good; it takes 5"):
        rig.breakers.reset_latch("Ada")
    rig.step((0.0, 0.0))
    rig.breakers.reset_latch("Ada")
    assert rig.breakers.state is State.OPEN
    event = rig.breakers.events.snapshot()[-1]
    assert (event.cause, event.value, event.action_out) == (Cause.OPERATOR_RESET, "Ada", None)


def test_a_reset_moves_nothing_before_engage() -> None:
    rig = latched_by_openings()
    rig.steps(5, (0.0, 0.0))
    rig.breakers.reset_latch("Ada")
    assert rig.steps(50, (0.1, 0.1)).after is State.OPEN
    rig.breakers.engage("Ada")
    assert rig.steps(4, (0.0, 0.1)).after is State.OPEN
    assert rig.step((0.0, 0.1)).after is State.HALF_OPEN
    assert rig.step((0.0, 0.1)).source == "policy"
    # the history is wiped: it takes three openings again
    assert rig.step((1.2, 0.0)).after is State.OPEN


@pytest.mark.parametrize("operator", ["", "  ", None, 7])
def test_an_operator_has_a_name(operator: Any) -> None:
    rig = latched_by_openings()
    with pytest.raises(SafetyError, match="an operator's name is needed"):
        rig.breakers.reset_latch(operator)
    with pytest.raises(SafetyError, match="an operator's name is needed"):
        rig.breakers.engage(operator)


def test_nothing_to_reset() -> None:
    with pytest.raises(SafetyError, match="nothing is latched, the state is closed"):
        Rig().breakers.reset_latch("Ada")


def test_engage_is_refused_while_latched() -> None:
    with pytest.raises(SafetyError, match="latched by opened_repeatedly; reset the latch first"):
        latched_by_openings().breakers.engage("Ada")


def test_emergency_stop() -> None:
    rig = Rig()
    rig.step((0.2, 0.2))
    rig.breakers.estop()
    decision = rig.step((0.2, 0.2))
    assert (decision.source, decision.after, decision.action) == ("fallback", State.LATCHED, (0, 0))
    rig.steps(10, (0.0, 0.0))
    with pytest.raises(SafetyError, match="still pressed; release it first"):
        rig.breakers.reset_latch("Ada")
    rig.breakers.estop(pressed=False)
    assert rig.step((0.0, 0.0)).after is State.LATCHED
    rig.breakers.reset_latch("Ada")
    assert rig.breakers.state is State.OPEN


def test_emergency_stop_pressed_and_released_between_two_steps_latches() -> None:
    rig = Rig()
    rig.breakers.estop()
    rig.breakers.estop(pressed=False)
    assert rig.step((0.1, 0.1)).after is State.LATCHED
    rig.breakers.reset_latch("Ada")  # the button is out again: nothing persists
    assert rig.causes() == ["estop", "operator_reset"]
    assert rig.breakers.stops == 1
    rig.breakers.estop()
    assert rig.breakers.stops == 1  # not yet acted on
    rig.step((0.0, 0.0))
    assert rig.breakers.stops == 2


def test_emergency_stop_in_the_middle_of_a_step() -> None:
    rig = Rig()
    rig.breakers.begin(0)
    assert rig.breakers.admit(())
    thread = threading.Thread(target=rig.breakers.estop)
    thread.start()
    thread.join()
    decision = rig.breakers.decide(Proposal((0.2, 0.2)))
    assert (decision.source, decision.after) == ("fallback", State.LATCHED)


def test_a_stop_on_top_of_a_latch_needs_both_gone() -> None:
    rig = latched_by_openings()
    rig.breakers.estop()
    rig.steps(5, (0.0, 0.0))
    with pytest.raises(SafetyError, match="pressed"):
        rig.breakers.reset_latch("Ada")
    rig.breakers.estop(pressed=False)
    rig.step((1.2, 0.0))
    with pytest.raises(SafetyError, match="estop, opened_repeatedly"):
        rig.breakers.reset_latch("Ada")
    rig.steps(5, (0.0, 0.0))
    rig.breakers.reset_latch("Ada")


def test_disengage_ramps_and_engage_goes_on_from_there() -> None:
    rig = Rig()
    for value in (0.3, 0.6, 0.9):
        rig.step((0.0, value))
    rig.breakers.disengage()
    assert not rig.breakers.engaged
    decision = rig.step((0.0, 0.9))
    assert (decision.source, decision.after) == ("fallback", State.CLOSED)
    assert decision.action[1] == pytest.approx(0.3, abs=1e-7)
    rig.breakers.engage("Ada")
    assert rig.step((0.0, 0.6)).action[1] == pytest.approx(0.6, abs=1e-7)
    assert rig.causes() == ["disengage", "engage"]


def test_takeover_counts_from_the_measured_action() -> None:
    rig = Rig()
    rig.breakers.disengage()
    rig.breakers.engage("Ada", measured=(0.5, -0.8))
    rig.watch.restart((0.5, float(rig.breakers.reference[1])))
    assert rig.step((0.5, -0.9)).action[1] == pytest.approx(-0.9, abs=1e-7)


@pytest.mark.parametrize(
    "measured", [(math.nan, 0.0), (0.0,), (0.0, math.inf), "ab", 7, (10**400, 0.0), (None, 0.0)]
)
def test_a_measured_action_that_is_none(measured: Any) -> None:
    rig = Rig()
    rig.step((0.2, 0.2))
    before = rig.breakers.reference
    with pytest.raises(SafetyError, match="needs 2 finite numbers"):
        rig.breakers.reset(measured)
    with pytest.raises(SafetyError, match="needs 2 finite numbers"):
        rig.breakers.engage("Ada", measured)
    assert rig.breakers.reference == before


def test_a_measured_action_beyond_the_box_is_brought_in() -> None:
    rig = Rig()
    rig.breakers.reset((1.3, -7.0))
    assert rig.breakers.reference == (1.0, -1.0)


# The fallback


def test_the_fallback_ramps_to_where_it_wants_at_the_rate_limit() -> None:
    rig = Rig()
    seen = [rig.step(None, faults=[BAD], fallback=lambda: (0.0, -9.0)).action[1] for _ in range(3)]
    assert seen == pytest.approx([-0.6, -1.0, -1.0], abs=1e-7)


@pytest.mark.parametrize(
    "answer",
    [(math.nan, 0.0), (0.5,), (0.5, 0.5, 0.5), ("x", 0.0), None, (10**400, 0), (math.inf, 0)],
)
def test_a_fallback_that_gives_nonsense_is_neutral(answer: Any) -> None:
    rig = Rig()
    rig.step((0.2, 0.2))
    assert rig.step(None, fallback=lambda: answer).action == (0.0, 0.0)
    assert rig.causes() == ["fallback"]


def test_a_fallback_that_raises_is_neutral() -> None:
    def fails() -> tuple[float, ...]:
        raise ZeroDivisionError

    rig = Rig()
    rig.step((0.2, 0.2))
    assert rig.step((0.9, 0.9), fallback=fails).action == (0.0, 0.0)  # blocked by rate
    assert rig.breakers.events.snapshot()[-1].kind == "ZeroDivisionError"


def test_the_fallback_is_not_asked_while_the_policy_drives() -> None:
    def fails() -> tuple[float, ...]:
        raise AssertionError

    rig = Rig()
    rig.step((0.2, 0.2), fallback=fails)
    assert rig.causes() == []


# Failures of the caller


def test_an_emergency_holds_and_latches() -> None:
    rig = Rig()
    rig.step((0.2, 0.2))
    before = rig.breakers.reference
    rig.breakers.begin(rig.now_ns + 10**8)
    decision = rig.breakers.emergency(KeyError("x"))
    assert (decision.action, decision.source) == (before, "fallback")
    assert (decision.before, decision.after) == (State.CLOSED, State.LATCHED)
    rig.watch.see(rig.now_ns + 10**8, decision.action)
    rig.now_ns += 10**8
    # when that action left is not certain, so the next one may not differ either
    assert rig.step((0.0, 0.0), dt=0.05).action == before
    assert rig.step((0.0, 0.0)).action == (0.0, 0.0)
    event = next(e for e in rig.breakers.events.snapshot() if e.cause is Cause.INTERNAL)
    assert (event.kind, event.action_out) == ("KeyError", before)


def test_an_emergency_needs_good_steps_before_a_reset() -> None:
    rig = Rig()
    rig.breakers.emergency(ValueError())
    rig.steps(4, (0.0, 0.0))
    rig.breakers.emergency(ValueError())
    rig.steps(4, (0.0, 0.0))
    with pytest.raises(SafetyError, match="internal"):
        rig.breakers.reset_latch("Ada")
    rig.step((0.0, 0.0))
    rig.breakers.reset_latch("Ada")


def test_what_the_caller_reports_is_recorded() -> None:
    rig = Rig()
    rig.breakers.begin(0)
    rig.breakers.report(Cause.DEADLINE, Finding("", "late", 7, 5))
    rig.breakers.decide(Proposal(None, late=True))
    (event,) = rig.breakers.events.drain()
    assert (event.cause, event.value, event.level) == (Cause.DEADLINE, 7, Level.SUPERVISION)


def test_late_steps_follow_the_plan_and_are_not_good_ones() -> None:
    rig = Rig()
    decision = rig.step(Proposal((0.2, 0.2), late=True))
    assert (decision.source, decision.after) == ("planned", State.CLOSED)
    assert rig.step(Proposal(None, late=True)).source == "fallback"
    assert rig.breakers.stats()["trips"]["range"] == 0


def test_guard_is_the_whole_step() -> None:
    rig = Rig()
    assert rig.breakers.guard(10, Proposal((0.1, 0.1))).source == "policy"
    assert rig.breakers.guard(10**8, Proposal((0.1, 0.1)), [BAD]).source == "fallback"
    decision = rig.breakers.guard(2 * 10**8, Proposal((0.1, 0.1)), fallback=lambda: (0.1, 0.1))
    assert decision.action[0] == pytest.approx(0.1)
    assert rig.breakers.step == 3


def test_stats_are_plain() -> None:
    import json

    rig = latched_by_openings()
    stats = json.loads(json.dumps(rig.breakers.stats()))
    assert stats["steps"] == 17 == sum(stats["steps_in"].values())
    assert stats["steps_in"] == {
        "closed": 2,
        "degraded": 0,
        "open": 12,
        "half_open": 2,
        "latched": 1,
    }
    assert stats["trips"] == {"validity": 0, "range": 7, "rate": 0, "consensus": 0}
    assert (stats["state"], stats["engaged"]) == ("latched", False)
    assert stats["counts"]["opened_repeatedly"] == 1
