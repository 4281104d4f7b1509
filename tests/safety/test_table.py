"""Every state times every cause, against a table written out by hand."""

from __future__ import annotations

import itertools

import pytest

from tests.safety.support import limits
from wmrt.safety import RULES, Cause, Finding, Level, State
from wmrt.safety.machine import LATCHING, Machine
from wmrt.safety.table import PASSING

LETTERS = {
    "C": State.CLOSED,
    "D": State.DEGRADED,
    "O": State.OPEN,
    "H": State.HALF_OPEN,
    "L": State.LATCHED,
}
#: cause: (level, trips, counts as opening, next state from C D O H L)
TABLE = {
    "input": (0, True, False, "OOOOL"),
    "surprise": (0, True, True, "OOOOL"),
    "range": (1, True, True, "CDOOL"),
    "range_repeated": (1, False, True, "OOOOL"),
    "rate": (2, True, False, "CDOHL"),
    "pair": (3, False, False, "DDOHL"),
    "no_majority": (3, True, True, "OOOOL"),
    "healed": (3, False, False, "CCOHL"),
    "good": (4, False, False, "CDHHL"),
    "clean": (4, False, False, "CDOCL"),
    "clean_degraded": (4, False, False, "CDODL"),
    "opened_repeatedly": (4, False, False, "LLLLL"),
    "estop": (4, False, False, "LLLLL"),
    "internal": (4, False, False, "LLLLL"),
    "operator_reset": (4, False, False, "CDOHO"),
    "episode_reset": (4, False, False, "CCCCL"),
    "session": (4, False, False, "CDOHL"),
    "note": (0, False, False, "CDOHL"),
    "range_clamp": (1, False, False, "CDOHL"),
    "rate_clamp": (2, False, False, "CDOHL"),
    "channel": (3, False, False, "CDOHL"),
    "clock": (2, False, False, "CDOHL"),
    "deadline": (4, False, False, "CDOHL"),
    "starved": (4, False, False, "CDOHL"),
    "fallback": (4, False, False, "CDOHL"),
    "engage": (4, False, False, "CDOHL"),
    "disengage": (4, False, False, "CDOHL"),
}
PAIRS = list(itertools.product(State, Cause))


def expected(state: State, cause: Cause) -> State:
    return LETTERS[TABLE[cause.value][3]["CDOHL".index(letter(state))]]


def letter(state: State) -> str:
    return next(key for key, value in LETTERS.items() if value is state)


def test_the_table_is_complete() -> None:
    assert set(RULES) == set(Cause)
    assert {cause.value for cause in Cause} == set(TABLE)
    assert all(set(rule.to) == set(State) for rule in RULES.values())


@pytest.mark.parametrize("cause", Cause, ids=lambda cause: cause.value)
def test_rule(cause: Cause) -> None:
    rule = RULES[cause]
    level, trip, opening, _ = TABLE[cause.value]
    assert (rule.level, rule.trip, rule.opening) == (Level(level), trip, opening)


@pytest.mark.parametrize(("state", "cause"), PAIRS, ids=lambda value: value.value)
def test_machine_moves_as_the_table_says(state: State, cause: Cause) -> None:
    machine = Machine(limits(), "robot", 16)
    machine.state = state
    machine.begin(1, 0)
    machine.fire(cause, Finding("field", "kind", 1.0, 2.0))
    assert machine.state is expected(state, cause)
    assert machine.counts[cause] == 1
    level = Level(TABLE[cause.value][0])
    assert machine.tripped == ({level} if TABLE[cause.value][1] else set())
    assert sum(machine.trips.values()) == len(machine.tripped)
    machine.write((0.5,), (0.25,))
    (event,) = machine.events.drain()
    assert (event.before, event.after) == (state, expected(state, cause))
    assert (event.level, event.cause) == (level, cause)
    assert (event.field, event.kind, event.value, event.limit) == ("field", "kind", 1.0, 2.0)
    assert (event.t_ns, event.step, event.robot) == (1, 1, "robot")
    assert (event.action_in, event.action_out) == ((0.5,), (0.25,))
    assert event.config == limits().hash


def test_only_an_operator_leaves_latched() -> None:
    ways = [cause for cause in Cause if RULES[cause].to[State.LATCHED] is not State.LATCHED]
    assert ways == [Cause.OPERATOR_RESET]


def test_open_is_left_by_good_steps_a_new_episode_or_into_the_latch() -> None:
    ways = {c: RULES[c].to[State.OPEN] for c in Cause if RULES[c].to[State.OPEN] is not State.OPEN}
    assert ways.pop(Cause.GOOD) is State.HALF_OPEN
    assert ways.pop(Cause.EPISODE_RESET) is State.CLOSED
    assert set(ways.values()) == {State.LATCHED}


def test_no_reset_by_hand_leads_to_a_state_in_which_the_policy_drives() -> None:
    assert all(
        to not in PASSING or to is state for state, to in RULES[Cause.OPERATOR_RESET].to.items()
    )
    assert {State.CLOSED, State.DEGRADED, State.HALF_OPEN} == PASSING


def test_a_trip_counts_once_per_level_and_step() -> None:
    machine = Machine(limits(), "robot", 16)
    for _ in range(2):
        machine.begin(0, 0)
        for _ in range(3):
            machine.fire(Cause.RATE)
    assert machine.trips[Level.RATE] == 2
    assert machine.counts[Cause.RATE] == 6


def test_what_counts_as_an_opening_leads_to_open_or_nowhere() -> None:
    moves = [(s, to) for rule in RULES.values() if rule.opening for s, to in rule.to.items()]
    assert {to for state, to in moves if to is not state} == {State.OPEN}


def test_the_tables_cannot_be_altered() -> None:
    assert isinstance(PASSING, frozenset) and isinstance(LATCHING, frozenset)
    assert set(LATCHING) == {Cause.OPENED_REPEATEDLY, Cause.ESTOP, Cause.INTERNAL}
    for table in (RULES, *(rule.to for rule in RULES.values())):
        with pytest.raises(TypeError):
            table[next(iter(table))] = None  # type: ignore[index]
