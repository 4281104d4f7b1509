"""What people and the controller may do between and in steps, in every state there is."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.safety.support import DRIVING, ODD, PERIOD_NS, Rig, Watch, limits, start_of
from wmrt.core.errors import SafetyError
from wmrt.safety import Breakers, Cause, Finding, Proposal, State
from wmrt.safety.table import PASSING

FULL = os.environ.get("WMRT_FULL") == "1"
BAD = Finding("speed", "required")
PAIR = [(0.0, 0.0), None]
#: CLOSED, DEGRADED, OPEN, HALF_OPEN, LATCHED.
C, D, P, H, L = State


def into(state: State, engaged: bool = True) -> Rig:
    """Breakers brought to ``state`` by what may happen to them; LATCHED disengages of itself."""
    rig = Rig(good_inputs=3, heal_steps=3)
    rig.steps(2, (0.25, 0.25))
    if state is State.DEGRADED:
        rig.step((0.25, 0.25), votes=[(0.25, 0.25), None])
    elif state is State.LATCHED:
        rig.breakers.estop()
        rig.step((0.25, 0.25))
        rig.breakers.estop(pressed=False)
        rig.steps(3, (0.0, 0.0))
    elif state is not State.CLOSED:
        rig.step(None, faults=[BAD])
        if state is State.HALF_OPEN:
            rig.steps(3, (0.0, 0.0))
    if not engaged:
        rig.breakers.disengage()
    rig.breakers.events.drain()
    assert rig.breakers.state is state
    assert rig.breakers.engaged is (engaged and state is not State.LATCHED)
    return rig


def stop(rig: Rig) -> None:
    rig.breakers.estop()
    rig.step((0.0, 0.0))


def release(rig: Rig) -> None:
    rig.breakers.estop(pressed=False)
    rig.step(None)  # nothing else happens in it


def fail(rig: Rig) -> None:
    last = rig.breakers.reference
    assert rig.breakers.emergency(ValueError()).action == last


#: What is done: how, state afterwards from C D P H L (None: refused), engaged afterwards (None: as
#: before), cause that is recorded (None: nothing).
OPERATIONS: dict[str, tuple[Callable[[Rig], Any], Sequence[State | None], bool | None, Any]] = {
    "engage": (lambda r: r.breakers.engage("Ada"), (C, D, P, H, None), True, Cause.ENGAGE),
    "disengage": (lambda r: r.breakers.disengage(), (C, D, P, H, L), False, Cause.DISENGAGE),
    "reset_latch": (
        lambda r: r.breakers.reset_latch("Ada"), (None, None, None, None, P), False,
        Cause.OPERATOR_RESET,
    ),
    "episode reset": (lambda r: r.breakers.reset(), (C, C, C, C, L), None, Cause.EPISODE_RESET),
    "session": (lambda r: r.breakers.reset(heal=False), (C, D, P, H, L), None, Cause.SESSION),
    "emergency stop": (stop, (L, L, L, L, L), False, Cause.ESTOP),
    "release": (release, (C, D, P, H, L), None, None),
    "emergency": (fail, (L, L, L, L, L), False, Cause.INTERNAL),
    "bad input": (lambda r: r.step(None, faults=[BAD]), (P, P, P, P, L), None, Cause.INPUT),
    "no majority": (
        lambda r: r.step((0.0, 0.0), votes=[None, None]), (P, P, P, P, L), None, Cause.NO_MAJORITY,
    ),
    "pair": (lambda r: r.step((0.0, 0.0), votes=PAIR), (D, D, P, H, L), None, Cause.PAIR),
    "range": (lambda r: r.step((1.2, 0.0)), (C, D, P, P, L), None, Cause.RANGE),
    "clock back": (lambda r: r.step((0.0, 0.0), dt=-1.0), (C, D, P, H, L), None, Cause.CLOCK),
}  # fmt: skip


@pytest.mark.parametrize("engaged", [True, False], ids=["engaged", "disengaged"])
@pytest.mark.parametrize(
    ("state", "name"),
    list(itertools.product(State, OPERATIONS)),
    ids=lambda value: getattr(value, "value", value),
)
def test_every_operation_in_every_state(state: State, name: str, engaged: bool) -> None:
    operate, row, sets, cause = OPERATIONS[name]
    rig = into(state, engaged)
    breakers, before = rig.breakers, rig.breakers.engaged
    after = row[list(State).index(state)]
    if after is None:
        with pytest.raises(SafetyError):
            operate(rig)
        assert (breakers.state, breakers.engaged) == (state, before)
        assert rig.causes() == []
        return
    operate(rig)
    assert breakers.state is after
    assert breakers.engaged is (before if sets is None else sets)
    events = breakers.events.drain()
    if cause is None:
        assert events == []
        return
    event = next(e for e in events if e.cause is cause)
    assert (event.before, event.after) == (state, after)
    rig.watch.restart(breakers.reference)
    decision = rig.step((0.1, 0.1))
    drives = before if sets is None else sets
    assert (decision.source == "fallback") is (after not in PASSING or not drives)


@pytest.mark.parametrize("state", State, ids=lambda s: s.value)
def test_the_policy_drives_only_where_it_may(state: State) -> None:
    for engaged in (True, False):
        rig = into(state, engaged)
        decision = rig.step((0.1, 0.1))
        may = engaged and state in (C, D, H)
        assert (decision.source in ("policy", "clamped")) is may
        assert (decision.source == "fallback") is not may


class Operated(RuleBasedStateMachine):
    """Any order of anything; what must hold is known from outside alone."""

    @initialize(odd=st.booleans(), opens=st.integers(1, 4))
    def begin(self, odd: bool, opens: int) -> None:
        self.size = 3 if odd else 2
        made = limits(ODD if odd else DRIVING, latch_opens=opens, good_inputs=2, clean_steps=3)
        self.breakers = Breakers(made, events=64)
        self.watch = Watch(made)
        self.now_ns = 0
        self.latched = False
        self.pressed = False

    def number(self, data: Any) -> Any:
        near = st.floats(-1.25, 1.25) | st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.3, -0.6])
        return data.draw(near | st.floats(), label="number")

    def action(self, data: Any) -> tuple[float, ...]:
        if data.draw(st.integers(0, 2), label="kind"):  # stay within reach, two times in three
            moves = [data.draw(st.floats(-0.05, 0.05)) for _ in range(self.size)]
            return tuple(a + m for a, m in zip(self.watch.last, moves, strict=True))
        return tuple(self.number(data) for _ in range(self.size))

    @rule(
        data=st.data(),
        dt=st.just(PERIOD_NS) | st.integers(-(10**9), 10**9),
        what=st.sampled_from(["good", "good", "good", "bad input", "none", "vote", "late"]),
    )
    def step(self, data: Any, dt: int, what: str) -> None:
        self.now_ns += dt
        self.breakers.begin(self.now_ns)
        asked = self.breakers.admit([BAD] if what == "bad input" else [])
        proposal, votes = None, None
        if asked and what != "none":
            proposal = Proposal(self.action(data), late=what == "late")
        if what == "vote":
            votes = [self.action(data), data.draw(st.sampled_from([None, self.watch.last]))]
            votes[1] = None if votes[1] is None else tuple(votes[1])
        decision = self.breakers.decide(proposal, None, votes)
        self.watch.see(self.now_ns, decision.action)
        stopped, self.pending = getattr(self, "pending", False), False
        assert not stopped or decision.after is State.LATCHED
        if self.latched:
            assert decision.source == "fallback" and decision.after is State.LATCHED

    @rule(measured=st.none() | st.lists(st.floats(-1.5, 1.5), min_size=3, max_size=3))
    def reset(self, measured: list[float] | None) -> None:
        start = None if measured is None else measured[: self.size]
        self.breakers.reset(start)
        self.watch.restart(start_of(self.breakers.limits, start))

    @rule(pressed=st.booleans())
    def stop(self, pressed: bool) -> None:
        self.breakers.estop(pressed)
        self.pressed = pressed
        self.pending = getattr(self, "pending", False) or pressed

    @rule()
    def disengage(self) -> None:
        self.breakers.disengage()

    @rule(measured=st.none() | st.lists(st.floats(-1.5, 1.5), min_size=3, max_size=3))
    def engage(self, measured: list[float] | None) -> None:
        start = None if measured is None else measured[: self.size]
        if self.latched:
            with pytest.raises(SafetyError, match="reset the latch first"):
                self.breakers.engage("Ada", start)
            return
        self.breakers.engage("Ada", start)
        if start is not None:
            self.watch.restart(start_of(self.breakers.limits, start))

    @rule()
    def emergency(self) -> None:
        self.breakers.begin(self.now_ns)
        self.watch.see(self.now_ns, self.breakers.emergency(KeyError()).action)
        self.pending = False

    @precondition(lambda self: self.latched)
    @rule()
    def reset_latch(self) -> None:
        try:
            self.breakers.reset_latch("Ada")
        except SafetyError:
            return
        assert not self.pressed, "reset although the stop is still pressed"
        assert self.breakers.state is State.OPEN and not self.breakers.engaged
        self.latched = False

    @invariant()
    def a_latch_holds_and_disengages(self) -> None:
        if not hasattr(self, "breakers"):
            return
        assert not self.latched or self.breakers.state is State.LATCHED
        self.latched = self.breakers.state is State.LATCHED
        assert not (self.latched and self.breakers.engaged)


Operated.TestCase.settings = settings(
    max_examples=300 if FULL else 30, stateful_step_count=60, deadline=None
)
TestOperated = Operated.TestCase
