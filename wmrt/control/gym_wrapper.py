"""Breakers as a Gymnasium wrapper: any policy's actions pass levels 0 to 2 on their way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from wmrt.control import settings
from wmrt.control.clock import StepClock
from wmrt.control.convert import as_action
from wmrt.control.defaults import default_limits
from wmrt.control.intake import Intake
from wmrt.core.clock import Clock
from wmrt.core.errors import SafetyError
from wmrt.safety import Breakers, Finding, Proposal


class ControlledEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """``step(action)`` sends what the breakers make of ``action``.

    Level 0 looks at the state the action answers, level 1 at the action's range, level 2 at its
    change. An action may be anything: what is no vector of numbers is a range trip. The info of
    `step` has ``"breakers"``: ``action`` (what was sent), ``source``, ``state``, ``tripped`` (level
    numbers). A latch survives `reset`.

    Args:
        env: takes float32[A] in [-1, 1].
        breakers: default from the environment's ``state_schema``, ``action_spec`` and ``period``.
        schema: for level 0; default the environment's ``state_schema``. Without one, level 0 is
            silent.
        state: (observation, info) -> the state; default ``info["state"]``, else the observation.
        clock: what level 2 goes by; default one period per step.

    Raises:
        SafetyError: no breakers given, and the environment does not say what they need; or an
            argument of a wrong type.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        *,
        breakers: Breakers | None = None,
        schema: Any = None,
        state: Callable[[Any, dict[str, Any]], Any] | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(env)
        inner: Any = env.unwrapped
        schema = getattr(inner, "state_schema", None) if schema is None else schema
        if schema is not None:
            settings.schema("schema", schema)
        settings.function("state", state, "(observation, info) -> state")
        settings.has_methods("clock", clock, ("now_ns",), optional=True)
        if breakers is None:
            missing = [name for name in ("action_spec", "period") if not hasattr(inner, name)]
            if missing or schema is None:
                raise SafetyError(
                    f"{inner} does not state its limits (state_schema, action_spec, period); "
                    "give ControlledEnv its breakers"
                )
            breakers = Breakers(default_limits(schema, inner.action_spec, inner.period))
        settings.require(
            isinstance(breakers, Breakers), "breakers", "wmrt.safety.Breakers", breakers
        )
        self.breakers = breakers
        self._clock = StepClock(breakers.limits.period) if clock is None else clock
        self._intake = None if schema is None else Intake(schema, None)
        self._find = _default_state if state is None else state
        self._seen: Any = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the environment; the next command counts from neutral."""
        obs, info = self.env.reset(seed=seed, options=options)
        self.breakers.reset()
        if self._intake is not None:
            self._intake.reset()
        self._seen = self._find(obs, info)
        return obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step with what the breakers let through."""
        breakers = self.breakers
        now_ns = self._clock.now_ns()
        breakers.begin(now_ns)
        given = as_action(action, len(breakers.limits.spec))
        proposal = Proposal(fault=given) if isinstance(given, Finding) else Proposal(given)
        fit = True
        if self._intake is not None:
            seen = self._intake.read(self._seen, now_ns)
            fit = breakers.admit(seen.faults, seen.notes)
        decision = breakers.decide(proposal if fit else None)
        sent = np.array(decision.action, np.float32)
        obs, reward, terminated, truncated, info = self.env.step(sent)
        self._seen = self._find(obs, info)
        record = {
            "action": sent.copy(),
            "source": decision.source,
            "state": decision.after.value,
            "tripped": tuple(int(level) for level in sorted(decision.tripped)),
        }
        return obs, reward, terminated, truncated, {**info, "breakers": record}


def _default_state(obs: Any, info: dict[str, Any]) -> Any:
    return info.get("state", obs)
