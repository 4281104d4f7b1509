"""The trunk's layers of a grown network: the source's own, and new ones that no reader sees.

See `wmrt.train.grow` for why each of these preserves the function.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping

import torch
from torch import Tensor

from wmrt.core.errors import CheckpointError
from wmrt.train.grow_axes import Axis, expand, shares
from wmrt.train.grow_plan import Plan

#: What all new layers write together, relative to a token: its square, 4e-6, is what RMSNorm sees.
HIDDEN_WRITES = 2.0**-9


def generator(seed: int, part: str) -> torch.Generator:
    """A generator for one part of the network: the same seed gives the same bits."""
    digest = hashlib.blake2b(f"grow {seed}/{part}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little", signed=True))


# -- layers of the source ------------------------------------------------------------------------


def source_layer(
    plan: Plan, prefix: str, stored: Mapping[str, Tensor], draw: torch.Generator
) -> dict[str, Tensor]:
    """Tensors of one of the source's layers, grown; ``stored`` has them without ``prefix``."""
    d = plan.writes("d_model")
    gate_up = plan.writes("ffn").blocks(2, plan.source.ffn)
    axes: dict[str, tuple[Axis | None, ...]] = {
        "attention_norm.weight": (d,),
        "out.weight": (d, _heads_read(plan).times(1 / _gain(plan))),
        "mlp_norm.weight": (d,),
        "gate_up.weight": (gate_up, plan.stream),
        "down.weight": (d, plan.reads("ffn")),
    }
    grown = {name: expand(prefix + name, stored[name], axis) for name, axis in axes.items()}
    grown["qkv.weight"] = _qkv(plan, prefix, stored["qkv.weight"], draw)
    return grown


def _kv_head(plan: Plan, head: int) -> int:
    return head // plan.times("kv_heads")


def _query_head(plan: Plan, head: int) -> tuple[int, int]:
    """The source's head behind one of the target's, and which of its copies this one is."""
    source, target = plan.source, plan.target
    group, wide = source.heads // source.kv_heads, target.heads // target.kv_heads
    kv, within = divmod(head, wide)
    own = kv % plan.times("kv_heads")
    return _kv_head(plan, kv) * group + within % group, own * (wide // group) + within // group


def _heads_read(plan: Plan) -> Axis:
    """Reading what the heads attended to: every value is there once per copy of its head, and in
    every head as often as it is wider."""
    wider, width = plan.times("head_dim"), plan.source.head_dim
    share = shares(plan.times("heads") * wider)
    index, factor = [], []
    for head in range(plan.target.heads):
        of, copy = _query_head(plan, head)
        index.append((of * width + torch.arange(width)).repeat(wider))
        mine = torch.tensor(share[copy * wider : (copy + 1) * wider])
        factor.append(mine.repeat_interleave(width))
    return Axis(torch.cat(index), torch.cat(factor))


def _rotating_rows(plan: Plan, heads: list[int]) -> Tensor:
    """For each row of the target's query or key heads the source's row, or -1. int64[n].

    Frequency i of the source, base^(-i / half), is frequency r i of heads r times as wide.
    """
    width, wide, wider = plan.source.head_dim, plan.target.head_dim, plan.times("head_dim")
    rows = torch.full((len(heads), 2, wide // 2), -1, dtype=torch.int64)
    places = torch.arange(width).view(2, width // 2)
    for at, head in enumerate(heads):
        rows[at, :, ::wider] = head * width + places
    return rows.flatten()


def _qkv(plan: Plan, prefix: str, stored: Tensor, draw: torch.Generator) -> Tensor:
    source, target = plan.source, plan.target
    sizes = [source.heads * source.head_dim] + 2 * [source.kv_heads * source.head_dim]
    q, k, v = torch.split(stored.float(), sizes)
    scale = math.sqrt(plan.times("head_dim"))  # logits are divided by the root of a wider head
    queries = _rotating_rows(plan, [_query_head(plan, h)[0] for h in range(target.heads)])
    keys = _rotating_rows(plan, [_kv_head(plan, h) for h in range(target.kv_heads)])
    values = [
        (_kv_head(plan, h) * source.head_dim + torch.arange(source.head_dim)).repeat(
            plan.times("head_dim")
        )
        for h in range(target.kv_heads)
    ]
    repeated, gain = torch.cat(values), _gain(plan)
    value_rows = Axis(repeated, torch.full((len(repeated),), gain))
    grown_q = _seen(plan, q / gain, queries, scale, draw)
    grown_k = _seen(plan, k * gain, keys, 1.0, draw)
    name = f"{prefix}qkv.weight"
    return torch.cat(
        [grown_q, grown_k, expand(name, v.to(stored.dtype), (value_rows, plan.stream))]
    )


def _gain(plan: Plan) -> float:
    """What keys and values are larger by, and queries and the readers of values smaller: a power of
    two that brings the largest parts of all three together. The matrix is packed as one, and its
    largest element stays that of the source."""
    portions = _portions(math.sqrt(plan.times("head_dim")), plan.pairs)
    ratio = max(portions, default=1.0) / max(shares(plan.pairs))
    return 2.0 ** max(0, math.floor(math.log2(ratio) / 2))


def _seen(plan: Plan, weight: Tensor, rows: Tensor, scale: float, draw: torch.Generator) -> Tensor:
    """Rows of ``weight`` [n, d] times ``scale``, shared among the pairs; where ``rows`` is -1 a row
    that weighs the pairs against each other and so sees nothing. bf16[n', d']."""
    pairs, width = plan.pairs, weight.shape[1]
    grown = torch.empty(len(rows), pairs, 2, width, dtype=torch.bfloat16)
    real = rows >= 0
    grown[real] = _split(weight * 0.5, scale, pairs)[:, rows[real]].movedim(0, 1).unsqueeze(2)
    blind = int((~real).sum())
    if blind:
        # Even, not normal: no element may exceed the matrix's largest, which sets its scale.
        size = float(weight.square().mean().sqrt()) / (2 * pairs)
        drawn = (2 * torch.rand(blind, width, generator=draw) - 1) * size
        signs = torch.tensor([1.0, -1.0]).repeat(pairs // 2).view(1, pairs, 1, 1)
        grown[~real] = (signs * drawn.view(blind, 1, 1, width)).to(torch.bfloat16)
    return grown.view(len(rows), -1)


def _split(weight: Tensor, scale: float, parts: int) -> Tensor:
    """``parts`` bf16 matrices that sum to ``scale`` times ``weight``. bf16[parts, n, d].

    Most are ``weight`` times a power of two. Where those do not add up to the scale, as for the
    root of 2, the last but one takes the difference, and the last one what rounding that left:
    within 2^-21 of every element, 2^-18 for 2 parts.
    """
    exact, portions = weight.double() * scale, _portions(scale, parts)
    made = [(weight * portion).to(torch.bfloat16) for portion in portions]
    while len(made) < parts:
        left = exact - sum((part.double() for part in made), torch.zeros_like(exact))
        made.append(left.to(torch.bfloat16))
    return torch.stack(made)


def _portions(scale: float, parts: int) -> list[float]:
    """Powers of two that sum to ``scale`` if it is one; else 2 fewer, that sum to 1.5 times the
    power below it: none for 2 parts."""
    whole = 2.0 ** math.floor(math.log2(scale))
    if scale == whole:
        return [whole * share for share in shares(parts)]
    if parts == 2:
        return []
    halves = max(1, (parts - 2) // 3)
    powers = [*shares(parts - 2 - halves), *(share / 2 for share in shares(halves))]
    return [whole * power for power in powers]


# -- new layers ----------------------------------------------------------------------------------


def write_size(plan: Plan, stored: Mapping[str, Tensor]) -> float:
    """RMS that each matrix of a new layer aims at when it writes, a power of two.

    Together they stay below `HIDDEN_WRITES` of a token, whose power is estimated from the weights:
    a LayerNorm of unit variance, its gain and bias, and the projection.
    """
    weight, bias = stored["fusion.out.weight"].float(), stored["fusion.out.bias"].float()
    gain, shift = stored["fusion.norm.weight"].float(), stored["fusion.norm.bias"].float()
    power = ((weight * gain).square().sum(1) + (weight @ shift + bias).square()).mean()
    if not 0 < float(power) < math.inf:
        raise CheckpointError("fusion.out.weight makes no token; repair the checkpoint")
    count = 2 * max(1, plan.target.layers - plan.source.layers)
    return 2.0 ** math.floor(math.log2(float(power.sqrt()) * HIDDEN_WRITES / math.sqrt(count)))


def new_layer(plan: Plan, size: float, draw: torch.Generator) -> dict[str, Tensor]:
    """Tensors of a layer that reads as any random one does, and writes to each pair of copies one
    vector and its negative, ``size`` large: readers add the two."""
    config = plan.target
    d, ones = config.d_model, torch.ones(config.d_model, dtype=torch.bfloat16)

    def reads(rows: int) -> Tensor:
        return (torch.randn(rows, d, generator=draw) / math.sqrt(d)).to(torch.bfloat16)

    def writes(columns: int) -> Tensor:
        shape = (plan.pairs, 1, plan.source.d_model, columns)
        drawn = torch.randn(shape, generator=draw) * (size / math.sqrt(columns))
        half = drawn.to(torch.bfloat16)
        return torch.cat([half, -half], dim=1).view(d, columns)

    return {
        "attention_norm.weight": ones,
        "qkv.weight": reads(config.qkv_dim),
        "out.weight": writes(config.heads * config.head_dim),
        "mlp_norm.weight": ones.clone(),
        "gate_up.weight": reads(2 * config.ffn),
        "down.weight": writes(config.ffn),
    }
