"""What is remembered across resets, stops and episodes, and what is not; what each event says."""

from __future__ import annotations

import pytest

from tests.safety.support import Rig
from wmrt.core.errors import SafetyError
from wmrt.safety import Cause, Finding, State

BAD = Finding("speed", "required")
REST = (0.0, 0.0)
AGREE = [REST, REST]
PAIR = [REST, None]


def said(rig: Rig, cause: Cause) -> tuple[object, ...]:
    """Field, kind, value and limit of the newest event of ``cause``."""
    event = [e for e in rig.breakers.events.snapshot() if e.cause is cause][-1]
    return event.field, event.kind, event.value, event.limit


def stopped(rig: Rig) -> None:
    """Latch by the emergency stop, and let the button go."""
    rig.breakers.estop()
    rig.step(REST)
    rig.breakers.estop(pressed=False)


def resume(rig: Rig) -> None:
    rig.breakers.reset_latch("Ada")
    rig.breakers.engage("Ada")


def test_a_hundred_good_steps_leave_no_record() -> None:
    rig = Rig()
    rig.steps(100, (0.1, 0.1))
    rig.steps(100, (0.1, 0.1), votes=[(0.1, 0.1), (0.1, 0.1)])
    assert rig.causes() == []


# After a latch


def test_a_reset_forgets_what_latched() -> None:
    rig = Rig()
    rig.breakers.emergency(ValueError())
    rig.steps(5, REST)
    resume(rig)
    stopped(rig)
    rig.breakers.reset_latch("Ada")  # nothing of the failure is left: the button is out again


def test_a_reset_forgets_earlier_trips() -> None:
    rig = Rig(good_inputs=1, clean_steps=1)
    rig.steps(2, (1.2, 0.0))
    stopped(rig)
    resume(rig)
    rig.steps(2, REST)
    assert rig.breakers.state is State.CLOSED
    assert rig.step((1.2, 0.0)).after is State.CLOSED  # the third within 2 s, the first since


def test_a_latch_keeps_a_channel_out() -> None:
    rig = Rig(good_inputs=1, clean_steps=2)
    rig.step(REST, votes=PAIR)
    stopped(rig)
    rig.breakers.reset()
    rig.watch.restart(rig.breakers.reference)
    resume(rig)
    assert rig.step(REST).after is State.HALF_OPEN
    assert rig.steps(2, REST).after is State.DEGRADED


def test_the_names_of_what_latched_are_in_order() -> None:
    rig = Rig(trip_limit=1, latch_opens=1)
    rig.step((1.2, 0.0))
    rig.breakers.estop()
    rig.breakers.emergency(ValueError())
    rig.step(None)
    rig.breakers.estop(pressed=False)
    with pytest.raises(SafetyError, match="latched by estop, internal, opened_repeatedly"):
        rig.breakers.engage("Ada")


# After an episode


def test_an_episode_forgets_earlier_trips() -> None:
    rig = Rig()
    rig.steps(2, (1.2, 0.0))
    rig.breakers.reset()
    assert rig.step((1.2, 0.0)).after is State.CLOSED


def test_an_episode_forgets_that_a_channel_was_out_and_says_so() -> None:
    rig = Rig(good_inputs=1, clean_steps=2)
    rig.step(REST, votes=PAIR)
    rig.breakers.reset()
    event = rig.breakers.events.snapshot()[-1]
    assert (event.cause, event.before, event.after) == (
        Cause.EPISODE_RESET, State.DEGRADED, State.CLOSED,
    )  # fmt: skip
    rig.step(None, faults=[BAD])
    rig.step(REST)
    assert rig.steps(2, REST).after is State.CLOSED


def test_good_steps_before_an_episode_do_not_count_towards_a_reset() -> None:
    rig = Rig()
    rig.breakers.emergency(ValueError())
    rig.steps(5, REST)
    rig.breakers.reset()
    rig.steps(4, REST)
    with pytest.raises(SafetyError, match="only the last 4 steps were good"):
        rig.breakers.reset_latch("Ada")
    rig.step(REST)
    rig.breakers.reset_latch("Ada")


def test_votes_before_an_episode_do_not_heal_a_channel() -> None:
    rig = Rig(heal_steps=3)
    rig.step(REST, votes=PAIR)
    stopped(rig)
    rig.steps(2, REST, votes=AGREE)
    rig.breakers.reset()
    rig.steps(2, REST, votes=AGREE)
    assert "healed" not in rig.causes()
    rig.step(REST, votes=AGREE)
    assert said(rig, Cause.HEALED) == ("", "votes", 3, None)


# After a change of hands


def test_a_session_forgets_no_trips() -> None:
    rig = Rig()
    rig.steps(2, (1.2, 0.0))
    rig.breakers.reset(heal=False)
    assert rig.step((1.2, 0.0)).after is State.OPEN


def test_a_session_does_not_forget_that_a_channel_was_out() -> None:
    rig = Rig(good_inputs=1, clean_steps=2, heal_steps=3)
    rig.step(REST, votes=PAIR)
    rig.steps(2, REST, votes=AGREE)
    rig.breakers.reset(heal=False)
    rig.steps(2, REST, votes=AGREE)  # counted anew
    assert rig.breakers.state is State.DEGRADED
    rig.step(None, faults=[BAD])
    rig.step(REST)
    assert rig.steps(2, REST).after is State.DEGRADED


def test_good_and_clean_steps_before_a_session_do_not_count() -> None:
    rig = Rig(good_inputs=2, clean_steps=3)
    rig.step(None, faults=[BAD])
    rig.step(REST)
    rig.breakers.reset(heal=False)
    assert rig.step(REST).after is State.OPEN
    assert rig.steps(3, REST).after is State.HALF_OPEN
    rig.breakers.reset([0.5, -0.5], heal=False)
    assert rig.breakers.reference == (0.5, -0.5)
    event = rig.breakers.events.snapshot()[-1]
    assert (event.cause, event.before, event.after) == (
        Cause.SESSION, State.HALF_OPEN, State.HALF_OPEN,
    )  # fmt: skip
    rig.watch.restart(rig.breakers.reference)
    assert rig.steps(2, (0.5, -0.5)).after is State.HALF_OPEN
    assert rig.step((0.5, -0.5)).after is State.CLOSED


# What each event says


def test_what_follows_from_several_things_says_how_many() -> None:
    rig = Rig(trip_limit=2, latch_opens=2, good_inputs=2, clean_steps=4)
    rig.steps(2, (1.2, 0.0))
    assert said(rig, Cause.RANGE_REPEATED) == ("", "trips", 2, None)
    rig.steps(2, REST)
    assert said(rig, Cause.GOOD) == ("", "steps", 2, None)
    rig.steps(4, REST)
    assert said(rig, Cause.CLEAN) == ("", "steps", 4, None)
    rig.steps(2, (1.2, 0.0))
    assert said(rig, Cause.OPENED_REPEATEDLY) == ("", "openings", 2, None)


def test_a_good_step_is_counted_anew_in_each_state() -> None:
    rig = Rig(good_inputs=2, clean_steps=3)
    rig.step(None, faults=[BAD])
    rig.steps(5, REST, votes=PAIR)
    assert said(rig, Cause.CLEAN_DEGRADED) == ("", "steps", 3, None)


def test_operators_are_in_the_record_at_once_by_a_name_of_at_most_80_characters() -> None:
    rig = Rig()
    rig.breakers.engage("E" * 81)
    (event,) = rig.breakers.events.drain()
    assert (event.field, event.kind, event.value) == ("", "operator", "E" * 80)
    assert (event.t_ns, event.step, event.action_in, event.action_out) == (0, 0, None, None)
    rig.breakers.disengage()
    (event,) = rig.breakers.events.drain()
    assert (event.cause, event.field, event.kind) == (Cause.DISENGAGE, "", "")
    assert (event.action_in, event.action_out) == (None, None)
    rig.breakers.reset()
    (event,) = rig.breakers.events.drain()
    assert (event.cause, event.action_in, event.action_out) == (Cause.EPISODE_RESET, None, None)
    stopped(rig)
    rig.breakers.events.drain()
    rig.breakers.reset_latch("R" * 81)
    (event,) = rig.breakers.events.drain()
    assert (event.field, event.kind, event.value) == ("", "operator", "R" * 80)
    assert (event.action_in, event.action_out) == (None, None)


@pytest.mark.parametrize("name", [None, " "])
def test_who_asked_for_what_without_a_name(name: str) -> None:
    rig = Rig()
    with pytest.raises(SafetyError, match=r"^engage: an operator's name is needed, got "):
        rig.breakers.engage(name)
    with pytest.raises(SafetyError, match=r"^reset: an operator's name is needed, got "):
        rig.breakers.reset_latch(name)


def test_a_window_that_is_no_whole_number_of_nanoseconds_in_binary() -> None:
    assert int(1.001 * 1e9) == 1_000_999_999
    rig = Rig(trip_limit=2, trip_window=1.001)
    rig.step((1.2, 0.0))
    assert rig.step((1.2, 0.0), dt=1.001).after is State.OPEN
