"""The check of a grown network: the numbers of a real step, and it refuses what it should."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.model.networks import schemas
from tests.runtime.models import tiny
from tests.train.growing import PRESET, SMALL, WINDOW, grown, quiet, small, stepped
from wmrt.model.checkpoint import Checkpoint
from wmrt.quant import get_recipe
from wmrt.runtime.build import float_network, pack_network
from wmrt.train.grow_check import check
from wmrt.train.grow_walk import random_streams, walk

STEPS = 2 * WINDOW + 3


@pytest.mark.parametrize("recipe", [None, "nvfp4"])
def test_layer_after_layer_is_step_after_step(recipe: str | None, seed: int) -> None:
    """To the rounding of sums, in float32 some 2^-18 through layers of random weights. With codes
    in between, half of which may then round the other way, most hidden states stay that close."""
    source = small(seed)
    streams = random_streams(source.schema, 2, 3, STEPS, seed)
    for checkpoint in (source, grown(source, seed, **PRESET).checkpoint):
        network = float_network(checkpoint)
        if recipe is not None:
            pack_network(network, get_recipe(recipe))
        expected, _ = stepped(network, streams, torch.float32)
        before = torch.get_rng_state()
        apart = (walk(checkpoint, streams, quiet, recipe).hidden - expected).abs().amax(-1)
        assert float(apart.quantile(1.0 if recipe is None else 0.5)) < 2.0**-12
        assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", list(schemas()))
def test_random_states_of_any_schema(name: str, seed: int) -> None:
    schema = schemas()[name]
    streams = random_streams(schema, 2, 4, 9, seed)
    assert streams.shape == (4, 9)
    again = random_streams(schema, 2, 4, 9, seed)
    assert torch.equal(streams.codes, again.codes) and torch.equal(streams.values, again.values)
    source = tiny(seed, schema, **SMALL)
    report = check(source, grown(source, seed, d_model=128).checkpoint, streams)
    assert report.float32.action < 1e-4 and report.failures == []


def test_packed_it_stays_near_its_packed_source(seed: int) -> None:
    """Copies keep the codes of the source; what differs is rounding, and the new layers' writes."""
    source = tiny(seed)
    sizes = {"d_model": 512, "layers": 4, "heads": 8, "kv_heads": 2, "head_dim": 64, "ffn": 9 * 128}
    made = grown(source, seed, **sizes).checkpoint
    streams = random_streams(source.schema, 2, 2, 6, seed)
    exact, packed = (
        walk(source, streams, recipe=r).hidden.repeat(1, 1, 8) for r in (None, "nvfp4")
    )
    own = (packed - exact).square().mean(-1).sqrt()
    apart = (walk(made, streams, recipe="nvfp4").hidden - packed).square().mean(-1).sqrt()
    assert float(apart.median()) < 0.25 * float(own.median())  # 0.06 over many seeds


def test_what_it_reports(seed: int) -> None:
    source = small(seed)
    streams = random_streams(source.schema, 2, 2, STEPS, seed)
    assert streams.joined(streams).shape == (4, STEPS)
    parts: list[str] = []
    made = grown(source, seed, **PRESET)
    report = check(source, made.checkpoint, streams, lambda done, total, part: parts.append(part))
    assert parts == [f"layer {i}" for i in range(7)]
    assert (report.robots, report.steps, report.window) == (2, STEPS, WINDOW)
    found = report.float32
    assert 0 < found.logit < 1e-3 * found.logit_rms
    assert found.selections == 0 and found.recipe is None
    assert found.action_rms <= found.action <= found.chunk
    assert report.most_zeros.zeros < 0.01
    for layer, write in enumerate(report.writes):
        limit = 2.0**-9 if layer not in (2, 6) else float("inf")
        assert 0 < write.attention < limit and 0 < write.mlp < limit and write.changed > 0.9
    assert report.to_json()["writes"][0]["mlp"] == report.writes[0].mlp


def _changed(checkpoint: Checkpoint, name: str, value: Tensor) -> Checkpoint:
    return replace(checkpoint, tensors={**checkpoint.tensors, name: value})


def test_it_refuses_what_is_not_the_source(seed: int) -> None:
    source = small(seed)
    streams = random_streams(source.schema, 2, 2, STEPS, seed)
    made = grown(source, seed, **PRESET).checkpoint

    def failures(name: str, value: Tensor) -> str:
        return "; ".join(check(source, _changed(made, name, value), streams).failures)

    def stored(name: str) -> Tensor:
        return made.tensors[name].clone()

    assert "actions differ" in failures("norm.weight", stored("norm.weight") * 2)
    out = "blocks.0.out.weight"
    assert "[0] add nothing" in failures(out, torch.zeros_like(stored(out)))
    gap = stored("blocks.3.down.weight")
    gap[5] = 0
    assert "blocks.3.down.weight has 1 zero rows" in failures("blocks.3.down.weight", gap)
    sparse = stored("blocks.4.gate_up.weight")
    sparse[:, ::2] = sparse[:, ::2].where(torch.rand(sparse[:, ::2].shape) > 0.5, 0)
    assert "zeros" in failures("blocks.4.gate_up.weight", sparse)
    broken = stored("blocks.1.down.weight")
    broken[0, 0] = float("nan")
    assert "actions differ by inf" in failures("blocks.1.down.weight", broken)
