"""Weights through compressed-tensors files: every bit comes back, from files of either side."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.quant.golden import ARRAYS
from wmrt.core.errors import QuantizationError
from wmrt.quant import QuantizedTensor, quantize
from wmrt.quant.interchange import (
    Origin,
    divisor_of,
    multiplier_of,
    read_compressed_tensors,
    read_modelopt,
    write_compressed_tensors,
)
from wmrt.quant.interchange.weights import from_parts, to_parts

GOLDEN = Path(__file__).parents[1] / "golden"
SAMPLES = load_file(GOLDEN / "checkpoint_samples.safetensors")
FP4 = ("nvfp4", "mxfp4")
INT4 = tuple(f"int4-g{group}{zp}" for group in (32, 64, 128) for zp in ("", "-zp"))


def sample(kind: str) -> dict[str, Tensor]:
    return {n.removeprefix(f"{kind}."): t for n, t in SAMPLES.items() if n.startswith(f"{kind}.")}


def random_weight(seed: int, rows: int, columns: int) -> Tensor:
    """Gaussian, rows of differing size, with a block of zeros and one that underflows nvfp4."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(rows, columns, generator=generator)
    weight *= torch.exp(torch.randn(rows, 1, generator=generator))
    weight[0, :16] = 0.0
    weight[-1, -16:] *= 2.0**-24
    return weight


def same(a: QuantizedTensor, b: QuantizedTensor) -> bool:
    """Equal in format, shape and every stored bit."""
    mine, other = a.tensors(), b.tensors()
    return (
        (a.format, tuple(a.shape)) == (b.format, tuple(b.shape))
        and mine.keys() == other.keys()
        and all(torch.equal(mine[name], other[name]) for name in mine)
    )


@pytest.mark.parametrize("columns", [256, 40, 168])  # whole blocks of all, and tails
@pytest.mark.parametrize("format", FP4 + INT4)
def test_ours_to_a_file_and_back(format: str, columns: int, tmp_path: Path, seed: int) -> None:
    for rows in (1, 7, 24):
        weights = {
            f"block.{i}": quantize(random_weight(seed + i, rows, columns), format) for i in range(3)
        }
        others = {"norm.weight": torch.randn(8).to(torch.bfloat16), "head.weight": torch.eye(4)}
        folder = tmp_path / f"rows-{rows}"
        write_compressed_tensors(folder, weights, others, ignore=["head"])
        back = read_compressed_tensors(folder)
        assert back.weights.keys() == weights.keys()
        assert all(same(back.weights[name], q) for name, q in weights.items())
        assert back.others.keys() == others.keys()
        assert all(torch.equal(back.others[name], tensor) for name, tensor in others.items())
        # And a file that was read is written again byte for byte.
        again = tmp_path / f"again-{rows}"
        write_compressed_tensors(
            again, back.weights, back.others, config=back.config, origins=back.origins
        )
        for part in ("model.safetensors", "config.json"):
            assert (again / part).read_bytes() == (folder / part).read_bytes()


@given(st.floats(2.0**-120, 2.0**120, width=32))
def test_a_multiplier_that_its_divisor_misses_is_recorded(multiplier: float) -> None:
    q = quantize(torch.eye(16), "nvfp4")
    q = QuantizedTensor(q.format, q.shape, q.codes, q.scales, multiplier)
    parts = to_parts(q)
    alone, origin = from_parts("nvfp4", parts)
    # The divisor is right to half an ulp, its inverse again: at most one apart (of a value whose
    # ulp may be half as large on the other side of a power of two).
    assert alone.global_scale == pytest.approx(multiplier, rel=2.0**-22)
    assert origin.divisor == float(parts["weight_global_scale"]) == divisor_of(multiplier)
    told, _ = from_parts("nvfp4", parts, multiplier=multiplier)
    assert told.global_scale == multiplier
    # What is recorded counts only for the divisor it belongs to.
    other, _ = from_parts("nvfp4", parts, multiplier=multiplier * 1.5)
    assert other.global_scale == alone.global_scale
    # A divisor that was read is written again, whether or not it is the nearest to the inverse.
    assert torch.equal(to_parts(alone, origin)["weight_global_scale"], parts["weight_global_scale"])


def test_a_divisor_is_no_multiplier() -> None:
    q, _ = from_parts("nvfp4", sample("ct.nvfp4"))
    divisor = float(SAMPLES["ct.nvfp4.weight_global_scale"])
    assert divisor == ARRAYS["nv_ct_weight_global_scale_w"]
    assert q.global_scale == multiplier_of(divisor) == pytest.approx(1 / divisor, rel=2.0**-24)
    # 2688 / divisor is the largest magnitude.
    assert q.global_scale * 2688 == pytest.approx(float(ARRAYS["nv_amax_w"]), rel=2.0**-22)
    # An origin's divisor counts only while it belongs to the weight.
    parts = to_parts(q, Origin(divisor=2 * divisor))
    assert float(parts["weight_global_scale"]) == divisor_of(q.global_scale)


@pytest.mark.parametrize("format", FP4)
def test_a_library_s_fp4_sample(format: str) -> None:
    parts = sample(f"ct.{format}")
    q, origin = from_parts(format, parts)
    if format == "mxfp4":
        assert torch.equal(q.scales, torch.from_numpy(ARRAYS["mx_compressed_tensors_even_scale_w"]))
    assert torch.equal(q.codes, parts["weight_packed"])
    again = to_parts(q, origin)
    assert again.keys() == parts.keys()
    assert all(torch.equal(again[n].view(torch.uint8), parts[n].view(torch.uint8)) for n in parts)
    decoded = q.dequantize().to(torch.bfloat16)  # as that library decompresses FP4
    rmse = float((decoded - torch.from_numpy(ARRAYS["x_w"])).square().mean().sqrt())
    recorded = json.loads((GOLDEN / "checkpoint_samples.json").read_text())[f"ct.{format}"]["_rmse"]
    assert rmse == pytest.approx(recorded, rel=2.0**-16)  # of 4096 squares summed in float32


@pytest.mark.parametrize("kind", ["w4a16_g128", "w4a8_g128", "w4a16_asym"])
def test_a_library_s_int4_sample(kind: str) -> None:
    parts, format = sample(f"ct.{kind}"), "int4-g128" + "-zp" * kind.endswith("asym")
    with pytest.raises(QuantizationError, match=r"of 32 weight_scale .* no float16 values"):
        from_parts(format, parts)
    q, origin = from_parts(format, parts, round_scales=True)
    assert torch.equal(q.codes.view(torch.int32), parts["weight_packed"])
    assert torch.equal(q.scales, parts["weight_scale"].to(torch.float16))
    if q.zero_points is None:
        golden = torch.from_numpy(ARRAYS["i4_compressed_tensors_g128_codes_w"])
        assert torch.equal(q.codes, golden)
    again = to_parts(q, origin)
    assert again.keys() == parts.keys()
    assert all(torch.equal(again[name], parts[name]) for name in parts)


def test_a_zero_block_is_0_125_there_and_0_here(tmp_path: Path, seed: int) -> None:
    weight = random_weight(seed, 4, 64)
    ours = quantize(weight, "nvfp4")
    assert ours.scales[0, 0] == 0 and not ours.codes[0, :8].any()
    theirs = ours.scales.clone()
    theirs[0, 0] = 0x20
    other = QuantizedTensor("nvfp4", ours.shape, ours.codes.clone(), theirs, ours.global_scale)
    write_compressed_tensors(tmp_path / "both", {"ours": ours, "theirs": other}, {})
    back = read_compressed_tensors(tmp_path / "both").weights
    assert back["ours"].scales[0, 0] == 0 and back["theirs"].scales[0, 0] == 0x20
    assert torch.equal(back["ours"].dequantize(), back["theirs"].dequantize())


RECORDED = sorted(path.parent for path in GOLDEN.glob("compressed_tensors/*/config.json"))


@pytest.mark.parametrize("folder", RECORDED, ids=[path.name for path in RECORDED])
def test_a_small_transformer_that_the_library_saved(folder: Path, tmp_path: Path) -> None:
    file = read_compressed_tensors(folder)
    digests = json.loads((folder / "decompressed.json").read_text())
    assert file.weights.keys() == digests.keys() and len(digests) == 7
    for name, q in file.weights.items():
        # bfloat16 there; + 0.0 makes one zero of both.
        weight = q.dequantize().to(torch.bfloat16) + 0.0
        data = weight.contiguous().view(torch.uint8).numpy().tobytes()
        assert hashlib.sha256(data).hexdigest() == digests[name], name
    again = tmp_path / "again"
    write_compressed_tensors(
        again, file.weights, file.others, config=file.config, origins=file.origins
    )
    for part in ("model.safetensors", "config.json"):
        assert (again / part).read_bytes() == (folder / part).read_bytes()


def test_the_recorded_transformers_are_there() -> None:
    assert [path.name for path in RECORDED] == ["int4-g32", "int4-g32-zp", "mxfp4", "nvfp4"]


def test_modelopt_stores_the_multiplier(tmp_path: Path) -> None:
    renamed = {f"layer.{part}": tensor for part, tensor in sample("modelopt.nvfp4").items()}
    others = {"layer.input_scale": torch.tensor(0.5), "norm.weight": torch.ones(4)}
    save_file(renamed | others, tmp_path / "model.safetensors")
    weights, rest = read_modelopt(tmp_path)
    q = weights["layer"]
    assert rest.keys() == others.keys()
    assert q.global_scale == float(renamed["layer.weight_scale_2"])
    other, _ = from_parts("nvfp4", sample("ct.nvfp4"))
    assert torch.equal(q.codes, other.codes) and torch.equal(q.scales, other.scales)
    assert q.global_scale == pytest.approx(other.global_scale, rel=2.0**-22)


def test_shards_are_read_as_one(tmp_path: Path, seed: int) -> None:
    q = {name: quantize(random_weight(seed, 8, 64), "mxfp4") for name in ("a", "b")}
    write_compressed_tensors(tmp_path / "one", q, {"c": torch.ones(3)})
    tensors = load_file(tmp_path / "one/model.safetensors")
    shards = {"1.safetensors": {}, "2.safetensors": {}}  # type: dict[str, dict[str, Tensor]]
    for index, (name, tensor) in enumerate(sorted(tensors.items())):
        shards[f"{index % 2 + 1}.safetensors"][name] = tensor
    (tmp_path / "one/model.safetensors").unlink()
    for shard, held in shards.items():
        save_file(held, tmp_path / "one" / shard)
    places = {name: shard for shard, held in shards.items() for name in held}
    index_file = tmp_path / "one/model.safetensors.index.json"
    index_file.write_text(json.dumps({"metadata": {}, "weight_map": places}))
    back = read_compressed_tensors(tmp_path / "one")
    assert all(same(back.weights[name], q[name]) for name in q) and set(back.others) == {"c"}


def test_several_formats_in_one_file(tmp_path: Path, seed: int) -> None:
    weights = {f: quantize(random_weight(seed, 8, 128), f) for f in FP4 + INT4}
    write_compressed_tensors(tmp_path / "mixed", weights, {})
    back = read_compressed_tensors(tmp_path / "mixed")
    assert back.config["quantization_config"]["format"] == "mixed-precision"
    assert all(same(back.weights[name], q) for name, q in weights.items())
