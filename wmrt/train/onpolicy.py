"""A trained model as the driver of a recording: the expert labels the states the model gets into.

DAgger (Ross, Gordon and Bagnell, 2011). Without it the model turned into cars that had just passed
from beside to behind: states that the expert and its noisy versions do not reach.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from wmrt.runtime.world_model import WorldModel
from wmrt.train.occlusion import Dropout, group_mask


class ModelPolicy:
    """Integer state and last executed action in, the model's action out; one episode at a time.

    With ``groups`` and ``dwell`` the model sees its sensor groups switch off and on
    (`wmrt.train.occlusion`); what is recorded stays complete.

    Args:
        groups: fields of each sensor group. dwell: mean steps off or on; 0: all stay on.
    """

    def __init__(
        self, checkpoint: Path, groups: tuple[tuple[str, ...], ...] = (), dwell: float = 0.0
    ) -> None:
        torch.set_num_threads(1)  # one worker process per core
        self._model = WorldModel.from_pretrained(checkpoint, recipe="bf16")
        mask = group_mask(self._model.schema, groups) if dwell else None
        self._dropout = None if mask is None else Dropout(mask, dwell)

    def reset(self, seed: int) -> None:
        self._model.reset()
        if self._dropout is not None:
            self._dropout.reset(seed)

    def act(self, q: NDArray[np.int64], last: NDArray[np.float32]) -> NDArray[np.float32]:
        """float32[A] for state q int64[F], given the action float32[A] executed before."""
        if self._dropout is not None:
            q = self._dropout.hide(q)
        codes, values = self._model.schema.encode_q(q)
        action: NDArray[np.float32] = (
            self._model.session.step(codes, values, last).action[0].numpy()
        )
        return action
