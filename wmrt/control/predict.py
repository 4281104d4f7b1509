"""Controllers in the shape of a Stable-Baselines3 model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wmrt.control import settings
from wmrt.control.batch import one_per_robot, row
from wmrt.control.controller import Controller
from wmrt.core.errors import UsageError


class PredictPolicy:
    """``predict`` as Stable-Baselines3's ``BaseAlgorithm.predict`` has it, memory included.

    A ``VecEnv`` resets a sub-environment within the step that ends its episode, and what follows is
    told by ``episode_start``: where it is true, that robot's controller is reset.

    Args:
        controller: what answers, or one per environment. Their clocks should be `StepClock` unless
            the loop is in real time.
        state: observation of one environment -> its state, when it is not the state itself.
        batched: whether observations have a leading axis of environments. Default: when there are
            several controllers, or ``episode_start`` is an array.

    Attributes:
        controllers: one per environment.

    Raises:
        SafetyError: an argument of a wrong type, or two robots on one controller or policy.
    """

    def __init__(
        self,
        controller: Controller | Sequence[Controller],
        state: Callable[[Any], Any] | None = None,
        *,
        batched: bool | None = None,
    ) -> None:
        if not isinstance(controller, Sequence):
            settings.require(
                isinstance(controller, Controller), "controller", "a Controller", controller
            )
            controller = [controller]
        self.controllers = one_per_robot(controller)
        settings.function("state", state, "observation -> state")
        several = len(self.controllers) > 1
        allowed = "True with several controllers, else True, False or None"
        settings.require(
            batched is None or (type(batched) is bool and (batched or not several)),
            "batched", allowed, batched,
        )  # fmt: skip
        self._state = state
        self._batched = True if several else batched

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = False,
    ) -> tuple[NDArray[np.float32], Any]:
        """The actions for an observation.

        Args:
            observation: of each environment (arrays or a dict of arrays with a leading axis of N),
                or of the only one.
            state: handed back as it is; the memory is in the controllers.
            episode_start: true at the first observation of an episode; bool[N].
            deterministic: accepted for the interface; whether a policy samples is its own setting.

        Returns:
            float32[N, A], or float32[A] for an observation without the leading axis; and ``state``.

        Raises:
            UsageError: another number of environments than of controllers: each has the memory of
                one robot.
        """
        count = len(self.controllers)
        starts = np.asarray(False if episode_start is None else episode_start, bool)
        batched = bool(starts.ndim) if self._batched is None else self._batched
        if starts.ndim > 1 or (starts.ndim and starts.size != count):
            self._refuse("episode_start", {starts.size})
        if batched and (sizes := _sizes(observation)) != {count}:
            self._refuse("an observation", sizes)
        singles = [row(observation, n) for n in range(count)] if batched else [observation]
        states = singles if self._state is None else [self._state(each) for each in singles]
        actions = []
        for index, controller in enumerate(self.controllers):
            if starts[index] if starts.ndim else starts:
                controller.reset()
            actions.append(controller.act(states[index]))
        return (np.stack(actions) if batched else actions[0]), state

    def _refuse(self, what: str, sizes: set[int]) -> None:
        raise UsageError(
            f"predict: {what} for {' and '.join(map(str, sorted(sizes)))} environments; a "
            f"controller drives one robot, and there are {len(self.controllers)}"
        )


def _sizes(batch: Any) -> set[int]:
    """Lengths of the leading axes; 0 where there is none."""
    if isinstance(batch, Mapping):
        return {size for value in batch.values() for size in _sizes(value)}
    try:
        return {len(batch)}
    except TypeError:
        return {0}
