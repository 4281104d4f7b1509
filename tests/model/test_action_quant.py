"""ActionQuant: 4-bit chunks, their bytes, their error, and the compensation."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.model.networks import build
from wmrt.model.action_quant import GROUP, GROUP_BYTES, LEVELS, ActionQuant
from wmrt.train.trainer import train_compensation

SHAPES = [(8, 2), (4, 2), (8, 1), (1, 1), (5, 3), (16, 7)]


def codec_of(chunk: int, dims: int, seed: int, wild: bool = False) -> ActionQuant:
    torch.manual_seed(seed)
    codec = ActionQuant(chunk, dims)
    if wild:  # a compensation as far out as tanh lets it go
        with torch.no_grad():
            for p in codec.parameters():
                p.normal_(0, 5)
    return codec


def chunks(shape: tuple[int, int], count: int, seed: int) -> Tensor:
    """Chunks of every size from 1 down to 1e-5, each in [-1, 1]."""
    generator = torch.Generator().manual_seed(seed)
    size = 10 ** (-5 * torch.rand(count, 1, 1, generator=generator))
    return (2 * torch.rand(count, *shape, generator=generator) - 1) * size


def steps_of(codec: ActionQuant, scale: Tensor) -> Tensor:
    """The quantization step of every element, float32[..., H, A]."""
    return codec._ungroup(scale.float().unsqueeze(-1).expand(*scale.shape, GROUP))


@pytest.mark.parametrize("shape", SHAPES)
def test_error_is_half_a_step_plain_and_at_most_one_compensated(
    shape: tuple[int, int], seed: int
) -> None:
    codec = codec_of(*shape, seed, wild=True)
    chunk = chunks(shape, 300, seed)
    with torch.no_grad():
        codes, scale = codec.quantize(chunk)
        plain = codec.dequantize(codes, scale, compensate=False)
        full = codec(chunk)
    assert codes.dtype == torch.int8 and scale.dtype == torch.float16
    assert int(codes.abs().max()) <= LEVELS
    step = steps_of(codec, scale)
    # float16 scales below 2^-14 are multiples of 2^-24: seven of them off by half of one each
    slack = 7 * 2.0**-25
    assert bool(((plain - chunk).abs() <= 0.5 * step * (1 + 1e-5) + slack).all())
    assert bool(((full - chunk).abs() <= step * (1 + 1e-5) + slack).all())
    assert bool(((full - plain).abs() <= 0.5 * step * (1 + 1e-5)).all())
    assert float(full.abs().max()) <= 1.0


def test_the_largest_of_a_group_survives_to_a_float16_rounding(seed: int) -> None:
    codec = codec_of(8, 2, seed)
    chunk = torch.zeros(8, 2)
    chunk[3, 1] = -0.8765
    codes, scale = codec.quantize(chunk)
    assert int(codes.min()) == -LEVELS and int((codes != 0).sum()) == 1
    plain = codec.dequantize(codes, scale, compensate=False)
    assert abs(float(plain[3, 1]) + 0.8765) <= 0.8765 * 2**-11


@pytest.mark.parametrize("shape", SHAPES)
def test_packing_round_trip_and_length(shape: tuple[int, int], seed: int) -> None:
    codec = codec_of(*shape, seed)
    groups = -(-shape[0] * shape[1] // GROUP)
    for chunk in chunks(shape, 20, seed):
        data = codec.pack(chunk)
        assert isinstance(data, bytes) and len(data) == groups * GROUP_BYTES == groups * 10
        with torch.no_grad():
            torch.testing.assert_close(codec.unpack(data), codec(chunk), rtol=0, atol=1e-6)


def test_a_chunk_of_eight_by_two_travels_as_ten_bytes(seed: int) -> None:
    assert len(codec_of(8, 2, seed).pack(torch.zeros(8, 2))) == 10


def test_packed_bytes_are_laid_out_as_documented(seed: int) -> None:
    codec = codec_of(8, 2, seed)
    chunk = chunks((8, 2), 1, seed)[0]
    data = codec.pack(chunk)
    flat = chunk.T.flatten().numpy()  # dimension by dimension
    scale = np.float16(np.abs(flat).max() / np.float32(7))
    assert struct.unpack("<e", data[8:])[0] == float(scale)
    for i, value in enumerate(flat):
        nibble = data[i // 2] >> (4 * (i % 2)) & 0xF
        code = nibble - 16 if nibble > 7 else nibble
        assert code == int(np.clip(np.rint(value / np.float32(scale)), -7, 7))


def test_zero_stays_exactly_zero(seed: int) -> None:
    codec = codec_of(8, 2, seed, wild=True)
    zero = torch.zeros(8, 2)
    data = codec.pack(zero)
    assert data == bytes(10)
    with torch.no_grad():
        assert torch.equal(codec(zero), zero) and torch.equal(codec.unpack(data), zero)


@pytest.mark.parametrize("length", [0, 9, 11, 20])
def test_bytes_of_another_length_are_refused(length: int, seed: int) -> None:
    with pytest.raises(ValueError, match=f"of {length} bytes; expected 10"):
        codec_of(8, 2, seed).unpack(bytes(length))


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), -float("inf"), -0.5])
def test_a_scale_that_cannot_be_is_refused(scale: float, seed: int) -> None:
    data = bytes(8) + struct.pack("<e", scale)
    with pytest.raises(ValueError, match="negative or non-finite scale"):
        codec_of(8, 2, seed).unpack(data)


def test_a_chunk_with_nan_cannot_be_unpacked(seed: int) -> None:
    codec = codec_of(8, 2, seed)
    chunk = torch.zeros(8, 2)
    chunk[1, 1] = float("nan")
    with pytest.raises(ValueError, match="non-finite scale"):
        codec.unpack(codec.pack(chunk))


def test_compensation_training_lowers_the_error_on_held_back_chunks(seed: int) -> None:
    # Chunks of a drive are smooth: ramps from 0 here. What rounding does to one can be learned.
    generator = torch.Generator().manual_seed(seed)
    count, network = 3000, build(seed, chunk=8)
    end = 2 * torch.rand(count, 1, 2, generator=generator) - 1
    lines = end * torch.linspace(0, 1, 8)[:, None]
    before = [p.clone() for p in network.blocks.parameters()]
    result = train_compensation(network, lines, steps=150, seed=seed)
    # 150 steps take 2.7 to 4.4% off over 10 seeds; the shipped model trains four times as long
    assert result["rmse_compensated"] < 0.995 * result["rmse_plain"]
    assert all(torch.equal(a, b) for a, b in zip(before, network.blocks.parameters(), strict=True))
    with torch.no_grad():
        held = lines[: count // 10]
        error = (network.action_quant(held) - held).square().mean().sqrt()
    assert abs(float(error) - result["rmse_compensated"]) < 1e-6
    again = train_compensation(build(seed, chunk=8), lines, steps=150, seed=seed)
    assert again == result
