"""One sub-environment's part of what a vectorised environment answers."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
from gymnasium.utils import RecordConstructorArgs

from wmrt.control import settings
from wmrt.control.batch import row
from wmrt.core.errors import UsageError

#: (observation, info) of one environment -> its state.
FindState = Callable[[Any, dict[str, Any]], Any]


class StateInfo(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Puts the state into ``info["state"]`` so that it survives batching.

    Gymnasium merges the infos of sub-environments key by key into arrays typed by the first value
    it meets: a dict of readings comes out with 20.7 cut to 20 beside a 21, and with None (unknown)
    turned into False beside a flag. A mapping that is no dict passes as it is.

    Args:
        env: a sub-environment; ``gymnasium.make_vec(..., wrappers=[StateInfo])`` wraps each.
        state: (observation, info) -> the state; default ``info["state"]``.

    Raises:
        SafetyError: ``state`` is no function.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], *, state: FindState | None = None) -> None:
        settings.function("state", state, "(observation, info) -> state")
        given = {} if state is None else {"state": state}
        RecordConstructorArgs.__init__(self, _disable_deepcopy=True, **given)
        super().__init__(env)
        self._find = state

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        return obs, self._with_state(obs, info)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, terminated, truncated, self._with_state(obs, info)

    def _with_state(self, obs: Any, info: dict[str, Any]) -> dict[str, Any]:
        state = info.get("state") if self._find is None else self._find(obs, info)
        if not isinstance(state, Mapping):
            raise UsageError(
                f"StateInfo: the state is a {type(state).__name__}, not a mapping of field names "
                'to values; the environment gives it as info["state"], or pass state='
            )
        return {**info, "state": UserDict(state)}


def state_of(obs: Any, infos: Mapping[str, Any], index: int, find: FindState | None) -> Any:
    """The state of one sub-environment.

    Args:
        obs, infos: batched, as a vectorised environment returns them.
        find: default ``infos["state"][index]`` where there is one, else the observation.

    Returns:
        what was found; None where others have a state and this one has none.

    Raises:
        UsageError: the states were merged into arrays; `StateInfo` prevents it.
    """
    if find is not None:
        return find(row(obs, index), info_of(infos, index))
    states = infos.get("state")
    if states is None:
        return row(obs, index)
    if isinstance(states, Mapping):
        raise UsageError(
            'infos["state"] was merged field by field into arrays, which cuts floats to integers '
            "and turns unknown flags into False; wrap each sub-environment in StateInfo: "
            "gymnasium.make_vec(..., wrappers=[StateInfo])"
        )
    known = infos.get("_state")
    state = states[index] if known is None or known[index] else None
    return dict(state) if isinstance(state, Mapping) else state


def info_of(infos: Mapping[str, Any], index: int) -> dict[str, Any]:
    """One sub-environment's info: the keys whose mask ``_key`` holds for it."""
    found = {}
    for key, value in infos.items():
        mask = infos.get(f"_{key}")
        if mask is not None and mask[index]:
            found[key] = info_of(value, index) if isinstance(value, dict) else row(value, index)
    return found
