"""Random checkpoints: labelled, complete, the same bits per seed, and sane however deep."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.model.networks import ACTIONS, small_schema, stream
from tests.runtime.models import tiny
from wmrt.core.errors import UsageError
from wmrt.model.config import PRESETS, ModelConfig, preset
from wmrt.model.network import Network
from wmrt.model.random_init import is_random, random_checkpoint, random_tensors
from wmrt.model.schema import StateSchema, category, numeric
from wmrt.runtime.build import float_network

CONFIG = preset("tiny").with_(dropout=0.0)


def test_it_is_a_complete_checkpoint_that_says_what_it_is(seed: int) -> None:
    like = tiny(seed)
    made = random_checkpoint("tiny", CONFIG, like, seed)
    network = float_network(made)  # strict: every tensor there, of its shape and dtype
    assert is_random(made) and not is_random(like)
    assert (made.schema, made.actions, made.quantization) == (like.schema, like.actions, None)
    assert made.provenance["parameters"] == sum(p.numel() for p in network.parameters())
    assert made.provenance["env"] == like.provenance["env"]
    for name in ("delta_scale", "delta_limit", "fill", "reward_scale"):
        assert torch.equal(getattr(network.dynamics, name), like.tensors[f"dynamics.{name}"])


def test_one_seed_one_checkpoint(seed: int) -> None:
    like = tiny(seed)
    torch.manual_seed(seed)
    before = torch.get_rng_state()
    first = random_checkpoint("tiny", CONFIG, like, seed).tensors
    assert torch.equal(torch.get_rng_state(), before)  # the global generator is left as it was
    torch.manual_seed(seed + 1)
    again = random_checkpoint("tiny", CONFIG, like, seed).tensors
    other = random_checkpoint("tiny", CONFIG, like, seed + 1).tensors
    assert first.keys() == again.keys() == other.keys()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["blocks.0.qkv.weight"], other["blocks.0.qkv.weight"])
    assert not torch.equal(first["blocks.0.qkv.weight"], first["blocks.1.qkv.weight"])


@pytest.mark.parametrize("layers", [1, 24])
def test_activations_stay_near_a_token(layers: int, seed: int) -> None:
    """Each of the 2 L writes adds a variance of at most about 1 / 2L of its input's, which is 1
    after a norm: the stream's power grows by about 1 in all, whatever the depth."""
    config = CONFIG.with_(layers=layers)
    made = random_checkpoint("tiny", config, tiny(seed), seed)
    network = float_network(made).eval()
    powers: list[float] = []

    def look(module: object, inputs: tuple[Tensor, ...]) -> None:
        powers.append(float(inputs[0].square().mean()))

    network.blocks[0].register_forward_pre_hook(look)
    network.norm.register_forward_pre_hook(look)
    with torch.inference_mode():
        hidden, _ = network(*stream(network, 4, 12, seed))
        logits = network.action_head(hidden)
    assert bool(torch.isfinite(logits).all())
    assert powers[0] * 0.5 < powers[1] < powers[0] + 4


def test_the_large_preset_is_1_3_billion() -> None:
    fields = {f"n{i}": numeric("m", 0, 100, buckets=64) for i in range(32)}
    fields |= {f"c{i}": category([f"v{j}" for j in range(31)]) for i in range(12)}
    schema = StateSchema(fields, neutral=[0.0, 0.0])
    with torch.device("meta"):
        count = sum(p.numel() for p in Network(schema, PRESETS["1.3b"], ACTIONS).parameters())
    assert abs(count / 1.30e9 - 1) <= 0.02


def test_names_are_the_networks(seed: int) -> None:
    config: ModelConfig = CONFIG.with_(layers=3)
    made = dict(random_tensors(small_schema(), config, ACTIONS, seed))
    assert made.keys() == Network(small_schema(), config, ACTIONS).state_dict().keys()
    with pytest.raises(UsageError, match="action_embed"):
        dict(random_tensors(small_schema(), CONFIG.with_(action_embed=15), ACTIONS, seed))
