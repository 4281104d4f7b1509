"""Every format against compressed-tensors, live: `make test-oracles`."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import assume, given
from torch import Tensor

from tests.oracles.agreement import OURS, THEIRS, record
from tests.oracles.live import oracle
from tests.quant.inputs import adversarial
from wmrt.quant import quantize
from wmrt.quant.activations import quantize_tokens
from wmrt.quant.block_scales import (
    block_amax,
    blocks_of,
    int4_scales,
    int4_zero_points,
    nvfp4_divisor,
)
from wmrt.quant.formats import FORMATS, unpack_nibbles
from wmrt.quant.rules import LIBRARIES

library, NAME = oracle("compressed_tensors.quantization", "compressed-tensors")
utils, _ = oracle("compressed_tensors.quantization.utils", "compressed-tensors")
pytestmark = pytest.mark.filterwarnings("ignore")  # theirs are not ours to fix
RULES = LIBRARIES["compressed-tensors"]
EPS = torch.finfo(torch.float32).eps


def arguments(kind: str, bits: int, strategy: str, **more: Any) -> Any:
    return library.QuantizationArgs(num_bits=bits, type=kind, strategy=strategy, **more)


def qparams(blocks: Tensor, args: Any, **more: Any) -> tuple[Tensor, Tensor]:
    found = utils.calculate_qparams(blocks.amin(-1), blocks.amax(-1), args, **more)
    return found[0], found[1]


def quantized(x: Tensor, scales: Tensor, zeros: Tensor | None, args: Any, **more: Any) -> Tensor:
    from compressed_tensors.quantization.lifecycle import forward

    values: Tensor = forward.quantize(x, scales, zeros, args, **more)
    return values


def e2m1(values: Tensor) -> np.ndarray:
    """E2M1 values -> codes, by another library's cast."""
    return values.float().numpy().astype(ml_dtypes.float4_e2m1fn).view(np.uint8)


def padded(w: Tensor, name: str) -> tuple[Tensor, Tensor]:
    blocks = blocks_of(w, FORMATS[name])
    return blocks, blocks.flatten(-2)


@given(w=adversarial())
def test_nvfp4(w: Tensor) -> None:
    spec, (blocks, wide) = FORMATS["nvfp4"], padded(w, "nvfp4")
    amax = block_amax(blocks, spec)
    # Below 2^-100 theirs falls back to a global scale of 1.
    assume(float(amax.max()) == 0.0 or float(amax.max()) > 2.0**-100)
    args = arguments("float", 4, "tensor_group", group_size=16, symmetric=True,
                     scale_dtype=torch.float8_e4m3fn)  # fmt: skip
    divisor = utils.generate_gparam(w.min(), w.max())
    scales, _ = qparams(blocks, args, global_scale=divisor)
    values = quantized(wide, scales, None, args, global_scale=divisor)
    ours = quantize(w, "nvfp4", rules=RULES)
    if float(amax.max()) > 0:
        assert torch.equal(nvfp4_divisor(amax, ours.global_scale, RULES), divisor[0])
    theirs = scales.to(torch.float8_e4m3fn).view(torch.uint8)
    mine, codes = unpack_nibbles(ours.codes).numpy(), e2m1(values)
    record(NAME, "nvfp4", THEIRS, scales=(ours.scales.numpy(), theirs.numpy()),
           codes=(mine, codes), sign=8)  # fmt: skip
    assert torch.equal(ours.scales, theirs)
    np.testing.assert_array_equal(mine[mine != codes] & 7, 0)
    np.testing.assert_array_equal(codes[mine != codes] & 7, 0)
    plain = quantize(w, "nvfp4")
    kept = (plain.scales != 0).repeat_interleave(16, 1).numpy()
    record(NAME, "nvfp4", OURS, scales=(plain.scales.numpy(), theirs.numpy()),
           codes=(unpack_nibbles(plain.codes).numpy()[kept], codes[kept]), sign=8)  # fmt: skip


@given(w=adversarial())
def test_mxfp4(w: Tensor) -> None:
    blocks, wide = padded(w, "mxfp4")
    args = arguments("float", 4, "group", group_size=32, symmetric=True, scale_dtype=torch.uint8)
    # Theirs has no scale below 2^-126 other than zero's.
    amax = blocks.abs().amax(-1)
    assume(bool(((amax == 0) | (amax > 2.0**-100)).all()))
    scales, _ = qparams(blocks, args)
    values = quantized(wide, scales, None, args)
    ours = quantize(w, "mxfp4", rules=RULES)
    held = (amax > 0).numpy()
    exponents = (torch.log2(scales).round() + 127).clamp(0, 254).to(torch.uint8).numpy()
    mine, codes = unpack_nibbles(ours.codes).numpy(), e2m1(values)
    record(NAME, "mxfp4", THEIRS, scales=(ours.scales.numpy()[held], exponents[held]),
           codes=(mine, codes), sign=8)  # fmt: skip
    np.testing.assert_array_equal(ours.scales.numpy()[held], exponents[held])
    np.testing.assert_array_equal(mine[mine != codes] & 7, 0)
    np.testing.assert_array_equal(codes[mine != codes] & 7, 0)


@pytest.mark.parametrize("zero_points", [False, True])
@pytest.mark.parametrize("group", [32, 64, 128])
@given(w=adversarial(most_columns=300))
def test_int4(group: int, zero_points: bool, w: Tensor) -> None:
    name = f"int4-g{group}" + ("-zp" if zero_points else "")
    spec, (blocks, wide) = FORMATS[name], padded(w, name)
    assume(float(w.abs().max()) < 4e5)  # beyond, a float16 scale overflows and ours refuses
    args = arguments("int", 4, "group", group_size=group, symmetric=not zero_points)
    scales, zeros = qparams(blocks, args)
    own = int4_scales(blocks, spec)
    held = own != 0  # an epsilon replaces a scale of 0
    assert torch.equal(own[held], scales[held]) and scales[~held].eq(EPS).all()
    if zero_points:
        assert torch.equal(int4_zero_points(blocks, own)[held].float() - 8, zeros[held].float())
    # Codes and zero points under the scales we store, which are float16.
    ours = quantize(w, name)
    stored = ours.scales.float()
    held &= stored != 0
    points = None
    if zero_points:
        assert ours.zero_points is not None
        points = ours.zero_points.float() - 8
        exact = (-8.0 - blocks.amin(-1).clamp(max=0) / stored).round().clamp(-8, 7)
        assert torch.equal(points[held], exact[held])
    safe = torch.where(held, stored, 1.0)
    values = quantized(wide, safe, points, args)
    keep = held.repeat_interleave(group, 1).numpy()
    mine, theirs = unpack_nibbles(ours.codes).numpy(), (values + 8).to(torch.uint8).numpy()
    record(NAME, name, THEIRS, scales=(own[held].numpy(), scales[held].numpy()),
           codes=(mine[keep], theirs[keep]))  # fmt: skip
    np.testing.assert_array_equal(mine[keep], theirs[keep])
    assert (mine[~keep] == 8).all()


@pytest.mark.parametrize("name", ["fp8-tensor", "fp8-channel", "int8-channel"])
@given(w=adversarial())
def test_eight_bits(name: str, w: Tensor) -> None:
    spec = FORMATS[name]
    kind = "float" if spec.element == "e4m3" else "int"
    args = arguments(kind, 8, "tensor" if spec.per_tensor else "channel", symmetric=True)
    low, high = (w.min(), w.max()) if spec.per_tensor else (w.amin(1, True), w.amax(1, True))
    scales, _ = utils.calculate_qparams(low, high, args)
    values = quantized(w, scales, None, args)
    ours = quantize(w, name, rules=RULES)
    held = ours.scales != 0
    assert torch.equal(ours.scales[held], scales.reshape(ours.scales.shape)[held])
    narrow = values.to(torch.float8_e4m3fn if kind == "float" else torch.int8).view(torch.uint8)
    keep = held.expand(len(w), -1)[:, 0]
    mine, theirs = ours.codes[keep].numpy(), narrow[keep].numpy()
    record(NAME, name, THEIRS, codes=(mine, theirs), sign=128 if kind == "float" else 0,
           scales=(ours.scales[held].numpy(), scales.reshape(-1, 1)[held].numpy()))  # fmt: skip
    np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("name", ["fp8-token", "int8-token"])
@given(x=adversarial())
def test_tokens(name: str, x: Tensor) -> None:
    kind = "float" if name == "fp8-token" else "int"
    args = arguments(kind, 8, "token", symmetric=True, dynamic=True)
    scales, _ = utils.compute_dynamic_scales_and_zp(x[None], args, torch.nn.Identity())
    values = quantized(x[None], scales, None, args)[0].float()
    codes, own = quantize_tokens(x, name, RULES)
    held = own[:, 0] != 0
    assert torch.equal(own[held], scales[0][held])
    record(NAME, name, THEIRS, scales=(own[held].numpy(), scales[0][held].numpy()),
           codes=(codes[held].numpy(), values[held].numpy()))  # fmt: skip
    assert torch.equal(codes[held], values[held])
