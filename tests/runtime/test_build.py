"""Checkpoint to network: strict about every name, shape, type and contract."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.model.networks import ACTIONS, build, schemas
from tests.runtime.models import tiny
from wmrt.core.errors import CheckpointError, UsageError, WmrtError
from wmrt.core.types import ActionSpec
from wmrt.model.checkpoint import Checkpoint, check_schema, save_checkpoint
from wmrt.model.schema import StateSchema, numeric
from wmrt.quant import get_recipe
from wmrt.runtime import WorldModel
from wmrt.runtime.build import build_network, pack_network, plan_recipes, to_checkpoint

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(params=[None, "nvfp4"], ids=["float", "packed"])
def checkpoint(request: pytest.FixtureRequest, seed: int) -> Checkpoint:
    made = tiny(seed)
    if request.param is None:
        return made
    built = build_network(made, request.param, CPU)
    return to_checkpoint(built.network, built.recipe, made.provenance)


def refused(checkpoint: Checkpoint) -> str:
    with pytest.raises(WmrtError) as caught:
        WorldModel.from_checkpoint(checkpoint)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def changed(checkpoint: Checkpoint, **tensors: Any) -> Checkpoint:
    """With tensors replaced, added, or (None) taken away; ``__`` stands for a dot."""
    new = {**checkpoint.tensors, **{k.replace("__", "."): v for k, v in tensors.items()}}
    return replace(checkpoint, tensors={k: v for k, v in new.items() if v is not None})


# ---- tensors ----


def test_one_extra_tensor_is_named(checkpoint: Checkpoint) -> None:
    text = refused(changed(checkpoint, blocks__7__qkv__weight=torch.zeros(2)))
    assert text == "unexpected tensors: blocks.7.qkv.weight"


def test_missing_tensors_are_named(checkpoint: Checkpoint) -> None:
    text = refused(changed(checkpoint, norm__weight=None, dynamics__fill=None))
    assert text == "missing tensors: dynamics.fill, norm.weight"


def test_a_wrong_shape_and_a_wrong_type_are_named(checkpoint: Checkpoint) -> None:
    shape = torch.zeros(65, dtype=torch.bfloat16)
    text = refused(changed(checkpoint, norm__weight=shape, dynamics__fill=torch.zeros(2).double()))
    assert "norm.weight is [65], expected [64]" in text
    assert "dynamics.fill is float64, expected float32" in text


def test_packed_codes_in_a_float_checkpoint_and_the_reverse(seed: int) -> None:
    plain = tiny(seed)
    built = build_network(plain, "nvfp4", CPU)
    packed = to_checkpoint(built.network, built.recipe, {})
    text = refused(replace(packed, quantization=None))
    assert "missing tensors: blocks.0.down.weight" in text
    assert "unexpected tensors: blocks.0.down.codes" in text
    text = refused(replace(plain, quantization=packed.quantization))
    assert "missing tensors: blocks.0.down.codes" in text
    assert "unexpected tensors: blocks.0.down.weight" in text


def test_damaged_scales_name_their_layer(seed: int) -> None:
    built = build_network(tiny(seed), "nvfp4", CPU)
    packed = to_checkpoint(built.network, built.recipe, {})
    name = "blocks.1.out.scales"
    bad = packed.tensors[name].clone()
    bad[0, 0] = 0x7F  # NaN in E4M3
    text = refused(replace(packed, tensors={**packed.tensors, name: bad}))
    assert "blocks.1.out" in text and "scales must be finite" in text


def test_a_weight_that_cannot_be_quantized_names_its_layer(seed: int) -> None:
    plain = tiny(seed)
    name = "blocks.0.gate_up.weight"
    bad = plain.tensors[name].clone()
    bad[3, 5] = float("nan")
    spoiled = replace(plain, tensors={**plain.tensors, name: bad})
    for recipe in ("nvfp4", "w4a8", "bf16"):
        with pytest.raises(WmrtError, match=r"^blocks\.0\.gate_up: .*NaN"):
            WorldModel.from_checkpoint(spoiled, recipe=recipe)


# ---- the rest of the checkpoint ----


def test_another_configuration_is_refused(checkpoint: Checkpoint) -> None:
    text = refused(replace(checkpoint, model={**checkpoint.model, "d_model": 96}))
    assert "wrong shape" in text
    text = refused(replace(checkpoint, model={**checkpoint.model, "depth": 4}))
    assert text.startswith("checkpoint: ") and "unknown keys ['depth']" in text


@pytest.mark.parametrize(
    ("key", "value"),
    [("d_model", "64"), ("layers", -1), ("heads", 0), ("dropout", None), ("window", 1.5)],
)
def test_a_configuration_that_cannot_be_is_one_line(
    key: str, value: object, checkpoint: Checkpoint
) -> None:
    assert key in refused(replace(checkpoint, model={**checkpoint.model, key: value}))


def test_another_schema_or_action_is_refused(checkpoint: Checkpoint) -> None:
    assert refused(replace(checkpoint, schema=schemas()["a vector"]))
    one = ActionSpec(ACTIONS.dims[:1])
    assert "neutral action has 2 numbers" in refused(replace(checkpoint, actions=one))
    other = StateSchema({"speed": numeric("km/h", 0, 144)}, neutral=[0.0, 0.0], name="other")
    with pytest.raises(CheckpointError, match="speed"):
        check_schema(other, checkpoint.schema)


@pytest.mark.parametrize(
    "quantization",
    [
        {},
        {"recipe": None, "layout": "canonical"},
        {"recipe": "nvfp4", "layout": "canonical"},
        {"recipe": {"name": "nvfp4"}, "layout": "canonical"},
        *(
            {"recipe": {**get_recipe("nvfp4").to_json(), **change}, "layout": "canonical"}
            for change in (
                {"weight_format": "bf16", "activation": "bf16"},
                {"weight_format": "fp3"},
                {"activation": "fp7"},
            )
        ),
    ],
)
def test_a_quantization_contract_that_cannot_be_read_is_one_line(
    quantization: dict[str, Any], seed: int
) -> None:
    text = refused(replace(tiny(seed), quantization=quantization))
    assert text.startswith("checkpoint: quantization: ")


def test_unknown_recipe_lists_those_there_are(checkpoint: Checkpoint) -> None:
    with pytest.raises(UsageError, match="unknown recipe 'bogus'; recipes are bf16, nvfp4"):
        WorldModel.from_checkpoint(checkpoint, recipe="bogus")


# ---- files ----


def test_an_extra_tensor_that_the_file_lists_is_still_refused(tmp_path: Path, seed: int) -> None:
    extra = changed(tiny(seed), extra=torch.zeros(3))
    save_checkpoint(tmp_path / "c", extra, card="x")
    with pytest.raises(CheckpointError, match=r"unexpected tensors: extra$"):
        WorldModel.from_pretrained(tmp_path / "c")


def test_a_file_with_one_tensor_more_or_less_or_cut_is_refused(tmp_path: Path, seed: int) -> None:
    save_checkpoint(tmp_path / "c", tiny(seed), card="x")
    file = tmp_path / "c" / "model.safetensors"
    whole = file.read_bytes()
    tensors = load_file(file)
    save_file({**tensors, "extra": torch.zeros(2)}, file)
    with pytest.raises(CheckpointError, match="unexpected tensors: extra"):
        WorldModel.from_pretrained(tmp_path / "c")
    tensors.pop("norm.weight")
    save_file(tensors, file)
    with pytest.raises(CheckpointError, match=r"missing tensors: norm\.weight"):
        WorldModel.from_pretrained(tmp_path / "c")
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match="truncated"):
        WorldModel.from_pretrained(tmp_path / "c")
    config = tmp_path / "c" / "config.json"
    file.write_bytes(whole)
    data = json.loads(config.read_text())
    data["schema"]["fields"][1]["high"] = 200
    config.write_text(json.dumps(data))
    with pytest.raises(CheckpointError, match="schema"):
        WorldModel.from_pretrained(tmp_path / "c")


# ---- to_checkpoint, packing ----


def test_a_checkpoint_stores_parameters_in_bf16_and_fitted_scales_as_they_are(seed: int) -> None:
    network = build(seed)
    checkpoint = to_checkpoint(network, None, {"a": 1})
    parameters = dict(network.named_parameters())
    assert set(checkpoint.tensors) == set(network.state_dict())
    for name, tensor in checkpoint.tensors.items():
        assert tensor.is_contiguous()
        assert tensor.dtype == (torch.bfloat16 if name in parameters else torch.float32)
    assert checkpoint.quantization is None and checkpoint.provenance == {"a": 1}


def test_bf16_loses_nothing_that_was_stored(seed: int) -> None:
    first = tiny(seed)
    built = build_network(first, None, CPU)
    again = to_checkpoint(built.network, built.recipe, {})
    assert again.tensors.keys() == first.tensors.keys()
    assert all(torch.equal(again.tensors[n], t) for n, t in first.tensors.items())


def test_packing_leaves_everything_but_the_linears_alone(seed: int) -> None:
    network = build(seed)
    before = {n: t.clone() for n, t in network.state_dict().items()}
    plan = plan_recipes(network, get_recipe("mxfp4"))
    assert {n for n, r in plan.items() if r.name == "bf16"} == {
        "action_head.hidden",
        "action_head.out",
    }
    pack_network(network, get_recipe("mxfp4"))
    for name, tensor in network.state_dict().items():
        if name in before and not name.startswith("action_head."):
            assert torch.equal(tensor, before[name])


def test_building_twice_from_one_checkpoint_is_the_same_and_leaves_it_alone(seed: int) -> None:
    checkpoint = tiny(seed)
    before = {n: t.clone() for n, t in checkpoint.tensors.items()}
    a, b = (build_network(checkpoint, "w4a8", CPU).network for _ in range(2))
    for (name, x), y in zip(a.state_dict().items(), b.state_dict().values(), strict=True):
        assert torch.equal(x, y), name
    assert all(torch.equal(checkpoint.tensors[n], t) for n, t in before.items())
