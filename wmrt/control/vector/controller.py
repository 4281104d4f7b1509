"""One controller per sub-environment of a vectorised Gymnasium environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from wmrt.control import settings
from wmrt.control.batch import one_per_robot
from wmrt.control.controller import Controller
from wmrt.control.protocol import Outcome
from wmrt.control.vector.episodes import Episodes
from wmrt.control.vector.shared import SharedStep
from wmrt.control.vector.states import FindState, state_of
from wmrt.core.errors import UsageError


class VectorController:
    """Drives the sub-environments, each by a controller of its own.

    `reset` takes what ``envs.reset`` returned, `observe` what ``envs.step`` returned, `act` gives
    the actions. A controller is reset where an episode begins, so that no memory, planned chunk or
    rate reference crosses it; it is not asked about an observation that no action answers. What
    happens in one sub-environment, a latch included, changes nothing in another.

    Args:
        controllers: one per sub-environment, each with a policy of its own: `WorldModel.fork`
            shares the weights. Their clocks should be `StepClock`.
        autoreset: ``envs.metadata["autoreset_mode"]``.
        state: (observation, info) of one environment -> its state; default ``info["state"]`` (see
            `StateInfo`), else the observation.
        shared: the controllers' policies are its ``policies``, in order; they act at once then, and
            share each read of the weights.

    Attributes:
        episodes: which episode each sub-environment is in.
        last: the outcome of each in the last `act`; None where the action is ignored.

    Raises:
        SafetyError: arguments of a wrong type, or two robots on one controller or policy.
        UsageError: another autoreset mode.
    """

    def __init__(
        self,
        controllers: Sequence[Controller],
        autoreset: AutoresetMode | str,
        *,
        state: FindState | None = None,
        shared: SharedStep | None = None,
    ) -> None:
        self.controllers = one_per_robot(controllers)
        settings.function("state", state, "(observation, info) -> state")
        self.episodes = Episodes(len(self.controllers), autoreset)
        self.last: list[Outcome | None] = [None] * len(self.controllers)
        if shared is not None:
            own = [each.model for each in self.controllers]
            settings.require(
                own == list(shared.policies),
                "shared", "the SharedStep whose policies the controllers have, in order", shared,
            )  # fmt: skip
        self._find, self._shared = state, shared
        self._states: list[Any] = [None] * len(self.controllers)
        self._acted = False

    def reset(self, obs: Any, infos: Mapping[str, Any], mask: Any = None) -> None:
        """``envs.reset`` returned ``obs`` and ``infos``; it reset where ``mask``, default all.

        Args:
            mask: bool[N], the ``options["reset_mask"]`` that the environment was given.

        Raises:
            UsageError: see `Episodes.reset` and `state_of`.
        """
        self._begin(self.episodes.reset(mask), obs, infos)
        self._acted = False

    def act(self) -> NDArray[np.float32]:
        """The actions for what was observed last, float32[N, A].

        The row of a sub-environment that ignores it is its neutral action.

        Raises:
            UsageError: nothing new was observed, or an episode is over in mode DISABLED.
        """
        ignored = self.episodes.ignored()
        if self._acted:
            raise UsageError("act: what the last actions led to was not observed; call observe")
        self._acted = True
        calls = {
            index: partial(controller.act, self._states[index])
            for index, controller in enumerate(self.controllers)
            if index not in ignored
        }
        if self._shared is None:
            acted = {index: call() for index, call in calls.items()}
        else:
            acted = self._shared.together(calls)
        self.last = [each.last if n in acted else None for n, each in enumerate(self.controllers)]
        return np.stack([self._row(index, acted) for index in range(len(self.controllers))])

    def _row(self, index: int, acted: Mapping[int, NDArray[np.float32]]) -> NDArray[np.float32]:
        if index in acted:
            return acted[index]
        return np.array(self.controllers[index].breakers.limits.rest, np.float32)

    def observe(
        self, obs: Any, rewards: Any, terminated: Any, truncated: Any, infos: Mapping[str, Any]
    ) -> None:
        """What ``envs.step`` returned.

        Raises:
            UsageError: no actions were given for it, or flags that are not bool[N].
        """
        if not self._acted:
            raise UsageError("observe: no actions led here; call act first, or reset")
        begin = self.episodes.stepped(terminated, truncated)
        self._acted = False
        self._begin(begin, obs, infos)
        for index in set(range(len(self.controllers))) - set(begin):
            self._states[index] = state_of(obs, infos, index, self._find)

    def _begin(self, indices: Sequence[int], obs: Any, infos: Mapping[str, Any]) -> None:
        for index in indices:
            self.controllers[index].reset()
            self._states[index] = state_of(obs, infos, index, self._find)
