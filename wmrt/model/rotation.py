"""Hadamard rotation of a network, absorbed into its weights: the same function, rounder weights.

The residual stream x becomes x R. Whoever writes it (the token's parts, `out`, `down`) gets R on
its output side, whoever reads it (the selector's keys, `qkv`, `gate_up`, both heads) on its input
side. An RMSNorm commutes with R once its weight is part of the linears behind it. The values of
each KV head are rotated too, undone by `out` in every query head that shares them. Queries and keys
are not: RoPE does not commute with a rotation. Neither is the input of `down`, behind a product.

Nothing is left to compute at run time (QuaRot, Ashkboos et al. 2024, section 4.1).
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from wmrt.model.linear import Linear
from wmrt.model.network import Network
from wmrt.model.trunk import Block, RMSNorm
from wmrt.quant.hadamard import Rotation, random_rotation

#: Distance between the seeds of two layers' value rotations; the residual stream's has layer -1.
_STRIDE = 1_000_003


def residual_rotation(network: Network, seed: int) -> Rotation:
    """R of the residual stream under ``seed``."""
    return random_rotation(network.config.d_model, seed * _STRIDE)


@torch.no_grad()
def rotate_network(network: Network, seed: int) -> Network:
    """Rotate a whole float network in place; its hidden states are h R afterwards, its actions and
    predictions the same up to float32 rounding. Returns it."""
    rotation = residual_rotation(network, seed)
    rotate_token(network, rotation)
    for layer, block in enumerate(network.blocks):
        rotate_block(cast(Block, block), rotation, seed, layer)
    rotate_heads(network, rotation)
    return network


@torch.no_grad()
def rotate_token(network: Network, rotation: Rotation) -> None:
    """What writes the token, and the selector's keys, which read it before any norm."""
    fusion = network.fusion
    _turn(fusion.out.weight, rotation, 0)
    _turn(fusion.out.bias, rotation, 0)
    _turn(fusion.memory.table, rotation, 1)
    _turn(fusion.action_in.weight, rotation, 0)
    _turn(network.selector.key.weight, rotation, 1)


@torch.no_grad()
def rotate_block(block: Block, rotation: Rotation, seed: int, layer: int) -> None:
    """One layer, its norms folded into `qkv` and `gate_up`; its value heads by rotations of their
    own under (``seed``, ``layer``)."""
    absorb_norm(block.attention_norm, _weight(block.qkv))
    absorb_norm(block.mlp_norm, _weight(block.gate_up))
    for reader in (block.qkv, block.gate_up):
        _turn(_weight(reader), rotation, 1)
    for writer in (block.out, block.down):
        _turn(_weight(writer), rotation, 0)
    values, columns = value_rows(block), value_columns(block)
    for head in range(block.kv_heads):
        own = random_rotation(block.head_dim, seed * _STRIDE + 1 + layer * block.kv_heads + head)
        values[head].copy_(own.apply(values[head], 0))
        columns[:, head].copy_(own.apply(columns[:, head]))


@torch.no_grad()
def rotate_heads(network: Network, rotation: Rotation) -> None:
    """The final norm folded into both heads, and what they read turned back by them."""
    first, width = cast(nn.Linear, network.dynamics.body[0]), network.config.d_model
    for reader in (_weight(network.action_head.hidden), first.weight[:, :width]):
        reader.mul_(network.norm.weight)
        reader.copy_(rotation.apply(reader))
    network.norm.weight.fill_(1.0)


@torch.no_grad()
def absorb_norm(norm: RMSNorm, reader: Tensor) -> None:
    """Move a norm's weight into the columns of the one matrix that reads it."""
    reader.mul_(norm.weight)
    norm.weight.fill_(1.0)


def value_rows(block: Block) -> Tensor:
    """The rows of `qkv` that make values: a view [KV, hd, d]."""
    start = (block.heads + block.kv_heads) * block.head_dim
    return _weight(block.qkv)[start:].view(block.kv_heads, block.head_dim, -1)


def value_columns(block: Block) -> Tensor:
    """The columns of `out` by the value they read: a view [d, KV, H / KV, hd]."""
    shared = block.heads // block.kv_heads
    return _weight(block.out).view(-1, block.kv_heads, shared, block.head_dim)


def _weight(linear: Linear) -> Tensor:
    assert linear.weight is not None  # a packed linear has none, and nothing here takes one
    return linear.weight.data


def _turn(tensor: Tensor, rotation: Rotation, dim: int) -> None:
    tensor.copy_(rotation.apply(tensor, dim))
