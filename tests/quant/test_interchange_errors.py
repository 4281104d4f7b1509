"""Files that cannot be meant: each is a typed error that names what is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.quant.test_interchange import random_weight
from wmrt.core.errors import CheckpointError, QuantizationError, UnsupportedError, WmrtError
from wmrt.quant import quantize
from wmrt.quant.interchange import (
    multiplier_of,
    read_compressed_tensors,
    read_modelopt,
    write_compressed_tensors,
)

Tensors = dict[str, Tensor]


@pytest.fixture
def written(tmp_path: Path, seed: int) -> Callable[[str], Path]:
    """A folder of two packed weights [16, 128] and [8, 64] of a format, and one other tensor."""

    def write(format: str) -> Path:
        folder = tmp_path / format
        weights = {
            "up": quantize(random_weight(seed, 16, 128), format),
            "down": quantize(random_weight(seed + 1, 8, 64), format),
        }
        write_compressed_tensors(folder, weights, {"norm.weight": torch.ones(4)})
        return folder

    return write


def change(folder: Path, edit: Callable[[Tensors], object]) -> None:
    path = folder / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    edit(tensors)
    save_file(tensors, path)


def configure(folder: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    edit(config["quantization_config"])
    path.write_text(json.dumps(config))


def weights_of(config: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = config["config_groups"]["group_0"]["weights"]
    return found


def swap(tensors: Tensors, a: str, b: str) -> None:
    tensors[a], tensors[b] = tensors[b], tensors[a]


def put(tensors: Tensors, name: str, index: tuple[int, ...], byte: int) -> None:
    tensors[name].view(torch.uint8)[index] = byte


DAMAGE: list[tuple[str, str, Callable[[Tensors], object], type[WmrtError], str]] = [
    ("no global", "nvfp4", lambda t: t.pop("up.weight_global_scale"), CheckpointError,
     "missing: up.weight_global_scale"),
    ("no scale", "mxfp4", lambda t: t.pop("down.weight_scale"), CheckpointError,
     "missing: down.weight_scale"),
    ("no codes", "mxfp4", lambda t: t.pop("down.weight_packed"), CheckpointError,
     "missing: down.weight_packed"),
    ("no shape", "int4-g32", lambda t: t.pop("up.weight_shape"), CheckpointError,
     "missing: up.weight_shape"),
    ("no zero points", "int4-g32-zp", lambda t: t.pop("up.weight_zero_point"), CheckpointError,
     "missing: up.weight_zero_point"),
    ("unexpected zero points", "int4-g32",
     lambda t: t.update({"up.weight_zero_point": torch.zeros(2, 4, dtype=torch.int32)}),
     CheckpointError, "unexpected: up.weight_zero_point"),
    ("activation order", "int4-g32",
     lambda t: t.update({"up.weight_g_idx": torch.zeros(128, dtype=torch.int32)}),
     CheckpointError, "unexpected: up.weight_g_idx"),
    ("float weight beside", "nvfp4", lambda t: t.update({"up.weight": torch.ones(16, 128)}),
     CheckpointError, "unexpected: up.weight"),
    ("swapped scales", "nvfp4", lambda t: swap(t, "up.weight_scale", "down.weight_scale"),
     QuantizationError, r"weight_scale must be \[(16, 8|8, 4)\]"),
    ("swapped codes", "int4-g32", lambda t: swap(t, "up.weight_packed", "down.weight_packed"),
     QuantizationError, "weight_shape says"),
    ("swapped kinds", "mxfp4", lambda t: swap(t, "up.weight_packed", "up.weight_scale"),
     QuantizationError, "up: weight_scale must be"),
    ("NaN scale", "nvfp4", lambda t: put(t, "up.weight_scale", (3, 2), 0x7F),
     QuantizationError, "up: nvfp4 scales must be finite .* row 3, block 2"),
    ("NaN power", "mxfp4", lambda t: put(t, "down.weight_scale", (1, 1), 0xFF),
     QuantizationError, "down: mxfp4 scales must be finite .* row 1, block 1"),
    ("zero scale", "nvfp4", lambda t: put(t, "up.weight_scale", (3, 2), 0),
     QuantizationError, "up: nvfp4 has 1 zero scales over codes that are not zero"),
    ("infinite int4 scale", "int4-g32", lambda t: t["up.weight_scale"].fill_(float("inf")),
     QuantizationError, "up: int4-g32 scales must be finite"),
    ("two globals", "nvfp4",
     lambda t: t.update({"up.weight_global_scale": torch.ones(2)}), QuantizationError,
     "up: weight_global_scale must be one float32"),
    ("zero global", "nvfp4", lambda t: t["up.weight_global_scale"].zero_(), QuantizationError,
     "up: weight_global_scale must be positive"),
    ("NaN global", "nvfp4", lambda t: t["up.weight_global_scale"].fill_(float("nan")),
     QuantizationError, "up: weight_global_scale must be positive"),
    ("nothing packed", "nvfp4", lambda t: (t.clear(), t.update({"a.weight": torch.ones(1)})),
     CheckpointError, "no packed weights"),
]  # fmt: skip


@pytest.mark.parametrize(("format", "edit", "error", "said"), [d[1:] for d in DAMAGE],
                         ids=[d[0] for d in DAMAGE])  # fmt: skip
def test_damaged_tensors(
    written: Callable[[str], Path],
    format: str,
    edit: Callable[[Tensors], object],
    error: type[WmrtError],
    said: str,
) -> None:
    folder = written(format)
    change(folder, edit)
    with pytest.raises(error, match=said):
        read_compressed_tensors(folder)


CONFIGS: list[tuple[Callable[[dict[str, Any]], object], type[WmrtError], str]] = [
    (lambda c: c.update(quant_method="gptq"), CheckpointError, "quant_method is 'gptq'"),
    (lambda c: c.update(version="1.0.0"), UnsupportedError, "version is '1.0.0'"),
    (lambda c: c.pop("version"), UnsupportedError, "version is None"),
    (lambda c: c.update(quantization_status="frozen"), CheckpointError, "status is 'frozen'"),
    (lambda c: c.update(transform_config={"a": 1}), UnsupportedError, "transform_config"),
    (lambda c: c.update(kv_cache_scheme={"num_bits": 8}), UnsupportedError, "kv_cache_scheme"),
    (lambda c: c.update(config_groups={}), CheckpointError, "config_groups"),
    (lambda c: c["config_groups"].update(group_0=3), CheckpointError, "says nothing of weights"),
    (lambda c: c["config_groups"]["group_0"].update(format="marlin-24"), UnsupportedError,
     "format is 'marlin-24'"),
    (lambda c: c["config_groups"]["group_0"].update(targets="Linear"), CheckpointError, "targets"),
    (lambda c: c["config_groups"]["group_0"].update(targets=["up"]), CheckpointError,
     "down is packed, but the groups .* none"),
    (lambda c: c["config_groups"].update(group_1=c["config_groups"]["group_0"]), CheckpointError,
     "group_0, group_1; exactly one"),
    (lambda c: c.update(ignore=["re:.*down"]), CheckpointError, "down is packed, but .*ignore"),
    (lambda c: weights_of(c).update(num_bits=8), UnsupportedError, "none of the formats"),
    (lambda c: weights_of(c).update(num_bits=4.0), UnsupportedError, "none of the formats"),
    (lambda c: weights_of(c).update(group_size=48), UnsupportedError, "none of the formats"),
    (lambda c: weights_of(c).update(strategy="channel"), UnsupportedError, "none of the formats"),
    (lambda c: weights_of(c).update(dynamic=True), UnsupportedError, "none of the formats"),
    (lambda c: weights_of(c).update(block_structure=[2, 4]), UnsupportedError, "none of the"),
    (lambda c: weights_of(c).update(rotation=1), UnsupportedError, "unknown here: rotation"),
    # Other groups than the tensors have.
    (lambda c: weights_of(c).update(group_size=64), QuantizationError, "weight_scale must be"),
]  # fmt: skip


@pytest.mark.parametrize(("edit", "error", "said"), CONFIGS)
def test_configurations(
    written: Callable[[str], Path],
    edit: Callable[[dict[str, Any]], object],
    error: type[WmrtError],
    said: str,
) -> None:
    folder = written("int4-g32")
    configure(folder, edit)
    with pytest.raises(error, match=said):
        read_compressed_tensors(folder)


def test_damaged_files(written: Callable[[str], Path]) -> None:
    folder = written("nvfp4")
    weights, config = folder / "model.safetensors", folder / "config.json"
    whole = weights.read_bytes()
    for size in (0, 7, 100, len(whole) - 1):
        weights.write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match="truncated or damaged"):
            read_compressed_tensors(folder)
    weights.unlink()
    with pytest.raises(CheckpointError, match="missing, truncated"):
        read_compressed_tensors(folder)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "../b.safetensors"}}))
    with pytest.raises(CheckpointError, match="no file of this folder"):
        read_compressed_tensors(folder)
    (folder / "part").write_bytes(whole)
    index.write_text(json.dumps({"weight_map": {"up.weight_packed": "part", "x": "part"}}))
    with pytest.raises(CheckpointError, match="missing: x; not in the index: down"):
        read_compressed_tensors(folder)
    whole_config = json.loads(config.read_text())
    config.write_text(json.dumps(whole_config | {"wmrt_multipliers": {"up": "1.5.3"}}))
    index.unlink()
    weights.write_bytes(whole)
    with pytest.raises(CheckpointError, match="wmrt_multipliers maps no modules"):
        read_compressed_tensors(folder)
    config.write_text("{}")
    with pytest.raises(CheckpointError, match="holds no quantization_config"):
        read_compressed_tensors(folder)
    config.write_text("{")
    with pytest.raises(CheckpointError, match="cannot be read as JSON"):
        read_compressed_tensors(folder)


def test_nothing_is_half_written(tmp_path: Path, seed: int) -> None:
    nvfp4 = quantize(random_weight(seed, 8, 32), "nvfp4")
    odd = quantize(random_weight(seed, 8, 33), "mxfp4")
    eight = quantize(random_weight(seed, 8, 32), "int8-channel")
    shared = torch.ones(4)
    target = tmp_path / "out"
    with pytest.raises(QuantizationError, match=r"b: mxfp4 .* 33 columns are odd"):
        write_compressed_tensors(target, {"a": nvfp4, "b": odd}, {})
    with pytest.raises(QuantizationError, match="file of int8-channel is written"):
        write_compressed_tensors(target, {"a": eight}, {})
    with pytest.raises(QuantizationError, match="file of nothing"):
        write_compressed_tensors(target, {}, {"a": shared})
    with pytest.raises(CheckpointError, match=r"both as packed .* a\.weight"):
        write_compressed_tensors(target, {"a": nvfp4}, {"a.weight": shared})
    with pytest.raises(CheckpointError, match="cannot be saved"):
        write_compressed_tensors(target, {"a": nvfp4}, {"b": shared}, config={"x": float("nan")})
    write_compressed_tensors(target, {"a": nvfp4}, {"b": shared})
    config = read_compressed_tensors(target).config
    with pytest.raises(CheckpointError, match="another format than the weights have: a"):
        four = quantize(random_weight(seed, 8, 32), "int4-g32")
        write_compressed_tensors(tmp_path / "other", {"a": four}, {}, config=config)
    with pytest.raises(CheckpointError, match="is not replaced"):
        write_compressed_tensors(target, {"a": nvfp4}, {})
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_global_scale_without_an_inverse() -> None:
    for divisor in (0.0, -1.0, float("inf"), float("nan"), 2.0**-140):
        with pytest.raises(QuantizationError, match="weight_global_scale"):
            multiplier_of(divisor)


def test_modelopt_files_that_are_not_nvfp4(tmp_path: Path) -> None:
    good = {
        "a.weight": torch.zeros(4, 8, dtype=torch.uint8),
        "a.weight_scale": torch.zeros(4, 1).to(torch.float8_e4m3fn),
        "a.weight_scale_2": torch.tensor(1.0),
    }
    nan = torch.full((4, 1), float("nan")).to(torch.float8_e4m3fn)
    cases: list[tuple[dict[str, Tensor | None], type[WmrtError], str]] = [
        ({"a.weight_scale_2": None}, CheckpointError, "missing: a.weight_scale_2"),
        ({"b.weight_scale": torch.ones(2)}, CheckpointError, "without a packed .* b.weight_scale"),
        ({"a.weight_scale": torch.ones(4, 1)}, QuantizationError, "a: not NVFP4"),
        ({"a.weight_scale": nan}, QuantizationError, "a: nvfp4 scales must be finite"),
        ({"a.weight_scale_2": torch.zeros(())}, QuantizationError, "global_scale must be positive"),
    ]
    for edit, error, said in cases:
        tensors = {name: t for name, t in (good | edit).items() if t is not None}
        save_file(tensors, tmp_path / "model.safetensors")
        with pytest.raises(error, match=said):
            read_modelopt(tmp_path)
