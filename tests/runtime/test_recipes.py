"""Every recipe: which operator runs each layer, what is held in memory, files that round-trip."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.runtime.models import (
    PACKING,
    RECIPES,
    drive,
    eager,
    eager_from,
    same,
    states,
    tensors_within,
    tiny,
)
from wmrt.core.errors import UsageError
from wmrt.kernels import LinearOp
from wmrt.model.checkpoint import load_checkpoint
from wmrt.model.linear import Linear
from wmrt.quant import QuantizedTensor, get_recipe, quantize
from wmrt.runtime.build import linears

OPS = {
    "bf16": "linear_bf16.reference",
    "nvfp4": "linear_nvfp4_a8.reference",
    "mxfp4": "linear_mxfp4_a8.reference",
    "w4a8": "linear_int4_g128_a8.reference",
    "nvfp4-a16": "linear_nvfp4_a16.reference",
    "mxfp4-a16": "linear_mxfp4_a16.reference",
}
CARD = "# a test"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize("recipe", OPS)
def test_every_trunk_linear_runs_the_recipes_operator_and_the_action_head_bf16(
    recipe: str, seed: int
) -> None:
    model = eager(tiny(seed), recipe=recipe)
    called: list[tuple[str, str]] = []
    for name, layer in linears(model.network).items():
        op = layer._op
        assert op is not None

        def spy(x: torch.Tensor, w: object, name: str = name, op: LinearOp = op) -> torch.Tensor:
            kind = type(w).__name__ if not isinstance(w, torch.Tensor) else str(w.dtype)
            called.append((name, f"{op.name} on {kind}"))
            return op(x, w)

        layer._op = replace(op, function=spy)
    model.step(states(model.schema, 1, seed)[0])
    trunk = [f"blocks.{i}.{part}" for i in range(2) for part in ("qkv", "out", "gate_up", "down")]
    held = "torch.bfloat16" if recipe == "bf16" else "QuantizedTensor"
    expected = dict.fromkeys(trunk, f"{OPS[recipe]} on {held}")
    head = f"{OPS['bf16']} on torch.bfloat16"
    assert dict(called) == {**expected, "action_head.hidden": head, "action_head.out": head}
    assert len(called) == 10  # each ran once
    report = model.report()
    assert report.layers == {name: what.split(" on ")[0] for name, what in called}
    assert sum(report.kernels.values()) == 10
    assert report.kernels[OPS[recipe]] == (10 if recipe == "bf16" else 8)


@pytest.mark.parametrize("recipe", RECIPES)
def test_nothing_but_the_reported_tensors_is_held(recipe: str, seed: int) -> None:
    # sizes such that no other matrix has the shape of a linear layer
    apart = {"embed": 48, "mlp_hidden": 56, "dyn_hidden": 52, "head_hidden": 80, "table_rows": 72}
    model = eager(tiny(seed, **apart), recipe=recipe)
    report = model.report()
    drive(model, states(model.schema, 3, seed))
    model.reset()
    gc.collect()
    held = {t.untyped_storage().data_ptr(): t for t in tensors_within(model)}
    session = model.session
    buffers = [session.codes, session.values, session.previous]
    own = {t.untyped_storage().data_ptr() for t in buffers}
    total = sum(t.untyped_storage().nbytes() for p, t in held.items() if p not in own)
    assert total == report.resident_bytes == sum(report.bytes.values())
    shapes = {(m.out_features, m.in_features): n for n, m in linears(model.network).items()}
    for tensor in held.values():
        wide = tensor.dtype in (torch.float32, torch.bfloat16, torch.float64)
        name = shapes.get(tuple(tensor.shape)) if wide else None
        if name is not None:
            allowed = recipe == "bf16" or name.startswith("action_head")
            assert allowed and tensor.dtype == torch.bfloat16, f"{name}: {tensor.dtype} is kept"


@pytest.mark.parametrize("recipe", PACKING)
def test_no_step_leaves_a_wide_weight_anywhere_in_the_process(recipe: str, seed: int) -> None:
    checkpoint = tiny(seed, ffn=416)  # (832, 64) is no other tensor's shape in this process
    model = eager(checkpoint, recipe=recipe)
    drive(model, states(model.schema, 3, seed))
    wide = [n for n, t in checkpoint.tensors.items() if tuple(t.shape) == (832, 64)]
    assert len(wide) == 2
    del checkpoint
    gc.collect()
    alive = [
        t
        for t in gc.get_objects()
        # by identity: a type of another test in this process may refuse to be compared
        if (type(t) is torch.Tensor or type(t) is torch.nn.Parameter)
        and t.is_floating_point()
        and t.numel() == 832 * 64
    ]
    assert alive == []


@pytest.mark.parametrize("recipe", PACKING)
def test_report_counts_what_the_format_costs(recipe: str, seed: int) -> None:
    checkpoint = tiny(seed)
    report = eager(checkpoint, recipe=recipe).report()
    trunk = {n: t for n, t in checkpoint.tensors.items() if n.startswith("blocks.") and t.ndim == 2}
    packed = [quantize(t.float(), recipe) for t in trunk.values()]
    assert report.bytes["packed_codes"] == sum(q.codes.numel() for q in packed)
    assert report.bytes["packed_codes"] + report.bytes["scales"] == sum(q.nbytes for q in packed)
    head = [t for n, t in checkpoint.tensors.items() if n.startswith("action_head.")]
    assert report.bytes["bf16_linears"] == sum(2 * t.numel() for t in head)
    assert "float_linears" not in report.bytes
    data = report.to_json()
    assert data["model_bytes"] == report.resident_bytes
    assert (data["requested"]["recipe"], data["resolved"]["recipe"]) == (recipe, recipe)
    assert data["resolved"]["weight_format"] == get_recipe(recipe).weight_format
    assert data["resolved"]["activation"] == "int8-g32"


@pytest.mark.parametrize("recipe", OPS)
def test_packed_layers_compute_what_their_weights_say(recipe: str, seed: int) -> None:
    checkpoint = tiny(seed)
    model = eager(checkpoint, recipe=recipe)
    generator = torch.Generator().manual_seed(seed)
    for name, layer in linears(model.network).items():
        stored = checkpoint.tensors[f"{name}.weight"].float()
        weight = layer.quantized().dequantize() if layer.weight is None else layer.weight.float()
        if layer.weight is None:
            assert torch.equal(weight, quantize(stored, recipe).dequantize())
        else:
            assert torch.equal(weight, stored)
        x = torch.randn(5, layer.in_features, generator=generator)
        exact = x @ weight.T
        error = float((layer(x) - exact).norm() / exact.norm())
        # int8 activations: a step of amax/127 leaves 1/sqrt(12) of it; amax of 32 normals is about
        # 2.1, so 0.5%. bfloat16 activations: 2^-9 / sqrt(3), 0.11%.
        assert error < 0.015, f"{name} under {recipe}: {error}"


@pytest.mark.parametrize("recipe", OPS)
def test_saving_and_loading_is_equal_bit_for_bit(recipe: str, tmp_path: Path, seed: int) -> None:
    first = eager(tiny(seed), recipe=recipe)
    first.save_pretrained(tmp_path / "saved", card=CARD)
    again = eager_from(tmp_path / "saved")
    assert again.recipe == first.recipe == get_recipe(recipe)
    assert again.report().kernels == first.report().kernels
    assert again.report().bytes == first.report().bytes
    stream = states(first.schema, 20, seed)
    for a, b in zip(drive(first, stream), drive(again, stream), strict=True):
        assert same(a, b)
    again.save_pretrained(tmp_path / "twice", card=CARD)
    for name in ("model.safetensors", "config.json", "README.md"):
        assert (tmp_path / "twice" / name).read_bytes() == (tmp_path / "saved" / name).read_bytes()


@pytest.mark.parametrize("recipe", PACKING)
def test_a_packed_checkpoint_runs_its_recipe_and_no_other(
    recipe: str, tmp_path: Path, seed: int
) -> None:
    eager(tiny(seed), recipe=recipe).save_pretrained(tmp_path / "c", card=CARD)
    assert eager_from(tmp_path / "c", recipe=recipe).recipe.name == recipe
    for other in OPS:
        if other != recipe:
            with pytest.raises(UsageError, match=f"packed as {recipe}; it cannot run {other}"):
                eager_from(tmp_path / "c", recipe=other)


def test_packed_codes_stay_the_mapped_file(tmp_path: Path, seed: int) -> None:
    eager(tiny(seed), recipe="nvfp4").save_pretrained(tmp_path / "c", card=CARD)
    checkpoint = load_checkpoint(tmp_path / "c")
    model = eager(checkpoint)
    for name, layer in linears(model.network).items():
        if layer.weight is None:
            assert layer.codes.data_ptr() == checkpoint.tensors[f"{name}.codes"].data_ptr()


def test_a_recipe_of_ones_own_leaves_out_what_it_excludes(tmp_path: Path, seed: int) -> None:
    from dataclasses import replace

    recipe = replace(get_recipe("nvfp4"), name="mine", exclude=("*.down", "blocks.0.*"))
    model = eager(tiny(seed), recipe=recipe)
    packed = {n for n, op in model.report().layers.items() if op == OPS["nvfp4"]}
    assert packed == {"blocks.1.qkv", "blocks.1.out", "blocks.1.gate_up"}
    model.save_pretrained(tmp_path / "c", card=CARD)
    again = eager_from(tmp_path / "c")
    assert again.recipe == recipe and again.report().layers == model.report().layers


def test_recipes_differ_but_agree_on_the_action_roughly(seed: int) -> None:
    checkpoint, stream = tiny(seed), None
    actions = {}
    for recipe in RECIPES:
        model = eager(checkpoint, recipe=recipe)
        stream = stream or states(model.schema, 20, seed)
        actions[recipe] = np.array([s.chunk for s in drive(model, stream)])
    for recipe in PACKING:
        assert not np.array_equal(actions[recipe], actions["bf16"])


def test_linears_are_the_only_quantizable_layers(seed: int) -> None:
    model = eager(tiny(seed), recipe="nvfp4")
    for module in model.network.modules():
        if isinstance(module, Linear):
            assert (module.weight is None) == (module.recipe is not None and module.recipe.packs)
            assert module.weight is not None or isinstance(module.quantized(), QuantizedTensor)
