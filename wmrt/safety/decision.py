"""What goes into the breakers each step and what comes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from wmrt.safety.events import Finding
from wmrt.safety.judge import Action
from wmrt.safety.table import Level, State


class Proposal(NamedTuple):
    """What the policy answered.

    Attributes:
        action: normalised, one float per actuator; None if there is none.
        predicted: numeric fields of the predicted next state, as floats or sequences of floats;
            None or absent when unknown.
        fault: why there is no usable answer; a range trip.
        late: the deadline was missed: the action, if any, is a planned one; the step is not good.
    """

    action: Action | None = None
    predicted: Mapping[str, float | Sequence[float] | None] = {}
    fault: Finding | None = None
    late: bool = False


class Decision(NamedTuple):
    """What leaves.

    Attributes:
        action: normalised float32 values, one per actuator.
        source: ``policy`` (as it was), ``clamped``, ``consensus`` (the vote's action, not the
            model's), ``planned`` (from an earlier chunk), ``blocked`` (rate trip), ``fallback``.
        before, after: state of the breakers before and after the step.
        tripped: levels that tripped in this step.
    """

    action: Action
    source: str
    before: State
    after: State
    tripped: frozenset[Level]
