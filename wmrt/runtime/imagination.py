"""Rolling the world model forward on its own predictions."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wmrt.model.heads import Prediction
from wmrt.model.network import Network, Ring
from wmrt.model.schema import UNKNOWN
from wmrt.runtime.step import Rollout


@torch.inference_mode()
def next_q(
    network: Network, prediction: Prediction, codes: Tensor, values: Tensor
) -> NDArray[np.int64]:
    """Predicted integer state int64[..., F] in column order, from the present one's codes and
    values."""
    head, columns = network.dynamics, network.schema.columns
    following, will_know = head.decode_state(prediction, *network.split(codes, values))
    q = np.full(tuple(codes.shape), UNKNOWN, np.int64)
    numeric = [i for i, c in enumerate(columns) if c.kind == "numeric"]
    if numeric:
        exact = network.schema.quantize_array(following.cpu().numpy())
        q[..., numeric] = np.where(will_know.cpu().numpy(), exact, UNKNOWN)
    other = [i for i, c in enumerate(columns) if c.kind != "numeric"]
    if other:
        category = head.decode_category(prediction).cpu().numpy()
        q[..., other] = np.where(category > 0, category, UNKNOWN)
    return q


@torch.inference_mode()
def roll(
    network: Network,
    ring: Ring,
    hidden: Tensor,
    codes: Tensor,
    values: Tensor,
    plan: Tensor,
    generator: torch.Generator,
) -> Rollout:
    """Consequences of N action sequences.

    Args:
        ring: of N robots; advanced.
        hidden, codes, values: float32[N, d], int64[N, F], float32[N, F] of the present state.
        plan: float32[N, T, A].
    """
    states, rewards, proceeds = [], [], []
    for t in range(plan.shape[1]):
        prediction = network.predict(hidden, plan[:, t])
        q = next_q(network, prediction, codes, values)
        states.append(q)
        rewards.append(network.dynamics.decode_reward(prediction).cpu().numpy())
        proceeds.append(prediction.proceed.sigmoid().cpu().numpy())
        if t + 1 < plan.shape[1]:
            new_codes, new_values = network.schema.encode_q(q)
            codes = torch.from_numpy(new_codes).to(codes)
            values = torch.from_numpy(new_values).to(values)
            hidden = network.step(codes, values, plan[:, t], ring, generator)
    return Rollout(np.stack(states, 1), np.stack(rewards, 1), np.stack(proceeds, 1))
