"""`state_fusion` and `transition_select` in torch: what their kernels are compared with.

The numbers of `wmrt.model.fusion` and `wmrt.model.transition`, bit for bit on one device, from the
weight lists of `wmrt.kernels.state_arguments`. Codes that are not the schema's become the nearest,
so that no index leaves a table; a previous action of NaN gives an embedding of NaN.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from wmrt.kernels.state_arguments import FusionSizes, FusionWeights, SelectorWeights

NORM_EPS = 1e-5
_TURN = 1 << 32
_MASK32 = _TURN - 1


def fuse(
    codes: Tensor,
    values: Tensor,
    previous: Tensor,
    w: FusionWeights,
    s: FusionSizes,
    action: Tensor,
    token: Tensor,
) -> None:
    """Codes int32[B, F], values and previous action -> action [B, E] and token [B, d], written."""
    known = codes.clamp(min=0).minimum(w.columns[:, 3]).long()
    action.copy_(embed_action(previous, w.action_table))
    hidden = F.linear(_embed_fields(known, values, w), w.first.float(), w.first_bias)
    second_bias, norm, norm_bias, gate = w.embed_rows
    embedding = F.linear(F.gelu(hidden), w.second.float(), second_bias)
    embedding = F.layer_norm(embedding, (s.embed,), norm, norm_bias, NORM_EPS)
    share = torch.sigmoid(F.linear(embedding, gate.unsqueeze(0), w.gate_bias))
    memory = w.memory[memory_rows(known, w, s.table_rows)].float().sum(dim=-2)
    fused = F.linear(embedding, w.out.float(), w.out_bias) + share * memory
    token.copy_(fused + F.linear(action, w.action_in.float()))


def embed_action(action: Tensor, table: Tensor) -> Tensor:
    """float32[B, A] in [-1, 1] -> [B, E]: neighbouring knots of ``table``, interpolated."""
    dims, knots, _ = table.shape
    position = ((action + 1) * 0.5 * (knots - 1)).clamp(0, knots - 1)
    lower = position.floor().clamp(max=knots - 2)
    index = torch.where(lower == lower, lower, 0.0).long()
    dim = torch.arange(dims, device=action.device)
    low, high = table[dim, index].float(), table[dim, index + 1].float()
    return torch.lerp(low, high, (position - lower).unsqueeze(-1)).flatten(-2)


def memory_rows(codes: Tensor, w: FusionWeights, rows: int) -> Tensor:
    """Rows int64[B, G] of the memory that codes int64[B, F] are hashed to."""
    cells, buckets = w.columns[:, 2].long(), w.columns[:, 3].long()
    coarse = 1 + (codes - 1) * cells // buckets.clamp(min=1)
    coarse = torch.where((codes > 0) & (cells > 0), coarse, codes)
    mixed = ((coarse + 1).unsqueeze(-1) * (w.multipliers.long() & _MASK32)).sum(dim=-2) & _MASK32
    mixed = ((mixed ^ (mixed >> 15)) * 0x2C1B3C6D) & _MASK32
    mixed = ((mixed ^ (mixed >> 12)) * 0x297A2D39) & _MASK32
    return (mixed ^ (mixed >> 15)) % rows


def _embed_fields(codes: Tensor, values: Tensor, w: FusionWeights) -> Tensor:
    """Codes int64[B, F], within range -> [B, F field_dim]."""
    inside = (w.columns[:, 1] != 0) & (codes > 0)
    bucket = (codes - 1).clamp(min=0, max=w.knots.shape[1] - 1).unsqueeze(-1)
    above = (bucket + 1).clamp(max=w.knots.shape[1] - 1)
    knots = w.knots.expand(*codes.shape, -1)
    low, high = knots.gather(-1, bucket).squeeze(-1), knots.gather(-1, above).squeeze(-1)
    share = ((values - low) / (high - low).clamp(min=1e-12)).clamp(0, 1)
    share = torch.where(inside, share, torch.zeros_like(share))
    first = w.columns[:, 0] + codes
    lower, upper = w.fields[first].float(), w.fields[first + inside.long()].float()
    return torch.lerp(lower, upper, share.unsqueeze(-1)).flatten(-2)


def select(
    token: Tensor,
    action: Tensor,
    step: Tensor,
    w: SelectorWeights,
    kind: str,
    hidden: Tensor,
    cell: Tensor,
    select_keys: Tensor,
    slots: Tensor,
    bias: Tensor,
) -> None:
    """Advances the LSTM, stores the present key, and writes slots [B, k + 1] and their biases.

    The present slot comes first, then past ones from the highest score down; of equal ones the
    lowest slot (`torch.topk` promises no order among them), and NaN before any number.
    """
    window, count = w.age_bias.shape[0], slots.shape[1] - 1
    row, slot = torch.arange(len(step), device=step.device), step % window
    after = torch.lstm_cell(
        action, (hidden, cell), w.lstm_in.float(), w.lstm_hidden.float(), *w.lstm_bias
    )
    hidden.copy_(after[0])
    cell.copy_(after[1])
    select_keys[row, slot] = F.linear(token, w.key.float(), w.key_bias)
    age = (slot.unsqueeze(1) - torch.arange(window, device=step.device)) % window
    past = (age > 0) & (age <= step.unsqueeze(1))
    ranking, gate = -age.float(), torch.zeros(age.shape, device=step.device)
    if kind == "learned":
        query = F.linear(hidden, w.query.float(), w.query_bias)
        scores = torch.einsum("bs,bws->bw", query, select_keys) * (1.0 / math.sqrt(len(w.key)))
        ranking = scores + w.age_bias[age]
        gate = F.logsigmoid(ranking)
    ranking, gate = (x.masked_fill(~past, -math.inf) for x in (ranking, gate))
    order = ranking.sort(dim=-1, descending=True, stable=True).indices
    others = order[order != slot.unsqueeze(1)].view(len(step), window - 1)[:, :count]
    slots.copy_(torch.cat([slot.unsqueeze(1), others], 1))
    bias.copy_(F.pad(gate.gather(1, others), (1, 0)))


def turn(step: Tensor, increments: Tensor, cos: Tensor, sin: Tensor) -> None:
    """cos and sin float32[B, n] of ``step`` turns of ``increments`` 2^-32, an exact phase."""
    turns = ((step.unsqueeze(-1) % _TURN) * increments) % _TURN
    angle = turns.double() * (2 * math.pi / _TURN)
    cos.copy_(angle.cos())
    sin.copy_(angle.sin())
