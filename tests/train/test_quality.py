"""Open-loop errors of a packed network: none against itself, and as computed by hand."""

from __future__ import annotations

import math

import pytest
import torch

from tests.train.toys import CONFIG, episodes, network_for
from wmrt.model.checkpoint import Checkpoint
from wmrt.model.network import Network
from wmrt.quant import get_recipe, quantize
from wmrt.quant.steps import STEPS, Clip, Gptq, Hadamard
from wmrt.runtime.build import build_network, linears, to_checkpoint
from wmrt.train.dataset import Recording, window_batch
from wmrt.train.evaluate import starts
from wmrt.train.quality import AHEAD, CONTEXT, STRIDE, chunks, compare, not_comparable

CPU = torch.device("cpu")


@pytest.fixture
def checkpoint(seed: int) -> Checkpoint:
    return to_checkpoint(network_for(episodes(2), seed, CONFIG), None, {})


@pytest.fixture
def data(checkpoint: Checkpoint, seed: int) -> Recording:
    return Recording.build(episodes(3, steps=60, first=seed), checkpoint.schema)


def network(checkpoint: Checkpoint, recipe: str) -> Network:
    return build_network(checkpoint, recipe, CPU).network


def test_a_network_differs_nowhere_from_itself(checkpoint: Checkpoint, data: Recording) -> None:
    found = compare(
        network(checkpoint, "bf16"), network(checkpoint, "bf16"), get_recipe("bf16"), data
    )
    assert found.layers == () and found.bf16 == found.packed
    assert found.action.chunk_rms == found.action.chunk_max == found.action.first_rms == 0.0
    assert found.windows == found.bf16[0].windows


def test_layer_errors_are_those_of_the_layers(checkpoint: Checkpoint, data: Recording) -> None:
    bf16, packed = network(checkpoint, "bf16"), network(checkpoint, "mxfp4")
    found = compare(bf16, packed, get_recipe("mxfp4"), data)
    assert found.layers is not None and found.layers_reason is None
    names = [name for name, m in linears(packed).items() if m.weight is None]
    assert [row.layer for row in found.layers] == names
    row, name = found.layers[0], names[0]
    original = linears(bf16)[name].weight
    assert original is not None
    weight = original.float()
    change = quantize(weight, "mxfp4").dequantize() - weight
    assert row.weight_error == pytest.approx(float(change.norm() / weight.norm()), rel=1e-5)
    assert row.sqnr_db == pytest.approx(-20 * math.log10(row.weight_error))
    episode, first = starts(data, CONTEXT, AHEAD, STRIDE)
    batch = window_batch(data, episode, first, CONTEXT + AHEAD)
    taken: list[torch.Tensor] = []
    hook = linears(bf16)[name].register_forward_pre_hook(lambda m, x: taken.append(x[0]))
    with torch.inference_mode():
        before, after = chunks(bf16, batch), chunks(packed, batch)
        x = taken[0]
        y, z = linears(bf16)[name](x), linears(packed)[name](x)
    hook.remove()
    assert row.output_error == pytest.approx(float((z - y).norm() / y.norm()), rel=1e-5)
    assert found.action.chunk_max == pytest.approx(float((after - before).abs().max()))
    assert 0 < found.action.first_rms <= found.action.first_max <= found.action.chunk_max


def test_layers_in_another_basis_are_not_compared(checkpoint: Checkpoint, data: Recording) -> None:
    moved = get_recipe("nvfp4").with_(steps=(Hadamard(),))
    found = compare(network(checkpoint, "bf16"), network(checkpoint, "nvfp4"), moved, data)
    assert found.layers is None and "hadamard turned" in (found.layers_reason or "")
    assert found.to_json()["action"]["chunk_rms"] > 0


@pytest.mark.parametrize("kind", [kind for kind, step in STEPS.items() if step.phase == 1])
def test_every_transform_says_what_it_moved(kind: str) -> None:
    nvfp4 = get_recipe("nvfp4")
    said = not_comparable(nvfp4.with_(steps=(STEPS[kind](), Gptq())))
    assert said is not None and said.startswith(f"{kind} ") and "card" in said
    assert not_comparable(nvfp4.with_(steps=(Clip(), Gptq()))) is None
