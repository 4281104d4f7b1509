"""Where scales fold into a layer without changing what it computes.

Four places: each norm into the linear behind it, the values into `out` (one scale per channel of a
KV head, shared by the query heads that read it), and the up rows of `gate_up` into `down`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from wmrt.model.linear import Linear
from wmrt.model.rotation import value_columns, value_rows
from wmrt.model.trunk import Block, RMSNorm
from wmrt.quant.scaling import Fold

#: Told the name of a linear whose output rows were divided, and by what: float32[N].
Divided = Callable[[str, Tensor], None]


def block_folds(block: Block, prefix: str, divided: Divided) -> list[Fold]:
    """The folds of one float layer, in the order of its linears; names start with ``prefix``."""
    return [
        _norm_fold(block.attention_norm, block.qkv, f"{prefix}qkv"),
        _value_fold(block, prefix, divided),
        _norm_fold(block.mlp_norm, block.gate_up, f"{prefix}gate_up"),
        _up_fold(block, prefix, divided),
    ]


def _norm_fold(norm: RMSNorm, reader: Linear, name: str) -> Fold:
    def apply(scale: Tensor) -> None:
        # The norm's weight is stored in bfloat16. The reader takes up what that rounding left, so
        # the product of the two stays what it was to float32 rounding.
        before = norm.weight.data
        after = (before / scale).to(torch.bfloat16).float()
        _weight(reader).mul_(torch.where(after != 0, before / after, torch.ones_like(after)))
        norm.weight.data = after

    return Fold(name, torch.arange(reader.in_features), apply)


def _value_fold(block: Block, prefix: str, divided: Divided) -> Fold:
    heads, width = block.kv_heads, block.head_dim
    channels = torch.arange(heads * width).view(heads, 1, width)
    shared = channels.expand(heads, block.heads // heads, width)

    def apply(scale: Tensor) -> None:
        scales = scale.view(heads, width)
        value_rows(block).div_(scales.unsqueeze(-1))
        value_columns(block).mul_(scales.unsqueeze(1))
        rows = torch.ones(block.qkv.out_features)
        rows[-scale.numel() :] = scale
        divided(f"{prefix}qkv", rows)

    return Fold(f"{prefix}out", shared.flatten(), apply)


def _up_fold(block: Block, prefix: str, divided: Divided) -> Fold:
    size = block.down.in_features

    def apply(scale: Tensor) -> None:
        _weight(block.gate_up)[size:].div_(scale.unsqueeze(-1))
        _weight(block.down).mul_(scale)
        divided(f"{prefix}gate_up", torch.cat([torch.ones(size), scale]))

    return Fold(f"{prefix}down", torch.arange(size), apply)


def _weight(linear: Linear) -> Tensor:
    assert linear.weight is not None  # a packed linear has none, and nothing here takes one
    return linear.weight.data
