"""Constants of a network's dynamics head as `torch.ops.wmrt.consequences` reads them."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from wmrt.kernels.decode_arguments import Decode
from wmrt.model.heads import REWARD_RANGE
from wmrt.model.network import Network
from wmrt.model.twohot import bin_centers


def decode_weights(network: Network) -> tuple[list[Tensor], list[int], float]:
    """Weights, sizes of the categories and scale of the reward, on the network's device."""
    head, device = network.dynamics, network.increments.device
    parts = (head.delta_limit, head.delta_scale, head.fill, head.low, head.high)
    ends = list(itertools.accumulate(head.category_sizes))
    weights = Decode(
        numbers=network.numeric_index.to(torch.int32),
        scales=torch.stack([part.detach().float() for part in parts]),
        centers=head.bins.float().contiguous(),
        ends=torch.tensor(ends, dtype=torch.int32, device=device),
        reward_centers=bin_centers(*REWARD_RANGE, head.reward_bins, device),
    )
    return list(weights), list(head.category_sizes), float(head.reward_scale)
