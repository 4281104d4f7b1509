"""The breakers as data: states, levels, causes, and what each cause does in each state.

Everything the state machine can do is in `RULES`; `wmrt.safety.machine` only looks it up. The
design follows openpilot's event tables and ISO 13849-1 (a manual reset is deliberate and does not
itself start motion).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class State(enum.Enum):
    """State of the breakers.

    CLOSED: the policy drives. DEGRADED: it drives, one consensus channel is voted out or dead.
    OPEN: the fallback drives. HALF_OPEN: the policy drives within a fraction of its limits.
    LATCHED: the fallback drives until an operator resets by name.
    """

    CLOSED = "closed"
    DEGRADED = "degraded"
    OPEN = "open"
    HALF_OPEN = "half_open"
    LATCHED = "latched"

    __hash__ = object.__hash__  # Enum's own runs in Python: 70 ns for each look into a dict


#: States in which the policy's action may leave.
PASSING = frozenset({State.CLOSED, State.DEGRADED, State.HALF_OPEN})


class Level(enum.IntEnum):
    """Which breaker spoke. SUPERVISION is everything that is not one of the four levels."""

    VALIDITY = 0
    RANGE = 1
    RATE = 2
    CONSENSUS = 3
    SUPERVISION = 4


class Cause(enum.Enum):
    """What can happen to the breakers."""

    INPUT = "input"  # the input is unfit; the model is not asked
    SURPRISE = "surprise"  # the input is not what the model expected of it, beyond its limits
    RANGE = "range"  # an output is beyond its bounds and tolerance, not finite, or not there
    RANGE_REPEATED = "range_repeated"  # trip_limit range trips within trip_window
    RATE = "rate"  # the action changes faster than allowed, beyond the tolerance
    PAIR = "pair"  # two of three channels agree
    NO_MAJORITY = "no_majority"  # fewer than two live channels, or no two agree
    HEALED = "healed"  # heal_steps votes in a row in which all three agreed
    GOOD = "good"  # good_inputs good steps in a row while open
    CLEAN = "clean"  # clean_steps clean steps in a row while half open
    CLEAN_DEGRADED = "clean_degraded"  # the same, while a channel is still out
    OPENED_REPEATEDLY = "opened_repeatedly"  # latch_opens openings within latch_window
    ESTOP = "estop"  # emergency stop
    INTERNAL = "internal"  # the controller itself failed
    OPERATOR_RESET = "operator_reset"  # an operator resets the latch
    EPISODE_RESET = "episode_reset"  # a new episode begins
    # Reported, never a change of state:
    SESSION = "session"  # somebody else sends the observations from here on
    NOTE = "note"  # an optional value is unknown, or was clamped to its range
    RANGE_CLAMP = "range_clamp"  # an action within the tolerance was brought to its bound
    RATE_CLAMP = "rate_clamp"  # a change within the tolerance was brought to its limit
    CHANNEL = "channel"  # a consensus channel failed
    CLOCK = "clock"  # the clock went backwards
    DEADLINE = "deadline"  # the step took longer than its deadline
    STARVED = "starved"  # deadline missed, no planned action young enough
    FALLBACK = "fallback"  # the fallback failed; neutral is used
    ENGAGE = "engage"
    DISENGAGE = "disengage"

    __hash__ = object.__hash__  # see `State`


class Rule(NamedTuple):
    """What a cause means.

    Attributes:
        level: the breaker it belongs to.
        to: the next state for every state.
        trip: counts as a trip of its level.
        opening: an opening it brings about counts towards `Cause.OPENED_REPEATEDLY`. Not for bad
            input: that heals by itself when the input does, and no reset by hand would mend it.
    """

    level: Level
    to: Mapping[State, State]
    trip: bool = False
    opening: bool = False


def _to(**moves: State) -> Mapping[State, State]:
    """A full row: the given moves by name of the state left, every other state stays."""
    return MappingProxyType({s: moves.get(s.value, s) for s in State})


_C, _D, _O, _H, _L = State.CLOSED, State.DEGRADED, State.OPEN, State.HALF_OPEN, State.LATCHED
_STAY = _to()
_OPEN = _to(closed=_O, degraded=_O, half_open=_O)
_LATCH = _to(closed=_L, degraded=_L, half_open=_L, open=_L)

RULES: Mapping[Cause, Rule] = MappingProxyType(
    {
        Cause.INPUT: Rule(Level.VALIDITY, _OPEN, trip=True),
        Cause.SURPRISE: Rule(Level.VALIDITY, _OPEN, trip=True, opening=True),
        Cause.RANGE: Rule(Level.RANGE, _to(half_open=_O), trip=True, opening=True),
        Cause.RANGE_REPEATED: Rule(Level.RANGE, _OPEN, opening=True),
        Cause.RATE: Rule(Level.RATE, _STAY, trip=True),
        Cause.PAIR: Rule(Level.CONSENSUS, _to(closed=_D)),
        Cause.NO_MAJORITY: Rule(Level.CONSENSUS, _OPEN, trip=True, opening=True),
        Cause.HEALED: Rule(Level.CONSENSUS, _to(degraded=_C)),
        Cause.GOOD: Rule(Level.SUPERVISION, _to(open=_H)),
        Cause.CLEAN: Rule(Level.SUPERVISION, _to(half_open=_C)),
        Cause.CLEAN_DEGRADED: Rule(Level.SUPERVISION, _to(half_open=_D)),
        Cause.OPENED_REPEATEDLY: Rule(Level.SUPERVISION, _LATCH),
        Cause.ESTOP: Rule(Level.SUPERVISION, _LATCH),
        Cause.INTERNAL: Rule(Level.SUPERVISION, _LATCH),
        Cause.OPERATOR_RESET: Rule(Level.SUPERVISION, _to(latched=_O)),
        Cause.EPISODE_RESET: Rule(Level.SUPERVISION, _to(degraded=_C, open=_C, half_open=_C)),
        Cause.SESSION: Rule(Level.SUPERVISION, _STAY),
        Cause.NOTE: Rule(Level.VALIDITY, _STAY),
        Cause.RANGE_CLAMP: Rule(Level.RANGE, _STAY),
        Cause.RATE_CLAMP: Rule(Level.RATE, _STAY),
        Cause.CHANNEL: Rule(Level.CONSENSUS, _STAY),
        Cause.CLOCK: Rule(Level.RATE, _STAY),
        Cause.DEADLINE: Rule(Level.SUPERVISION, _STAY),
        Cause.STARVED: Rule(Level.SUPERVISION, _STAY),
        Cause.FALLBACK: Rule(Level.SUPERVISION, _STAY),
        Cause.ENGAGE: Rule(Level.SUPERVISION, _STAY),
        Cause.DISENGAGE: Rule(Level.SUPERVISION, _STAY),
    }
)
