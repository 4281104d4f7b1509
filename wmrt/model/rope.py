"""Rotary position embedding by absolute step, with an exact phase.

Su et al., "RoFormer" (2021). The phase of each frequency is an integer number of 2^-32 turns, so
adding one more step is exact modular arithmetic: the rotation at step 10^9 is as precise as at
step 0. A float32 product step * frequency would have lost every fractional digit by then.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_TURN = 1 << 32


def turn_increments(half: int, base: float) -> Tensor:
    """Turns per step of each of ``half`` frequencies, in units of 2^-32 turn. int64[half]."""
    values = [round(base ** (-i / half) / (2 * math.pi) * _TURN) for i in range(half)]
    return torch.tensor(values, dtype=torch.int64)


def rope_table(steps: Tensor, increments: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin float32[..., half] at absolute ``steps`` int64[...]."""
    # (step mod 2^32) * increment stays below 2^63: increments are at most 2^32 / 2 pi.
    turns = ((steps.unsqueeze(-1) % _TURN) * increments) % _TURN
    angle = turns.double() * (2 * math.pi / _TURN)
    return angle.cos().float(), angle.sin().float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate pairs (x[i], x[i + half]) of the last axis; ``cos``/``sin`` broadcast over heads."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)
