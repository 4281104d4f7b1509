"""Formats: what each stores, nibbles, and decoding against tables of another hand."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from wmrt.core.errors import QuantizationError
from wmrt.quant import formats
from wmrt.quant.formats import FORMATS


def test_nibbles_even_element_low(seed: int) -> None:
    codes = torch.from_numpy(np.random.default_rng(seed).integers(0, 16, (5, 64), dtype=np.uint8))
    packed = formats.pack_nibbles(codes)
    assert packed.dtype == torch.uint8 and packed.shape == (5, 32)
    assert int(packed[2, 3]) == int(codes[2, 6]) | int(codes[2, 7]) << 4
    assert torch.equal(formats.unpack_nibbles(packed), codes)


def test_an_unknown_format_lists_those_there_are() -> None:
    with pytest.raises(QuantizationError, match="nvfp4, mxfp4, int4-g128"):
        formats.block_format("nvfp5")


def test_the_formats_there_are() -> None:
    table = {f.name: (f.bits, f.block, f.scale, f.has_zero_points) for f in FORMATS.values()}
    assert table == {
        "nvfp4": (4, 16, "e4m3", False),
        "mxfp4": (4, 32, "e8m0", False),
        **{f"int4-g{g}": (4, g, "fp16", False) for g in (32, 64, 128)},
        **{f"int4-g{g}-zp": (4, g, "fp16", True) for g in (32, 64, 128)},
        "fp8-tensor": (8, 0, "fp32", False),
        "fp8-channel": (8, 0, "fp32", False),
        "int8-channel": (8, 0, "fp32", False),
    }
    assert [name for name, f in FORMATS.items() if f.has_global] == ["nvfp4"]
    assert [name for name, f in FORMATS.items() if f.per_tensor] == ["fp8-tensor"]
    assert {f.zero_code for f in FORMATS.values() if f.element == "int4"} == {8}


@pytest.mark.parametrize(
    ("name", "columns", "width", "scales", "size"),
    [("nvfp4", 40, 48, (3, 3), 20), ("mxfp4", 40, 64, (3, 2), 20),
     ("int4-g64", 65, 128, (3, 2), 33),
     ("fp8-channel", 41, 41, (3, 1), 41), ("fp8-tensor", 41, 41, (1, 1), 41)],
)  # fmt: skip
def test_shapes(name: str, columns: int, width: int, scales: tuple[int, int], size: int) -> None:
    fmt = FORMATS[name]
    assert fmt.width(columns) == width and fmt.scale_shape((3, columns)) == scales
    assert fmt.code_bytes(columns) == size


@pytest.mark.parametrize("name", FORMATS)
def test_codes_decode_like_ml_dtypes(name: str, seed: int) -> None:
    fmt = FORMATS[name]
    codes = np.random.default_rng(seed).integers(0, 256, (5, 64), dtype=np.uint8)
    if fmt.element == "e4m3":
        want = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    elif fmt.element == "int8":
        want = codes.view(np.int8).astype(np.float32)
    else:
        single = np.stack([codes & 15, codes >> 4], -1).reshape(5, -1)
        want = single.astype(np.float32) - 8
        if fmt.element == "e2m1":
            want = single.view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    got = formats.decode_codes(torch.from_numpy(codes), fmt)
    assert got.dtype == torch.float32
    np.testing.assert_array_equal(got.numpy(), want)


@pytest.mark.parametrize("name", FORMATS)
def test_scales_decode_like_ml_dtypes(name: str, seed: int) -> None:
    fmt, rng = FORMATS[name], np.random.default_rng(seed)
    raw = rng.integers(0, 255, (4, 8), dtype=np.uint8)
    if fmt.scale in ("e4m3", "e8m0"):
        kind = ml_dtypes.float8_e4m3fn if fmt.scale == "e4m3" else ml_dtypes.float8_e8m0fnu
        stored, want = torch.from_numpy(raw), raw.view(kind).astype(np.float32)
    else:
        stored = torch.from_numpy(rng.random((4, 8))).to(fmt.scale_dtype)
        want = stored.numpy().astype(np.float32)
    np.testing.assert_array_equal(formats.decode_scales(stored, fmt).numpy(), want)
