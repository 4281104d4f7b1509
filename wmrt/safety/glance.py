"""A quick look at a proposal with which nothing is wrong, which is nearly all of them."""

from __future__ import annotations

from wmrt.safety.decision import Decision, Proposal
from wmrt.safety.envelope import Envelope
from wmrt.safety.limits import Limits
from wmrt.safety.machine import Machine
from wmrt.safety.table import Level, State

_CLOSED = State.CLOSED
_NO_LEVELS: frozenset[Level] = frozenset()


class Glance:
    """Decides a step in which the whole way of `Breakers.decide` would find nothing: no cause would
    fire, and the action would leave as it is. It takes 3 us where the whole way takes 10, and so
    much less code, which counts for more where each step finds the caches cold.

    It knows no rule: of a state that is not CLOSED, of anything that has happened in the step, of
    anything that is not plain numbers within all limits, it says nothing.
    """

    def __init__(self, limits: Limits, machine: Machine, envelope: Envelope) -> None:
        self._machine, self._envelope = machine, envelope
        self._bounds = limits.state_bounds()

    def decide(self, proposal: Proposal, before: State) -> Decision | None:
        """The decision, and the step is finished; None, and nothing has changed, to ask the others.

        Args:
            before: state of the breakers when the step began.
        """
        machine = self._machine
        action, predicted, fault, late = proposal
        if (
            fault is not None
            or late
            or machine.state is not _CLOSED
            or not machine.engaged
            or machine.pending
            or machine.tripped
            or type(predicted) is not dict
        ):
            return None
        for name, low, high in self._bounds:
            value = predicted.get(name)
            if value is not None and (type(value) is not float or not low <= value <= high):
                return None
        if not self._envelope.pass_through(action):
            return None
        machine.finish(True)
        # Its own constructor runs in Python, for 100 ns more.
        return tuple.__new__(Decision, (action, "policy", before, _CLOSED, _NO_LEVELS))
