"""The reachable set by itself: what a hold forgets, what the clock counts, to the nanosecond."""

from __future__ import annotations

import pytest

from tests.safety.support import PERIOD_NS, Rig, limits
from wmrt.safety import Cause
from wmrt.safety.envelope import Envelope

REST = (0.0, 0.0)


def test_after_a_hold_only_the_same_action_is_no_change() -> None:
    envelope = Envelope(limits())
    for n, action in enumerate([(0.2, 0.2), (0.0, 0.4)]):
        envelope.begin(n * PERIOD_NS)
        envelope.sent(action)
    assert envelope.hold() == (0.0, 0.4)
    assert envelope.fault((0.0, 0.4)) is None
    found = envelope.fault((0.0, 0.5))
    assert found is not None and (found.field, found.kind) == ("acceleration", "clock")
    assert found.value == pytest.approx(0.1) and found.limit == 0.0


def test_the_step_after_a_hold_counts_no_time_at_all() -> None:
    rig = Rig()
    rig.step(REST)
    rig.breakers.emergency(ValueError())
    rig.watch.restart(rig.breakers.reference)
    decision = rig.breakers.guard(rig.now_ns + PERIOD_NS, None, fallback=lambda: (0.5, 0.5))
    assert decision.action == REST  # from 0 a nanosecond would show
    assert Cause.CLOCK.value not in rig.causes()


def test_a_clock_that_stands_counts_no_time_at_all() -> None:
    rig = Rig()
    rig.step(REST)
    assert rig.step((0.1, 0.1), dt=0.0).action == REST
    assert rig.step((0.1, 0.1), dt=-1.0).action == REST


def test_two_long_steps_count_two_periods_by_the_clock() -> None:
    rig = Rig(wall_tolerance=0.0)
    rig.step(REST)
    rig.step((0.0, 0.3), dt=5.0)
    assert rig.step((0.0, 0.62), dt=5.0).source == "blocked"  # 0.62 in 10 s, of 0.6 in 0.2 s
    assert rig.breakers.events.snapshot()[-1].kind == "clock"


def test_a_step_that_is_too_large_says_so() -> None:
    rig = Rig()
    rig.step((0.0, 0.5))
    event = rig.breakers.events.snapshot()[-1]
    assert (event.field, event.kind, event.value) == ("acceleration", "step", 0.5)
    assert event.limit == pytest.approx(0.3)


def test_the_first_command_counts_one_period_where_two_may_count() -> None:
    rig = Rig(step_periods=2.0, wall_tolerance=0.19)
    assert rig.step((0.0, 0.35)).action[1] == pytest.approx(0.3, abs=1e-7)


@pytest.mark.parametrize(("period", "nanoseconds"), [(0.1, 100_000_000), (1.001, 1_001_000_000)])
def test_a_period_in_nanoseconds_is_the_nearest(period: float, nanoseconds: int) -> None:
    assert limits(period=period).period_ns == nanoseconds


@pytest.mark.parametrize(("tolerance", "certain"), [(1e-12, True), (0.9e-12, False), (0.0, False)])
def test_only_a_tolerance_above_rounding_makes_a_glance_certain(
    tolerance: float, certain: bool
) -> None:
    """Rounding alone could make a rate fault of what `move` allows."""
    envelope = Envelope(limits(wall_tolerance=tolerance))
    envelope.begin(0)
    assert envelope.pass_through((0.0, 0.0)) is certain
