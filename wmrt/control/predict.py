"""A controller in the shape of a Stable-Baselines3 model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wmrt.control import settings
from wmrt.control.controller import Controller
from wmrt.core.errors import UsageError


class PredictPolicy:
    """``predict`` as Stable-Baselines3's ``BaseAlgorithm.predict`` has it, on one robot.

    Args:
        controller: what answers. Its clock should be a `StepClock` unless the loop is in real time.
        state: observation -> state, when the environment's observation is not the state itself.

    Raises:
        SafetyError: an argument of a wrong type.
    """

    def __init__(self, controller: Controller, state: Callable[[Any], Any] | None = None) -> None:
        settings.require(
            isinstance(controller, Controller), "controller", "a Controller", controller
        )
        settings.function("state", state, "observation -> state")
        self.controller = controller
        self._state = state

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
    ) -> tuple[NDArray[np.float32], Any]:
        """The action for an observation.

        Args:
            observation: of one environment; with a leading axis of 1 when ``episode_start`` is an
                array, as a VecEnv of one environment gives it.
            state: handed back as it is; the memory is in the controller.
            episode_start: true at the first observation of an episode, resets the controller.
            deterministic: accepted for the interface; whether a policy samples is its own setting.

        Returns:
            float32[A], or float32[1, A] when ``episode_start`` is an array; and ``state``.

        Raises:
            UsageError: more than one environment: a controller has the memory of one robot.
        """
        starts = np.asarray(False if episode_start is None else episode_start, bool)
        if starts.ndim and starts.shape != (1,):
            raise UsageError(
                f"predict: {starts.size} environments; a controller drives one robot, use one each"
            )
        if starts.any():
            self.controller.reset()
        single = _first(observation) if starts.ndim else observation
        action = self.controller.act(single if self._state is None else self._state(single))
        return (action[None] if starts.ndim else action), state


def _first(observation: Any) -> Any:
    """The only environment's part of a batched observation."""
    if isinstance(observation, Mapping):
        return {key: value[0] for key, value in observation.items()}
    return observation[0]
