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


class ModelPolicy:
    """Integer state and last executed action in, the model's action out; one episode at a time."""

    def __init__(self, checkpoint: Path) -> None:
        torch.set_num_threads(1)  # one worker process per core
        self._model = WorldModel.from_pretrained(checkpoint, recipe="bf16")

    def reset(self) -> None:
        self._model.reset()

    def act(self, q: NDArray[np.int64], last: NDArray[np.float32]) -> NDArray[np.float32]:
        """float32[A] for state q int64[F], given the action float32[A] executed before."""
        codes, values = self._model.schema.encode_q(q)
        action: NDArray[np.float32] = (
            self._model.session.step(codes, values, last).action[0].numpy()
        )
        return action
