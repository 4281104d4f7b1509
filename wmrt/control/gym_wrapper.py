"""Breakers as a Gymnasium wrapper: any policy's actions pass levels 0 to 2 on their way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
from gymnasium.utils import RecordConstructorArgs

from wmrt.control import settings
from wmrt.control.gate import Gate, stated_limits
from wmrt.core.clock import Clock
from wmrt.safety import Breakers, Limits


class ControlledEnv(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """``step(action)`` sends what the breakers make of ``action``.

    Level 0 looks at the state the action answers, level 1 at the action's range, level 2 at its
    change. An action may be anything: what is no vector of numbers is a range trip. The info of
    `step` has ``"breakers"``: ``action`` (what was sent), ``source``, ``state``, ``tripped`` (level
    numbers). A latch survives `reset`.

    ``gymnasium.make(env.spec)`` makes the wrapper again, with breakers of its own that have the
    same limits.

    Args:
        env: takes float32[A] in [-1, 1].
        breakers: default from ``limits``.
        limits: default from the environment's ``state_schema``, ``action_spec`` and ``period``.
        schema: for level 0; default the environment's ``state_schema``. Without one, level 0 is
            silent.
        state: (observation, info) -> the state; default ``info["state"]``, else the observation.
        clock: what level 2 goes by; default one period per step.

    Raises:
        SafetyError: neither breakers nor limits given, and the environment does not say what they
            need; or both given; or an argument of a wrong type.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        *,
        breakers: Breakers | None = None,
        limits: Limits | None = None,
        schema: Any = None,
        state: Callable[[Any, dict[str, Any]], Any] | None = None,
        clock: Clock | None = None,
    ) -> None:
        settings.function("state", state, "(observation, info) -> state")
        settings.has_methods("clock", clock, ("now_ns",), optional=True)
        if breakers is not None:
            settings.require(limits is None, "limits", "left out where breakers are given", limits)
            # Breakers belong to one robot: what is made again from the spec gets others.
            limits = getattr(breakers, "limits", None)
        recorded = {"limits": limits, "schema": schema, "state": state, "clock": clock}
        given = {name: value for name, value in recorded.items() if value is not None}
        RecordConstructorArgs.__init__(self, _disable_deepcopy=True, **given)  # `spec` copies
        super().__init__(env)
        inner = env.unwrapped
        schema = getattr(inner, "state_schema", None) if schema is None else schema
        if schema is not None:
            settings.schema("schema", schema)
        if breakers is None:
            if limits is None:
                actions, period = (getattr(inner, n, None) for n in ("action_spec", "period"))
                limits = stated_limits(inner, "ControlledEnv", schema, actions, period)
            settings.require(isinstance(limits, Limits), "limits", "wmrt.safety.Limits", limits)
            breakers = Breakers(limits)
        self._gate = Gate(breakers, schema, clock)
        self._find = _default_state if state is None else state

    @property
    def breakers(self) -> Breakers:
        return self._gate.breakers

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the environment; the next command counts from neutral."""
        obs, info = self.env.reset(seed=seed, options=options)
        self._gate.reset(self._find(obs, info))
        return obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step with what the breakers let through."""
        sent, record = self._gate.let_through(action)
        obs, reward, terminated, truncated, info = self.env.step(sent)
        self._gate.saw(self._find(obs, info))
        return obs, reward, terminated, truncated, {**info, "breakers": record}


def _default_state(obs: Any, info: dict[str, Any]) -> Any:
    return info.get("state", obs)
