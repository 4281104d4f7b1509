"""What the breakers say of each thing they saw, word for word; what a decision holds."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from tests.safety.support import PERIOD_NS, Rig, limits
from wmrt.core.types import ActionDim, ActionSpec
from wmrt.safety import Breakers, Cause, Event, Finding, Limits, Proposal, State

BAD = Finding("speed", "required", None, "a number")
REST = (0.0, 0.0)


def newest(breakers: Breakers, cause: Cause) -> Event:
    return [event for event in breakers.events.snapshot() if event.cause is cause][-1]


def finding(breakers: Breakers, cause: Cause) -> tuple[Any, ...]:
    event = newest(breakers, cause)
    return event.field, event.kind, event.value, event.limit


def test_a_clock_that_ran_back() -> None:
    rig = Rig()
    rig.step(REST)
    rig.step(REST, dt=-0.25)
    assert finding(rig.breakers, Cause.CLOCK) == ("", "backwards", -250_000_000, 0)


def test_a_time_of_any_whole_number_type_is_recorded_as_a_plain_one() -> None:
    breakers = Breakers(limits())
    breakers.guard(np.int64(5), None, [BAD])  # type: ignore[arg-type]
    (event,) = breakers.events.drain()
    assert (event.t_ns, type(event.t_ns)) == (5, int)
    assert (event.action_in, event.action_out) == (None, REST)
    assert (event.field, event.kind, event.value, event.limit) == BAD


def test_votes() -> None:
    rig = Rig()
    rig.step(REST, votes=[REST, None])
    assert finding(rig.breakers, Cause.PAIR) == ("channel 2", "live", 2, 2)
    rig.step(REST, votes=[(0.9, 0.0), (-0.9, 0.0)])
    assert finding(rig.breakers, Cause.NO_MAJORITY) == ("", "live", 3, 2)
    rig.step(REST, votes=[None, None])
    assert finding(rig.breakers, Cause.NO_MAJORITY) == ("", "live", 1, 2)


def test_an_action_of_another_length() -> None:
    rig = Rig()
    rig.step((0.0,))
    assert finding(rig.breakers, Cause.RANGE) == ("action", "length", 1, 2)


def test_clamps() -> None:
    rig = Rig()
    rig.step((0.0, 0.31))
    event = newest(rig.breakers, Cause.RATE_CLAMP)
    assert (event.field, event.kind, event.value) == ("acceleration", "clamped", 0.31)
    assert event.limit == event.action_out[1] == pytest.approx(0.3)  # type: ignore[index]


@pytest.mark.parametrize("excess", [0.4e-6, 0.8e-6, 1e-6])
def test_a_difference_of_a_millionth_is_rounding(excess: float) -> None:
    """An actuator whose box ends at 0: there a difference is exact."""
    spec = ActionSpec((ActionDim("x", "m", -1.0, 1.0, 100.0, 100.0),))
    made = limits(spec)
    dims = (dataclasses.replace(made.dims[0], high=0.0),)
    breakers = Breakers(dataclasses.replace(made, dims=dims))
    assert breakers.guard(0, Proposal((excess,))).source == "policy"
    assert breakers.events.total == 0
    beyond = math.nextafter(1e-6, 1.0)
    assert breakers.guard(PERIOD_NS, Proposal((beyond,))).source == "clamped"
    assert finding(breakers, Cause.RANGE_CLAMP) == ("x", "clamped", beyond, 0.0)


@pytest.mark.parametrize("size", [1, 8, 9])
def test_what_a_fallback_gave_is_cut_to_eight_values_and_80_characters(size: int) -> None:
    for value in (1.0, 1 / 3):
        rig = Rig()
        rig.step(None, fallback=lambda v=value: (v,) * size)
        shown = str((value,) * min(size, 8))[:80]
        assert finding(rig.breakers, Cause.FALLBACK) == (
            "", "value", shown, "one finite number per actuator",
        )  # fmt: skip


def test_errors_are_recorded_by_the_first_80_characters_of_their_type() -> None:
    error = type("E" * 81, (Exception,), {})

    def fails() -> tuple[float, ...]:
        raise error

    rig = Rig()
    rig.step(None, fallback=fails)
    assert finding(rig.breakers, Cause.FALLBACK) == ("", "E" * 80, None, None)
    rig.breakers.events.drain()
    rig.breakers.emergency(error())
    (event,) = rig.breakers.events.drain()  # at once, not with the next step
    assert (event.cause, event.field, event.kind) == (Cause.INTERNAL, "", "E" * 80)
    assert (event.action_in, event.action_out) == (None, REST)


def test_a_decision_stays_as_it_was() -> None:
    rig = Rig()
    tripped = rig.step((1.2, 0.0)).tripped
    failed = rig.breakers.emergency(ValueError()).tripped
    rig.steps(3, REST)
    assert (tripped, failed) == ({1}, {1})
    assert type(tripped) is type(failed) is frozenset


def test_a_decision_before_the_first_step() -> None:
    breakers = Breakers(limits())
    decision = breakers.decide(None, lambda: (0.5, 0.5))
    assert (decision.before, decision.after) == (State.CLOSED, State.CLOSED)
    assert decision.action == REST  # no time has passed, of which a nanosecond would show
    breakers.events.drain()
    decision = breakers.guard(0, None, fallback=lambda: (0.5, 0.5))
    assert decision.action == REST  # nor here: it counts from 0
    assert Cause.CLOCK not in {event.cause for event in breakers.events.drain()}


def test_the_record_holds_4096_events_unless_told() -> None:
    breakers = Breakers(limits())
    for n in range(300):
        breakers.guard(n, None, [BAD] * 16)
    assert (len(breakers.events), breakers.events.total) == (4096, 4800)


def test_stats_name_everything() -> None:
    made: Limits = limits()
    breakers = Breakers(made)
    breakers.guard(0, None, [BAD])
    stats = breakers.stats()
    assert set(stats) == {
        "steps", "state", "engaged", "trips", "counts", "steps_in", "events", "config",
    }  # fmt: skip
    assert (stats["events"], stats["config"], stats["steps"]) == (1, made.hash, 1)
    assert (stats["state"], stats["engaged"]) == ("open", True)
    assert stats["trips"] == {"validity": 1, "range": 0, "rate": 0, "consensus": 0}
    assert sum(stats["counts"].values()) == stats["counts"]["input"] == 1


# Things of one nanosecond, or of one step


@pytest.mark.parametrize("pause", [0.0, -1.0])
@pytest.mark.parametrize(("extra", "state"), [(0, State.OPEN), (1, State.CLOSED)])
def test_a_clock_that_stands_or_runs_back_adds_nothing_to_a_window(
    pause: float, extra: int, state: State
) -> None:
    rig = Rig(trip_limit=2)
    rig.step((1.2, 0.0))
    rig.steps(3, REST, dt=pause)
    assert rig.step((1.2, 0.0), dt=2.0 + extra * 1e-9).after is state


def test_a_stop_shows_before_the_policy_is_asked() -> None:
    rig = Rig()
    rig.breakers.estop()
    rig.breakers.begin(PERIOD_NS)
    assert rig.breakers.state is State.LATCHED


def test_letting_go_of_a_stop_that_was_not_pressed_is_nothing() -> None:
    rig = Rig()
    rig.breakers.estop(pressed=False)
    assert rig.step((0.1, 0.1)).after is State.CLOSED
    assert rig.breakers.events.total == 0


def test_half_open_falls_back_at_the_halved_rate_and_a_latch_at_the_full_one() -> None:
    rig = Rig(clean_steps=1000)
    rig.step(None, faults=[BAD])
    rig.steps(5, REST)
    for value in (0.15, 0.3, 0.45):
        assert rig.step((0.0, value)).action[1] == pytest.approx(value, abs=1e-7)
    decision = rig.step((0.0, -0.9))
    assert (decision.source, decision.after) == ("blocked", State.HALF_OPEN)
    assert decision.action[1] == pytest.approx(0.15, abs=1e-7)  # by 0.3, half of 0.6
    rig.steps(2, (0.0, 0.45))
    rig.breakers.estop()
    assert rig.step(REST).action[1] == pytest.approx(0.0, abs=1e-7)  # by 0.45, within 0.6


def test_a_proposal_holds_nothing_that_was_not_given() -> None:
    proposal = Proposal()
    assert proposal.action is None and proposal.fault is None
    assert dict(proposal.predicted) == {} and proposal.late is False
