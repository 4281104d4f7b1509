"""Losses: behaviour cloning of chunks, next state, reward, continue, selector distillation."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from wmrt.model.network import Network, Sequence
from wmrt.model.twohot import twohot_index
from wmrt.train.dataset import Batch


@dataclass(frozen=True)
class LossWeights:
    """Weights of the training losses (the driving recipe)."""

    state: float = 2.0
    category: float = 0.5
    reward: float = 0.5
    proceed: float = 1.0
    action: float = 2.0
    distill: float = 0.1


def _mean(loss: Tensor, mask: Tensor) -> Tensor:
    return (loss * mask).sum() / mask.sum().clamp(min=1)


def chunk_target(chunks: Tensor, weights: Tensor, bins: int) -> Tensor:
    """Mixture of the candidates' two-hot actions: [..., M, H, A], [..., M] -> [..., H, A, bins].

    Softened expert scores instead of its single choice: 0.07 against 0.20 crashes.
    """
    lower, high = twohot_index(chunks, -1, 1, bins)
    share = weights[..., :, None, None]
    target = chunks.new_zeros(*chunks.shape[:-3], *chunks.shape[-2:], bins)
    # [..., M, H, A] -> [..., H, A, M]: candidates become entries to scatter along the bins
    index, below, above = (t.movedim(-3, -1) for t in (lower, (1 - high) * share, high * share))
    return target.scatter_add_(-1, index, below).scatter_add_(-1, index + 1, above)


def action_loss(logits: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """Cross-entropy above the target's own entropy; the action taken now counts as much as the
    rest."""
    excess = -(target * (logits.log_softmax(-1) - target.clamp(min=1e-9).log())).sum(-1).mean(-1)
    now, later = excess[..., 0], excess[..., 1:].mean(-1)
    return _mean(now, mask) + 0.5 * _mean(later, mask)


def distill_loss(sequence: Sequence, mask: Tensor, rows: int, window: int) -> Tensor:
    """KL of the selector's past distribution from full attention's mean probability over heads and
    layers, on the first ``rows`` rows. Both see what attention sees: the last ``window`` states."""
    age = sequence.age
    past = (age > 0) & (age < window)
    unseen = ~past & (age != 0)
    with torch.no_grad():
        total = torch.zeros_like(sequence.scores[:rows])
        for q, k in sequence.attention:
            k = k[:rows].repeat_interleave(q.shape[1] // k.shape[1], dim=1)
            logits = q[:rows] @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
            total += logits.masked_fill(unseen, float("-inf")).softmax(-1).mean(1)
        teacher = total.masked_fill(~past, 0)
        teacher = teacher / teacher.sum(-1, keepdim=True).clamp(min=1e-6)
    student = sequence.scores[:rows].masked_fill(~past, -1e9).log_softmax(-1)
    kl = (teacher * (teacher.clamp(min=1e-9).log() - student)).masked_fill(~past, 0).sum(-1)
    return _mean(kl[:, 1:], mask[:rows, 1:])


def dynamics_losses(network: Network, hidden: Tensor, batch: Batch) -> dict[str, Tensor]:
    """Next state, category, reward and continue losses given the executed actions.

    The step that ended the drive is masked out of the state losses: what a crash leaves behind is
    no
    dynamics (with it the 15-step error is 2.4, worse than persistence, while the return stays the
    same).
    """
    head, p = network.dynamics, network.predict(hidden, batch.action)
    values, known = network.split(batch.codes[:, :-1], batch.values[:, :-1])
    following, exists = network.split(batch.true_codes[:, 1:], batch.true_values[:, 1:])
    _, seen = network.split(batch.codes[:, 1:], batch.values[:, 1:])
    alive = batch.mask * (1 - batch.ended)
    target = head.change_target(values, known, following)
    # A value the recording itself does not know teaches no change, only that it is missing.
    change = -(target * p.change.log_softmax(-1)).sum(-1) * exists
    missing = F.binary_cross_entropy_with_logits(p.missing, (~seen).float(), reduction="none")
    state = (change + missing).mean(-1) if head.numeric else torch.zeros_like(alive)
    losses = {"state": _mean(state, alive)}
    if head.category_sizes:
        index = [i for i, c in enumerate(network.schema.columns) if c.kind != "numeric"]
        codes = batch.codes[:, 1:, index]
        parts = torch.split(p.category, head.category_sizes, dim=-1)
        entropy = [
            F.cross_entropy(x.flatten(0, 1), codes[..., i].flatten(), reduction="none")
            for i, x in enumerate(parts)
        ]
        losses["category"] = _mean(torch.stack(entropy).mean(0).view_as(alive), alive)
    reward = -(head.reward_target(batch.reward) * p.reward.log_softmax(-1)).sum(-1)
    losses["reward"] = _mean(reward, batch.mask)
    proceed = F.binary_cross_entropy_with_logits(p.proceed, 1 - batch.ended, reduction="none")
    losses["proceed"] = _mean(proceed, batch.mask)
    return losses


def compute(
    network: Network,
    batch: Batch,
    weights: LossWeights,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Weighted total and the parts. Distillation runs on a quarter of the rows: it costs a full
    attention."""
    distil = network.config.selector == "learned" and weights.distill > 0
    hidden, sequence = network(
        batch.codes[:, :-1], batch.values[:, :-1], batch.previous, generator, keep_attention=distil
    )
    target = chunk_target(batch.chunks, batch.weights, network.config.action_bins)
    parts = {"action": action_loss(network.action_head(hidden), target, batch.mask)}
    parts |= dynamics_losses(network, hidden, batch)
    if distil:
        rows = max(1, batch.mask.shape[0] // 4)
        parts["distill"] = distill_loss(sequence, batch.mask, rows, network.config.window)
    total = torch.stack([getattr(weights, name) * part for name, part in parts.items()]).sum()
    return total, parts
