"""Rotating a network changes its weights and its hidden basis, and nothing it decides."""

from __future__ import annotations

import pytest
import torch

from tests.model.networks import stream
from tests.model.transforms import NOISE, same_function, smooth_network
from wmrt.model.rotation import residual_rotation, rotate_network, value_columns, value_rows

SHAPES = [
    {},
    {"heads": 4, "kv_heads": 2, "head_dim": 16},
    # no powers of two: three blocks of 32, and heads of 6 in blocks of 2
    {"d_model": 96, "heads": 6, "kv_heads": 3, "head_dim": 6},
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("selector", ["learned", "full"])
def test_the_function_stays(shape: dict[str, int], selector: str, seed: int) -> None:
    network = smooth_network(seed, selector=selector, **shape)
    same_function(network, lambda n: rotate_network(n, seed), seed)


def test_the_hidden_state_is_rotated_and_norms_are_gone(seed: int) -> None:
    network = smooth_network(seed)
    codes, values, previous = stream(network, 2, 20, seed)
    with torch.no_grad():
        before, _ = network(codes, values, previous)
        weight = network.norm.weight.clone()
        rotate_network(network, seed)
        after, _ = network(codes, values, previous)
    expected = residual_rotation(network, seed).apply(before / weight)
    assert float((after - expected).abs().max()) < 64 * NOISE * float(expected.abs().max())
    for name, parameter in network.named_parameters():
        if name.endswith("norm.weight") and "fusion" not in name:
            assert torch.equal(parameter, torch.ones_like(parameter)), name


def test_every_weight_that_touches_the_stream_moves_and_no_other(seed: int) -> None:
    network = smooth_network(seed)
    before = {name: p.clone() for name, p in network.named_parameters()}
    rotate_network(network, seed)
    moved = {n for n, p in network.named_parameters() if not torch.equal(p, before[n])}
    layers = range(network.config.layers)
    expected = {
        "fusion.out.weight", "fusion.out.bias", "fusion.memory.table", "fusion.action_in.weight",
        "selector.key.weight", "norm.weight", "action_head.hidden.weight", "dynamics.body.0.weight",
    }  # fmt: skip
    parts = ("attention_norm", "qkv", "out", "mlp_norm", "gate_up", "down")
    expected |= {f"blocks.{i}.{part}.weight" for i in layers for part in parts}
    assert moved == expected


def test_value_views_are_the_rows_and_columns_that_meet(seed: int) -> None:
    network = smooth_network(seed, heads=4, kv_heads=2, head_dim=16)
    block, config = network.blocks[0], network.config
    rows, columns = value_rows(block), value_columns(block)  # type: ignore[arg-type]
    assert rows.shape == (2, 16, config.d_model) and columns.shape == (config.d_model, 2, 2, 16)
    qkv, out = block.qkv.weight, block.out.weight  # type: ignore[union-attr]
    assert torch.equal(rows[1, 3], qkv[(4 + 2 + 1) * 16 + 3])  # type: ignore[index]
    assert torch.equal(columns[:, 1, 0, 3], out[:, 2 * 16 + 3])  # type: ignore[index]


def test_a_layer_has_value_rotations_of_its_own(seed: int) -> None:
    network = smooth_network(seed)
    first, second = network.blocks[0], network.blocks[1]
    second.load_state_dict(first.state_dict())
    rotate_network(network, seed)
    assert not torch.equal(value_rows(first), value_rows(second))  # type: ignore[arg-type]
