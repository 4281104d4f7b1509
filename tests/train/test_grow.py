"""Growing: the same function, weights that are weights, the same bits per seed, rules that hold."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.train.growing import EXACT, PRESET, WINDOW, grown, larger, outputs, quiet, small, stepped
from wmrt.core.errors import CheckpointError, UsageError
from wmrt.model.checkpoint import Checkpoint
from wmrt.model.config import PRESETS
from wmrt.model.random_init import is_random, random_checkpoint
from wmrt.model.rope import turn_increments
from wmrt.quant import get_recipe, quantize
from wmrt.runtime.build import float_network, pack_network, to_checkpoint
from wmrt.train.grow import grow
from wmrt.train.grow_axes import expand, reading, shares
from wmrt.train.grow_blocks import HIDDEN_WRITES
from wmrt.train.grow_check import matrices
from wmrt.train.grow_plan import plan
from wmrt.train.grow_walk import random_streams

STEPS = 2 * WINDOW + 3


def furthest(expected: dict[str, Tensor], got: dict[str, Tensor]) -> float:
    """Largest difference of any output, relative to the RMS of that output."""
    assert expected.keys() == got.keys()
    return max(
        float((got[name] - e).abs().max() / e.square().mean().sqrt())
        for name, e in expected.items()
    )


@pytest.mark.parametrize("name", list(EXACT))
def test_what_powers_of_two_can_do_is_exact(name: str, seed: int) -> None:
    """In float64, whose rounding (2^-53) no depth of this network brings near 2^-30; a share that
    is off by one bit of bf16 would show at 2^-9."""
    source = small(seed)
    streams = random_streams(source.schema, 2, 3, STEPS, seed)
    made = grown(source, seed, **EXACT[name]).checkpoint
    assert furthest(outputs(source, streams), outputs(made, streams)) < 2.0**-30


def test_the_ratios_of_the_large_preset(seed: int) -> None:
    """Two approximations remain, the root of 2 (2^-18) and the power of the new layers (2^-18), and
    this network of random weights turns them into at most some hundred times as much."""
    source = small(seed)
    streams = random_streams(source.schema, 2, 3, STEPS, seed)
    made = grown(source, seed, **PRESET).checkpoint
    assert furthest(outputs(source, streams), outputs(made, streams)) < 2.0**-10


@torch.no_grad()
def test_actions_in_float32(seed: int) -> None:
    source = small(seed)
    streams = random_streams(source.schema, 2, 4, 3 * WINDOW, seed)
    made = grown(source, seed, **PRESET).checkpoint
    expected, got = (outputs(c, streams, torch.float32)["action"] for c in (source, made))
    first, second = expected.topk(2).values.unbind(-1)
    clear = first - second > 2 * (expected - got).abs().max()  # no tie for the most likely bin
    head = float_network(source).action_head
    difference = (head.decode(expected) - head.decode(got)).abs()
    assert float(clear.float().mean()) > 0.9
    assert float(difference[clear].max()) < 1e-4


def test_no_matrix_holds_zeros(seed: int) -> None:
    made = grown(small(seed), seed, **PRESET).checkpoint
    for matrix in matrices(made):
        assert matrix.zeros < 0.01 and not matrix.zero_rows and not matrix.zero_columns, matrix


@torch.no_grad()
def test_every_layer_writes_and_new_ones_are_not_read(seed: int) -> None:
    """Without its writes any layer leaves other keys behind; only the source's change actions."""
    source = small(seed)
    made = grown(source, seed, **PRESET)
    layers = made.plan.target.layers
    streams = random_streams(source.schema, 2, 2, 4, seed)
    network = float_network(made.checkpoint)
    hidden, ring = stepped(network, streams, torch.float32)
    logits = network.action_head(hidden)
    real = [made.plan.layer_of(layer) for layer in range(2)]
    assert real == [2, 6]
    for layer in range(layers):
        ablated = dict(made.checkpoint.tensors)
        for name in ("out", "down"):
            key = f"blocks.{layer}.{name}.weight"
            ablated[key] = torch.zeros_like(ablated[key])
        without = float_network(_with(made.checkpoint, ablated))
        other, its_ring = stepped(without, streams, torch.float32)
        assert torch.equal(its_ring.keys[: layer + 1], ring.keys[: layer + 1])
        for after in range(layer + 1, layers):
            changed = (its_ring.keys[after] != ring.keys[after]).float().mean()
            assert changed > 0.3, (layer, after)  # of W slots, 4 are written
        assert not torch.equal(other, hidden)
        difference = float((without.action_head(other) - logits).abs().max())
        assert (difference > 1e-2) == (layer in real), (layer, difference)


def _with(checkpoint: Checkpoint, tensors: dict[str, Tensor]) -> Checkpoint:
    return Checkpoint(checkpoint.schema, checkpoint.model, checkpoint.actions, None, {}, tensors)


def test_new_layers_write_to_pairs_and_little(seed: int) -> None:
    made = grown(small(seed), seed, **PRESET)
    for layer in set(range(7)) - {2, 6}:
        for name in ("out", "down"):
            weight = made.checkpoint.tensors[f"blocks.{layer}.{name}.weight"]
            pairs = weight.view(made.plan.pairs, 2, made.plan.source.d_model, -1)
            assert torch.equal(pairs[:, 0], -pairs[:, 1])
            assert not torch.equal(pairs[0, 0].abs(), pairs[1, 0].abs())
    assert HIDDEN_WRITES**2 / 2 < 2.0**-18


@pytest.mark.parametrize("recipe", ["nvfp4", "mxfp4"])
def test_4_bit_codes_are_the_sources(recipe: str, seed: int) -> None:
    """A block along K lies within one copy and is the source's block times a power of two."""
    source = small(seed)
    made = grown(source, seed, **PRESET)
    d, ffn = made.plan.writes("d_model"), made.plan.writes("ffn").blocks(2, 48)
    axes = {"gate_up": (ffn, made.plan.stream), "down": (d, made.plan.reads("ffn"))}
    for name, (rows, columns) in axes.items():
        weight = source.tensors[f"blocks.1.{name}.weight"].float()
        large = made.checkpoint.tensors[f"blocks.6.{name}.weight"].float()
        packed = quantize(weight, recipe).dequantize()
        expected = packed[rows.index][:, columns.index] * columns.factor
        if recipe == "mxfp4" and name == "down":
            # 48 columns end in half a block of 32 of the source, not of the copies.
            expected, large = expected[:, :32], quantize(large, recipe).dequantize()[:, :32]
            assert torch.equal(large, expected)
            continue
        assert torch.allclose(quantize(large, recipe).dequantize(), expected, rtol=2.0**-20, atol=0)


def test_one_seed_one_checkpoint(seed: int) -> None:
    source = small(seed)
    before = torch.get_rng_state()
    first, again, other = (grown(source, s, **PRESET).checkpoint for s in (seed, seed, seed + 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert first.provenance == again.provenance
    assert all(torch.equal(t, again.tensors[name]) for name, t in first.tensors.items())
    for name in ("blocks.0.qkv.weight", "blocks.6.qkv.weight"):  # new rows in the source's layers
        assert not torch.equal(first.tensors[name], other.tensors[name])
    assert not torch.equal(
        first.tensors["blocks.0.down.weight"], first.tensors["blocks.1.down.weight"]
    )
    for name, tensor in source.tensors.items():
        assert tensor.is_floating_point() and bool(torch.isfinite(first.tensors[name]).all())


def test_it_says_where_it_is_from(seed: int) -> None:
    source = small(seed)
    made = grown(source, 5, **PRESET).checkpoint
    network = float_network(made)
    assert made.provenance["env"] == source.provenance["env"]
    assert made.provenance["parameters"] == sum(p.numel() for p in network.parameters())
    assert "no added skill" in made.provenance["grown"]
    origin = made.provenance["grown_from"]
    assert origin["weights_sha256"] == source.weights_sha256
    assert (origin["seed"], origin["layers"]) == (5, [2, 6])
    assert origin["kept"] == {"table_groups": [16, 4]}
    assert made.schema is source.schema and made.actions is source.actions
    config = larger(source)
    random = grow(
        random_checkpoint("tiny", config, source, 1),
        "x",
        larger(source, **EXACT["width"]),
        1,
        quiet,
    )
    assert is_random(random.checkpoint)


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"d_model": 16}, "d_model 16 is below the source's 32"),
        ({"d_model": 130}, "d_model 130 must be a multiple of the source's 32"),
        ({"d_model": 64}, "d_model 64 must be 4, 8, 12, ... times"),
        ({"layers": 1}, "layers 1 is below the source's 2"),
        ({"ffn": 100}, "ffn 100 must be a multiple of the source's 48"),
        ({"head_dim": 24}, "head_dim 24 must be 1, 2, 4, ... times"),
        (
            {"heads": 12, "kv_heads": 4},
            "heads per KV head, 3, must be a multiple of the source's 2",
        ),
        ({"heads": 6, "kv_heads": 2}, "heads 6 must be a multiple"),
        ({"select_dim": 8}, "select_dim 8 must be 1, 4, 16"),
        ({"select_dim": 36}, "select_dim 36 must be 1, 4, 16"),
        ({"action_knots": 4}, "action_knots - 1 = 3 must be a multiple of the source's 4"),
        ({"action_knots": 9}, "action_embed has 1 times"),
        ({"action_embed": 24}, "action_embed has 3 times"),
    ],
)
def test_a_size_it_cannot_reach_names_the_rule(
    changes: dict[str, Any], rule: str, seed: int
) -> None:
    with pytest.raises(UsageError, match=rule.replace(".", r"\.")):
        grown(small(seed), seed, **{"d_model": 128, **changes})


def test_a_source_it_cannot_divide(seed: int) -> None:
    source = small(seed)
    recipe = get_recipe("nvfp4")
    packed = to_checkpoint(pack_network(float_network(source), recipe), recipe, {})
    with pytest.raises(UsageError, match="packed"):
        grown(packed, seed, d_model=128)
    for bad in (float("nan"), float("inf"), 2.0**-133):
        tensors = {k: t.clone() for k, t in source.tensors.items()}
        tensors["blocks.1.down.weight"][3, 4] = bad
        with pytest.raises(CheckpointError, match=r"blocks\.1\.down\.weight"):
            grown(_with(source, tensors), seed, d_model=128, ffn=96)
    missing = {k: t for k, t in source.tensors.items() if k != "norm.weight"}
    with pytest.raises(CheckpointError, match=r"norm\.weight"):
        grown(_with(source, missing), seed, d_model=128)


def test_shares() -> None:
    for count in range(1, 70):
        found = shares(count)
        assert len(found) == count and sum(found) == 1
        assert max(found) <= 2 * min(found)
        assert all((1 / share).is_integer() and int(1 / share).bit_count() == 1 for share in found)
    assert sorted(shares(9)) == [1 / 16] * 2 + [1 / 8] * 7
    assert torch.equal(
        expand("x", torch.tensor([8.0, 16.0], dtype=torch.bfloat16), (reading(2, 3),)).float(),
        torch.tensor([4.0, 8.0, 2.0, 4.0, 2.0, 4.0]),
    )


def test_the_shipped_sizes_grow_to_the_large_preset() -> None:
    for name in ("mini", "small"):
        made = plan(PRESETS[name], PRESETS["1.3b"], 2)
        target, large = made.target, PRESETS["1.3b"]
        trunk = "d_model layers heads kv_heads head_dim ffn".split()
        assert all(getattr(target, key) == getattr(large, key) for key in trunk)
        assert made.kept(large) == {"table_groups": [16, 8]}
    wider = turn_increments(64, 1000.0)[::2]
    assert torch.equal(turn_increments(32, 1000.0), wider)  # the source's frequencies, bit for bit
