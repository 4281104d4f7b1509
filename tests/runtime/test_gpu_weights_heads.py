"""The heads' weights for the GPU: with the operators on the CPU they are the network's heads."""

from __future__ import annotations

import pytest
import torch

from tests.model.networks import build
from wmrt.core.errors import UnsupportedError
from wmrt.model.network import Network
from wmrt.model.schema import StateSchema, category, numeric
from wmrt.runtime.gpu_weights_heads import OUTPUTS, DenseWeight, head_weights, split_outputs

OPS = torch.ops.wmrt
NUMBER, LANE = numeric("m/s", 0, 40), category(["left", "right"])
SCHEMAS = {
    "both": {"speed": NUMBER, "lane": LANE},
    "numbers": {"speed": NUMBER},
    "categories": {"lane": LANE},
}


def network(seed: int, schema: str = "both", exact: bool = True) -> Network:
    spec = StateSchema(SCHEMAS[schema], neutral=[0.0, 0.0])
    made = build(seed, spec, head_hidden=52, dyn_hidden=44)
    if exact:
        for parameter in made.parameters():
            parameter.data = parameter.data.bfloat16().float()
    return made


def layer(x: torch.Tensor, w: DenseWeight, activation: str) -> torch.Tensor:
    out = torch.empty(len(x), len(w.weight))
    OPS.dense(x, None, 0.0, w.weight, w.bias, activation, out, w.wide)
    return out


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("schema", SCHEMAS)
@torch.no_grad()
def test_the_heads_through_the_operators(schema: str, exact: bool, seed: int) -> None:
    """Sums of up to 96 terms in another order: 2^-24 of each term, with some to spare."""
    model = network(seed, schema, exact)
    w = head_weights(model)
    assert w.action_hidden.weight.dtype == (torch.bfloat16 if exact else torch.float32)
    x = torch.randn(3, model.config.d_model)
    joined = torch.empty(3, model.config.d_model + model.config.action_embed)
    OPS.rms_norm_to(x, w.norm, w.eps, joined[:, : x.shape[1]])
    hidden = torch.empty(3, model.config.head_hidden)
    OPS.dense(x, w.norm, w.eps, w.action_hidden.weight, None, "gelu", hidden, w.action_hidden.wide)
    logits = layer(hidden, w.action_out, "none").view(3, *model.action_head.shape)
    chunk, action = torch.empty(logits.shape[:-1]), torch.empty(3, 2)
    OPS.action_decode(logits, w.centers, w.embedding, chunk, action, joined[:, x.shape[1] :])
    y = joined
    for part in w.body:
        y = layer(y, part, "gelu")
    found = split_outputs(layer(y, w.outputs, "none"), w, model)
    normed = model.norm(x)
    torch.testing.assert_close(logits, model.action_head(normed), rtol=0, atol=2e-5)
    assert torch.equal(chunk, model.action_head.decode(logits))
    want = model.predict(normed, action)
    for name in OUTPUTS:
        got, expected = getattr(found, name), getattr(want, name)
        assert got.shape == expected.shape
        torch.testing.assert_close(got, expected, rtol=0, atol=2e-5)


@torch.no_grad()
def test_a_head_of_recipe_bf16_rounds_its_input(seed: int) -> None:
    model = network(seed, exact=False)
    for linear in (model.action_head.hidden, model.action_head.out):
        linear.pack("bf16")
    w = head_weights(model)
    x = torch.randn(2, model.config.d_model)
    assert not w.action_hidden.wide and w.outputs.wide
    stored = model.action_head.hidden.weight
    assert stored is not None and w.action_hidden.weight.data_ptr() == stored.data_ptr()
    got = layer(layer(x, w.action_hidden, "gelu"), w.action_out, "none")
    assert (got.view(2, *model.action_head.shape) - model.action_head(x)).abs().max() < 2e-2


def test_rows_of_the_outputs_lie_without_gaps(seed: int) -> None:
    w = head_weights(network(seed, "numbers"))
    starts = [w.slices[name].start for name in OUTPUTS]
    stops = [w.slices[name].stop for name in OUTPUTS]
    assert [0, *stops] == [*starts, len(w.outputs.weight)]
    assert w.slices["category"].start == w.slices["category"].stop
    assert w.outputs.weight.shape[1] == 48 and not w.outputs.weight[:, 44:].any()


def test_a_packed_head_is_refused(seed: int) -> None:
    model = network(seed)
    model.action_head.out.pack("nvfp4")
    with pytest.raises(UnsupportedError, match=r"action_head\.out is packed as nvfp4"):
        head_weights(model)
