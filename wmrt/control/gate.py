"""Breakers for actions that come from elsewhere: what the Gymnasium wrappers have in common."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from wmrt.control import settings
from wmrt.control.clock import StepClock
from wmrt.control.convert import as_action
from wmrt.control.defaults import default_limits
from wmrt.control.intake import Intake
from wmrt.core.clock import Clock
from wmrt.core.errors import SafetyError
from wmrt.safety import Breakers, Finding, Limits, Proposal


class Gate:
    """One robot's levels 0 to 2.

    Args:
        breakers: this robot's own.
        schema: for level 0; None leaves it out.
        clock: what level 2 goes by; default one period per step.
    """

    def __init__(self, breakers: Breakers, schema: Any, clock: Clock | None = None) -> None:
        settings.require(
            isinstance(breakers, Breakers), "breakers", "wmrt.safety.Breakers", breakers
        )
        self.breakers = breakers
        self._clock = StepClock(breakers.limits.period) if clock is None else clock
        self._intake = None if schema is None else Intake(schema, None)
        self._size = len(breakers.limits.spec)
        self._state: Any = None

    def reset(self, state: Any) -> None:
        """An episode begins with ``state``; the next command counts from neutral."""
        self.breakers.reset()
        if self._intake is not None:
            self._intake.reset()
        self._state = state

    def saw(self, state: Any) -> None:
        """The state that the next action answers."""
        self._state = state

    def let_through(self, action: Any) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """What to send, float32[A], and what to report of it; ``action`` may be anything."""
        now_ns = self._clock.now_ns()
        self.breakers.begin(now_ns)
        given = as_action(action, self._size)
        proposal = Proposal(fault=given) if isinstance(given, Finding) else Proposal(given)
        fit = True
        if self._intake is not None:
            seen = self._intake.read(self._state, now_ns)
            fit = self.breakers.admit(seen.faults, seen.notes)
        decision = self.breakers.decide(proposal if fit else None)
        sent = np.array(decision.action, np.float32)
        record = {
            "action": sent.copy(),
            "source": decision.source,
            "state": decision.after.value,
            "tripped": tuple(int(level) for level in sorted(decision.tripped)),
        }
        return sent, record


def stated_limits(env: Any, wrapper: str, schema: Any, actions: Any, period: Any) -> Limits:
    """The limits of an environment that states its ``action_spec`` and ``period``.

    Args:
        env, wrapper: for the message.
        schema, actions, period: None where the environment does not say.

    Raises:
        SafetyError: one of the three is missing.
    """
    if schema is None or actions is None or period is None:
        raise SafetyError(
            f"{env} does not state its limits (state_schema, action_spec, period); give {wrapper} "
            "its limits"
        )
    return default_limits(schema, actions, period)
