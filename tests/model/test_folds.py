"""Scales folded into a layer leave what it computes, exactly where that can be."""

from __future__ import annotations

from typing import cast

import pytest
import torch
from torch import Tensor

from tests.model.transforms import same_function, smooth_network
from wmrt.model.folds import block_folds
from wmrt.model.network import Network
from wmrt.model.rotation import rotate_network
from wmrt.model.trunk import Block

NAMES = ["a.qkv", "a.out", "a.gate_up", "a.down"]


def _ignore(name: str, rows: Tensor) -> None:
    pass


def drawn(width: int, generator: torch.Generator) -> Tensor:
    """Scales over four powers of two, as searches find them."""
    return torch.exp2(torch.rand(width, generator=generator) * 4 - 2)


def scale_everything(network: Network, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for block in network.blocks:
            for fold in block_folds(cast(Block, block), "a.", _ignore):
                fold.apply(drawn(int(fold.channels.max()) + 1, generator))


@pytest.mark.parametrize("shape", [{}, {"heads": 4, "kv_heads": 2, "head_dim": 16}])
@pytest.mark.parametrize("rotated", [False, True])
def test_the_function_stays(shape: dict[str, int], rotated: bool, seed: int) -> None:
    network = smooth_network(seed, **shape)
    if rotated:
        rotate_network(network, seed)
    same_function(network, lambda n: scale_everything(n, seed), seed)


def test_a_scaled_norm_is_stored_without_loss(seed: int) -> None:
    network = smooth_network(seed)
    scale_everything(network, seed)
    for block in network.blocks:
        for norm in (cast(Block, block).attention_norm, cast(Block, block).mlp_norm):
            assert torch.equal(norm.weight, norm.weight.to(torch.bfloat16).float())


def test_each_column_has_the_scale_of_what_writes_it(seed: int) -> None:
    network = smooth_network(seed, heads=4, kv_heads=2, head_dim=16)
    block = cast(Block, network.blocks[0])
    folds = block_folds(block, "a.", _ignore)
    assert [fold.reader for fold in folds] == NAMES
    qkv, out, gate_up, down = (fold.channels for fold in folds)
    width = network.config.d_model
    assert torch.equal(qkv, torch.arange(width)) and torch.equal(gate_up, torch.arange(width))
    assert torch.equal(down, torch.arange(network.config.ffn))
    heads = torch.arange(64).view(4, 16)  # query heads 0 and 1 read KV head 0, 2 and 3 read 1
    assert torch.equal(out.view(4, 16), heads % 16 + heads // 32 * 16)


def test_the_divided_rows_are_told(seed: int) -> None:
    network = smooth_network(seed, heads=4, kv_heads=2, head_dim=16)
    block, told = cast(Block, network.blocks[0]), {}
    folds = block_folds(block, "a.", lambda name, rows: told.update({name: rows}))
    linears = {"a.qkv": block.qkv, "a.gate_up": block.gate_up}
    before = {name: cast(Tensor, linear.weight).clone() for name, linear in linears.items()}
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for fold in (folds[1], folds[3]):
            fold.apply(torch.exp2(torch.randint(-3, 4, (int(fold.channels.max()) + 1,),
                                                generator=generator)))  # fmt: skip
    assert told.keys() == linears.keys()
    for name, linear in linears.items():  # powers of two divide exactly
        assert torch.equal(cast(Tensor, linear.weight) * told[name].unsqueeze(1), before[name])
        assert not torch.equal(cast(Tensor, linear.weight), before[name])


def test_a_dead_channel_stays_dead(seed: int) -> None:
    network = smooth_network(seed)
    block = cast(Block, network.blocks[0])
    with torch.no_grad():
        block.mlp_norm.weight[3] = 0.0
        fold = block_folds(block, "a.", _ignore)[2]
        fold.apply(torch.full((network.config.d_model,), 0.5))
    assert block.mlp_norm.weight[3] == 0.0
    assert bool(torch.isfinite(cast(Tensor, block.gate_up.weight)).all())
