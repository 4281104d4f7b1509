"""Breakers as a wrapper of vectorised environments: one set per sub-environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv, VectorWrapper

from wmrt.control import settings
from wmrt.control.gate import Gate, stated_limits
from wmrt.control.vector.episodes import Episodes
from wmrt.control.vector.states import FindState, state_of
from wmrt.safety import Breakers, Limits


class ControlledVectorEnv(VectorWrapper):
    """``step(actions)`` sends what each sub-environment's breakers make of its row.

    As `ControlledEnv`, N times: levels 0 to 2, a record in ``infos["breakers"]`` (batched, with
    Gymnasium's masks; none where the action is ignored), and a latch that survives resets. Breakers
    reset where an episode begins, in each of the three autoreset modes; they are in this process
    also when the sub-environments are not. Breakers inside each sub-environment come from
    ``gymnasium.make_vec(..., wrappers=[ControlledEnv])``.

    Args:
        env: its sub-environments take float32[A] in [-1, 1].
        limits: of every sub-environment; default from ``action_spec`` and ``period`` of the first
            one.
        schema: for level 0; default ``state_schema`` of the first one. Without one, level 0 is
            silent.
        state: (observation, info) of one environment -> its state; default ``info["state"]`` (see
            `StateInfo`), else the observation.

    Attributes:
        breakers: one `Breakers` per sub-environment, named ``robot 0`` and so on.

    Raises:
        SafetyError: no limits given, and the sub-environments do not say what they need; or an
            argument of a wrong type.
        UsageError: the environment does not say its autoreset mode.
    """

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        *,
        limits: Limits | None = None,
        schema: Any = None,
        state: FindState | None = None,
    ) -> None:
        super().__init__(env)
        settings.function("state", state, "(observation, info) -> state")
        self.episodes = Episodes(env.num_envs, env.metadata.get("autoreset_mode", "missing"))
        schema = _stated(env, "state_schema") if schema is None else schema
        if schema is not None:
            settings.schema("schema", schema)
        if limits is None:
            actions, period = _stated(env, "action_spec"), _stated(env, "period")
            limits = stated_limits(env, "ControlledVectorEnv", schema, actions, period)
        settings.require(isinstance(limits, Limits), "limits", "wmrt.safety.Limits", limits)
        robots = [f"robot {index}" for index in range(env.num_envs)]
        self.breakers = tuple(Breakers(limits, robot=robot) for robot in robots)
        self._gates = [Gate(each, schema) for each in self.breakers]
        self._find = state

    def reset(
        self, *, seed: Any = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all, or those in ``options["reset_mask"]``; their commands count from neutral."""
        mask = (
            None if options is None else options.get("reset_mask")
        )  # the environment takes it out
        obs, infos = self.env.reset(seed=seed, options=options)
        self._begin(self.episodes.reset(mask), obs, infos)
        return obs, infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step with what the breakers let through.

        Args:
            actions: one row per sub-environment; anything else trips all of them.

        Raises:
            UsageError: nothing was reset yet, or an episode is over in mode DISABLED.
        """
        ignored = self.episodes.ignored()
        sent, records = [], {}
        for index, (gate, action) in enumerate(zip(self._gates, self._rows(actions), strict=True)):
            if index in ignored:
                sent.append(np.array(gate.breakers.limits.rest, np.float32))
            else:
                let, records[index] = gate.let_through(action)
                sent.append(let)
        obs, rewards, terminated, truncated, infos = self.env.step(np.stack(sent))
        begin = self.episodes.stepped(terminated, truncated)
        self._begin(begin, obs, infos)
        for index in set(range(self.num_envs)) - set(begin):
            self._gates[index].saw(state_of(obs, infos, index, self._find))
        infos = {key: infos[key] for key in infos if key not in ("breakers", "_breakers")}
        for index, record in records.items():
            infos = self._add_info(infos, {"breakers": record}, index)
        return obs, rewards, terminated, truncated, infos

    def _begin(self, indices: Sequence[int], obs: Any, infos: dict[str, Any]) -> None:
        for index in indices:
            self._gates[index].reset(state_of(obs, infos, index, self._find))

    def _rows(self, actions: Any) -> Sequence[Any]:
        """A row for each, None (no action at all) where there is not one for each."""
        try:
            rows = list(actions) if len(actions) == self.num_envs else []
        except Exception:  # not even a length; what it is, the breakers need not know
            rows = []
        return rows or [None] * self.num_envs


def _stated(envs: VectorEnv[Any, Any, Any], name: str) -> Any:
    """What the environment says, or else its first sub-environment; None for nothing."""
    inner: Any = envs.unwrapped
    if hasattr(inner, name):
        return getattr(inner, name)
    # Asked first whether it is there: a worker process that lacks it would end with the question.
    if not hasattr(inner, "call") or not inner.call("has_wrapper_attr", name)[0]:
        return None
    return inner.get_attr(name)[0]
