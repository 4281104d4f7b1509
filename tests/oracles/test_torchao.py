"""Every format against torchao, live: `make test-oracles`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from torch import Tensor

from tests.oracles.agreement import OURS, THEIRS, record
from tests.oracles.live import oracle
from tests.quant.inputs import adversarial
from wmrt.quant import quantize
from wmrt.quant.block_scales import blocks_of, int4_scales, int4_zero_points
from wmrt.quant.formats import FORMATS, unpack_nibbles
from wmrt.quant.rules import LIBRARIES, Rules

nvfp4_tensor, NAME = oracle("torchao.prototype.mx_formats.nvfp4_tensor", "torchao")
mx_tensor, _ = oracle("torchao.prototype.mx_formats.mx_tensor", "torchao")
primitives, _ = oracle("torchao.quantization.quant_primitives", "torchao")
pytestmark = pytest.mark.filterwarnings("ignore")  # theirs are not ours to fix
RULES = LIBRARIES["torchao"]
TINY = torch.finfo(torch.float32).smallest_normal


def padded(w: Tensor, name: str) -> Tensor:
    return blocks_of(w, FORMATS[name]).flatten(-2).contiguous()


def same_values(mine: np.ndarray, theirs: np.ndarray) -> None:
    """Equal E2M1 codes, but for the sign of zeros."""
    off = mine != theirs
    assert not ((mine[off] | theirs[off]) & 7).any()


@given(w=adversarial())
def test_nvfp4(w: Tensor) -> None:
    amax = w.abs().max()
    assume(float(amax) > 2.0**-100)  # of zeros theirs makes NaN
    scale = nvfp4_tensor.per_tensor_amax_to_scale(amax)
    scales, packed = nvfp4_tensor.nvfp4_quantize(padded(w, "nvfp4"), 16, scale)
    scales, codes = scales.view(torch.uint8), unpack_nibbles(packed.view(torch.uint8)).numpy()
    ours = quantize(w, "nvfp4", rules=RULES)
    mine = unpack_nibbles(ours.codes).numpy()
    assert ours.global_scale == float(scale)
    record(NAME, "nvfp4", THEIRS, scales=(ours.scales.numpy(), scales.numpy()),
           codes=(mine, codes), sign=8)  # fmt: skip
    assert torch.equal(ours.scales, scales)
    same_values(mine, codes)
    plain = quantize(w, "nvfp4")
    kept = (plain.scales == scales).repeat_interleave(16, 1).numpy()
    record(NAME, "nvfp4", OURS, scales=(plain.scales.numpy(), scales.numpy()),
           codes=(unpack_nibbles(plain.codes).numpy()[kept], codes[kept]), sign=8)  # fmt: skip


@pytest.mark.parametrize("rule", ["floor", "even", "ceil", "rceil"])
@given(w=adversarial())
def test_mxfp4(rule: str, w: Tensor) -> None:
    mode = getattr(mx_tensor.ScaleCalculationMode, rule.upper())
    wide = padded(w, "mxfp4")
    # Its smallest scale is 2^-126, not 2^-127.
    amax = wide.view(len(wide), -1, 32).abs().amax(-1)
    assume(bool(((amax == 0) | (amax > 2.0**-120)).all()))
    scales, packed = mx_tensor.to_mx(wide, torch.float4_e2m1fn_x2, 32, mode)
    scales, codes = scales.view(torch.uint8), unpack_nibbles(packed.view(torch.uint8)).numpy()
    ours = quantize(w, "mxfp4", rules=Rules(mx_scale=rule))
    scales = scales.reshape(ours.scales.shape)
    mine = unpack_nibbles(ours.codes).numpy()
    # Its rceil takes log2 of a rounded quotient: one too low just above 6 x 2^k.
    off = ours.scales != scales
    if rule == "rceil":
        mantissa = amax.view(torch.int32) & 0x7FFFFF
        assert ((mantissa[off] - 0x400000) == 1).all()
        assert torch.equal(ours.scales[off], scales[off] + 1)
    else:
        assert not off.any()
    same = (~off).repeat_interleave(32, 1).numpy()
    record(NAME, "mxfp4 " + rule, THEIRS, scales=(ours.scales.numpy(), scales.numpy()),
           codes=(mine[same], codes[same]), sign=8)  # fmt: skip
    same_values(mine[same], codes[same])


@pytest.mark.parametrize("zero_points", [False, True])
@pytest.mark.parametrize("group", [32, 64, 128])
@given(w=adversarial(most_columns=300))
def test_int4(group: int, zero_points: bool, w: Tensor) -> None:
    assume(float(w.abs().max()) < 4e5)  # beyond, a float16 scale overflows and ours refuses
    name = f"int4-g{group}" + ("-zp" if zero_points else "")
    spec, wide = FORMATS[name], padded(w, name)
    kind = primitives.MappingType.ASYMMETRIC if zero_points else primitives.MappingType.SYMMETRIC
    scales, zeros = primitives.choose_qparams_affine(
        wide, kind, (1, group), torch.int8, -8, 7, zero_point_dtype=torch.int8
    )
    blocks = blocks_of(w, spec)
    own = int4_scales(blocks, spec)
    held = own > TINY  # theirs is never below that
    scales, zeros = scales.reshape(own.shape), zeros.reshape(own.shape)
    assert torch.equal(own[held], scales[held])
    if zero_points:
        assert torch.equal(int4_zero_points(blocks, own)[held].char() - 8, zeros[held])
    ours = quantize(w, name, rules=RULES)
    held &= ours.scales != 0
    points = torch.zeros_like(zeros)
    if ours.zero_points is not None:
        points = ours.zero_points.char() - 8
    safe = torch.where(held, ours.scales.float(), 1.0)
    values = primitives.quantize_affine(wide, (1, group), safe, points, torch.int8, -8, 7)
    mine, theirs = unpack_nibbles(ours.codes).numpy(), (values + 8).view(torch.uint8).numpy()
    keep = held.repeat_interleave(group, 1).numpy()
    record(NAME, name, THEIRS, scales=(own[held].numpy(), scales[held].numpy()),
           codes=(mine[keep], theirs[keep]))  # fmt: skip
    off = (mine != theirs) & keep
    if zero_points:
        # Theirs rounds x / s and then adds the zero point: a tie goes to the even integer of the
        # quotient, ours to the even code. They differ at exact ties under odd zero points.
        quotient = (blocks * (1.0 / safe).unsqueeze(-1)).flatten(-2).numpy()[off]
        # The sum rounds once in float32, at a magnitude of up to 16.
        assert (np.abs(quotient - np.floor(quotient) - 0.5) <= 2.0**-20).all()
    else:
        assert not off.any()


def float8(w: Tensor, per_tensor: bool) -> tuple[Tensor, Tensor]:
    block = list(w.shape) if per_tensor else [1, w.shape[1]]
    scales = primitives._choose_scale_float8(w, block)
    safe = torch.where(scales > 0, scales, 1.0)
    return scales, primitives._quantize_affine_float8(w, safe).view(torch.uint8)


@pytest.mark.parametrize("name", ["fp8-tensor", "fp8-channel"])
@given(w=adversarial())
def test_fp8(name: str, w: Tensor) -> None:
    # Of one column theirs makes one scale for all rows: it reduces over no dimension, so over all.
    assume(FORMATS[name].per_tensor or w.shape[1] > 1)
    scales, codes = float8(w, FORMATS[name].per_tensor)
    ours = quantize(w, name, rules=RULES)
    held = (ours.scales != 0).expand(len(w), 1)[:, 0]
    assert torch.equal(ours.scales, scales.reshape(ours.scales.shape))
    mine, theirs = ours.codes[held].numpy(), codes[held].numpy()
    record(NAME, name, THEIRS, scales=(ours.scales.numpy(), scales.reshape(-1, 1).numpy()),
           codes=(mine, theirs), sign=128)  # fmt: skip
    np.testing.assert_array_equal(mine, theirs)


@given(w=adversarial())
def test_int8(w: Tensor) -> None:
    assume(w.shape[1] > 1)  # as for fp8
    kind: Any = primitives.MappingType.SYMMETRIC
    block = (1, w.shape[1])
    scales, zeros = primitives.choose_qparams_affine(
        w, kind, block, torch.int8, zero_point_dtype=torch.int32
    )
    ours = quantize(w, "int8-channel", rules=RULES)
    held = ours.scales[:, 0] > TINY
    assert torch.equal(ours.scales[held, 0], scales.reshape(-1)[held])
    codes = primitives.quantize_affine(w, block, scales, zeros, torch.int8).view(torch.uint8)
    mine, theirs = ours.codes[held].numpy(), codes[held].numpy()
    record(NAME, "int8-channel", THEIRS, codes=(mine, theirs),
           scales=(ours.scales[held].numpy(), scales.reshape(-1, 1)[held].numpy()))  # fmt: skip
    np.testing.assert_array_equal(mine, theirs)
