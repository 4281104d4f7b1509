"""Distributions over bins: two-hot targets, and decoding by the expectation around the mode.

Two-hot targets and symlog follow DreamerV3 (Hafner et al., 2023). The plain mean of a bimodal
prediction is a value neither mode supports (steer between two lanes); the mean of the +-2 bins
around the mode keeps sub-bin resolution without averaging modes.
"""

from __future__ import annotations

import torch
from torch import Tensor


def symlog(x: Tensor) -> Tensor:
    return torch.sign(x) * torch.log1p(x.abs())


def symexp(x: Tensor) -> Tensor:
    return torch.sign(x) * torch.expm1(x.abs())


def bin_centers(low: float, high: float, bins: int, device: torch.device | None = None) -> Tensor:
    """Uniform bin centres with the ends included. float32[bins]."""
    return torch.linspace(low, high, bins, device=device)


def twohot_index(x: Tensor, low: float, high: float, bins: int) -> tuple[Tensor, Tensor]:
    """Lower bin int64[...] and weight of the bin above float32[...]; values are clamped to the
    range."""
    position = ((x - low) / (high - low) * (bins - 1)).clamp(0, bins - 1)
    lower = position.floor().clamp(max=bins - 2)
    return lower.long(), position - lower


def twohot(x: Tensor, low: float, high: float, bins: int) -> Tensor:
    """Two-hot target float32[..., bins] of ``x`` on uniform centres."""
    lower, weight = twohot_index(x, low, high, bins)
    target = torch.zeros(*x.shape, bins, dtype=torch.float32, device=x.device)
    target.scatter_(-1, lower.unsqueeze(-1), (1 - weight).unsqueeze(-1))
    target.scatter_add_(-1, (lower + 1).unsqueeze(-1), weight.unsqueeze(-1))
    return target


def decode_mode(logits: Tensor, centers: Tensor, radius: int = 2) -> Tensor:
    """Expectation over the bins within ``radius`` of the mode. float32[...] from logits[...,
    bins]."""
    mode = logits.argmax(dim=-1, keepdim=True)
    index = torch.arange(logits.shape[-1], device=logits.device)
    near = (index - mode).abs() <= radius
    probability = logits.float().masked_fill(~near, float("-inf")).softmax(dim=-1)
    return (probability * centers).sum(dim=-1)
