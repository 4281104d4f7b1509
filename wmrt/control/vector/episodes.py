"""Where the episodes of a vectorised environment begin and end, under each autoreset mode.

Gymnasium has three (https://farama.org/Vector-Autoreset-Mode). After an episode's last step

- NEXT_STEP: the observation is the last one of the old episode; the next step ignores the action,
  and answers with the first observation of the new one;
- SAME_STEP: the observation is the first one of the new episode already; what ended the old one is
  in ``infos["final_obs"]`` and ``infos["final_info"]``;
- DISABLED: nothing, until ``envs.reset(options={"reset_mask": ended})``.

Of one thing nothing can be told: in NEXT_STEP, an ``AsyncVectorEnv(shared_memory=False)`` of
Gymnasium 1.4 that is reset while an episode is over resets that sub-environment once more in the
next step. The default, ``shared_memory=True``, does not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from wmrt.control import settings
from wmrt.core.errors import UsageError


class Episodes:
    """The phase of each sub-environment. Every transition is told; none is guessed.

    Args:
        count: sub-environments.
        autoreset: a `gymnasium.vector.AutoresetMode` or its value, such as ``"SameStep"``;
            ``envs.metadata["autoreset_mode"]`` says it.

    Attributes:
        mode: the autoreset mode.
        number: int64[count], the episode each one is in, from 1; 0 before the first.

    Raises:
        UsageError: another mode. SafetyError: a count that is not.
    """

    def __init__(self, count: int, autoreset: AutoresetMode | str) -> None:
        self.count = settings.count("count", count, 1)
        try:
            self.mode = AutoresetMode(autoreset)
        except ValueError:
            allowed = [mode.value for mode in AutoresetMode]
            raise UsageError(
                f"autoreset={autoreset!r}: one of {allowed}; a vector environment says it in "
                'envs.metadata["autoreset_mode"]'
            ) from None
        self.number = np.zeros(self.count, np.int64)
        self._over = np.zeros(self.count, bool)
        self._begun = False

    def reset(self, mask: Any = None) -> list[int]:
        """The environment was reset, all of it or where ``mask``; which ones begin an episode.

        Raises:
            UsageError: a mask that is not bool[count] with at least one true, or the first reset is
                not of all.
        """
        chosen = np.ones(self.count, bool) if mask is None else np.asarray(mask)
        if chosen.dtype != np.bool_ or chosen.shape != (self.count,) or not chosen.any():
            raise UsageError(
                f"mask is {chosen.dtype}{list(chosen.shape)}; give bool[{self.count}], the "
                "reset_mask that the environment got, true somewhere"
            )
        if not self._begun and not chosen.all():
            raise UsageError("the first reset must be of every sub-environment: leave out mask")
        self._begun = True
        self.number[chosen] += 1
        self._over[chosen] = False
        return self._indices(chosen)

    def ignored(self) -> list[int]:
        """Those whose action the coming step ignores.

        Raises:
            UsageError: nothing was reset yet, or, in mode DISABLED, an episode is over and its
                environment was not reset.
        """
        if not self._begun:
            raise UsageError("act: there is no episode yet; reset first")
        if self.mode is AutoresetMode.DISABLED and self._over.any():
            raise UsageError(
                f"act: the episodes of {self._indices(self._over)} are over, and in mode DISABLED "
                'nothing resets them; call envs.reset(options={"reset_mask": ended}), and reset '
                "here with its result and mask=ended"
            )
        return self._indices(self._over)

    def stepped(self, terminated: Any, truncated: Any) -> list[int]:
        """A step was made; which ones begin an episode with the observation that it answered.

        Args:
            terminated, truncated: bool[count], as the environment's ``step`` returned them.

        Raises:
            UsageError: another shape.
        """
        ended = np.logical_or(np.asarray(terminated, bool), np.asarray(truncated, bool))
        if ended.shape != (self.count,):
            raise UsageError(
                f"terminated and truncated are of shape {ended.shape}, not ({self.count},)"
            )
        begins = self._over if self.mode is AutoresetMode.NEXT_STEP else ended
        if self.mode is AutoresetMode.DISABLED:
            begins = np.zeros(self.count, bool)
        begins = begins.copy()
        self.number[begins] += 1
        self._over = ended & ~begins
        return self._indices(begins)

    @staticmethod
    def _indices(mask: NDArray[np.bool_]) -> list[int]:
        return [int(i) for i in np.flatnonzero(mask)]
