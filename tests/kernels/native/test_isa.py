"""Kernels of AVX-512 and NEON: exact integers, sums within their bound, same bits however cut."""

from __future__ import annotations

import subprocess

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.kernels import oracle
from tests.kernels.native.emulation import (
    PORTABLE,
    SETS,
    UNIT_BYTES,
    UNTOUCHED,
    Driver,
    Weight,
    objects,
    units,
)
from wmrt.kernels.registry import linear
from wmrt.quant import QuantizedTensor, quantize

INT8 = [("nvfp4", "int8-g32"), ("mxfp4", "int8-g32"), ("int4-g128", "int8-g32")]
FLOAT = [("nvfp4", "bf16"), ("mxfp4", "bf16"), ("bf16", "bf16")]
PAIRS = [*INT8, *FLOAT, ("bf16", "float32"), ("float32", "float32")]
COLUMNS = [1, 15, 33, 100, 256, 300, 513, 1111]  # tails of every kind
each_pair = pytest.mark.parametrize(("format", "activation"), PAIRS)


@pytest.fixture(scope="module", params=list(SETS))
def driver(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Driver:
    return Driver.build(request.param, tmp_path_factory.mktemp("driver"), objects(request.config))


def draw(rng: np.random.Generator, shape: tuple[int, int]) -> torch.Tensor:
    x = rng.standard_normal(shape) * 10.0 ** rng.uniform(-2, 2, (shape[0], 1))
    return torch.from_numpy(x.astype(np.float32))


def random_weight(
    format: str, shape: tuple[int, int], rng: np.random.Generator
) -> torch.Tensor | QuantizedTensor:
    if format == "float32":
        return torch.from_numpy(rng.standard_normal(shape).astype(np.float32))
    return oracle.random_weight(format, shape, rng)


def answer(
    activation: str, x: torch.Tensor, weight: torch.Tensor | QuantizedTensor
) -> oracle.Answer:
    """Products with float32 are not exact in float32: one rounding more each."""
    if activation != "float32":
        return oracle.answer(activation, x, weight)
    assert isinstance(weight, torch.Tensor)
    w, v = weight.double().numpy(), x.double().numpy()
    size = np.abs(v) @ np.abs(w).T
    return oracle.Answer(v @ w.T, size * (w.shape[1] + 3) * oracle.UNIT * 1.01 + 1e-44)


def unit_scale(format: str, codes: torch.Tensor, columns: int) -> QuantizedTensor:
    """Packed codes uint8[N, K'/2] with scales of 1."""
    block, one, kind = {
        "nvfp4": (16, 0x38, torch.uint8),
        "mxfp4": (32, 127, torch.uint8),
        "int4-g128": (128, 1.0, torch.float16),
    }[format]
    scales = torch.full((len(codes), codes.shape[1] * 2 // block), one, dtype=kind)
    return QuantizedTensor(format, (len(codes), columns), codes, scales)


@pytest.mark.parametrize(("format", "activation"), INT8)
def test_integers_are_exact(driver: Driver, format: str, activation: str, seed: int) -> None:
    """Scales of 1 everywhere: y is a sum of integers below 2^24, or of their halves."""
    rng = np.random.default_rng(seed)
    batch, rows, columns = 3, 20, 512
    codes = torch.from_numpy(rng.integers(0, 256, (rows, columns // 2), np.uint8))
    codes[0], codes[1] = 0x77, 0xFF  # the largest of either sign
    x = torch.from_numpy(rng.integers(-127, 128, (batch, columns)).astype(np.float32))
    x[0] = 127.0
    x[:, ::32] = -127.0  # each group has amax 127, hence scale 1
    weight = unit_scale(format, codes, columns)
    driver.multiply(Weight.of(weight, activation), x)
    (got,) = driver.run()
    levels, _ = oracle.weight_parts(weight)
    np.testing.assert_array_equal(got.view(np.float32), x.double().numpy() @ levels.T)


@pytest.mark.parametrize(("format", "activation"), INT8[1:])
def test_dot_products_of_32_are_integers(
    driver: Driver, format: str, activation: str, seed: int
) -> None:
    """Halves of a group that cancel but for one small product: in floats they would leave more."""
    rng = np.random.default_rng(seed)
    most, least, other = (0x77, 0xFF, 0xFE) if format == "mxfp4" else (0xFF, 0x11, 0x12)
    codes = torch.full((1, 16 if format == "mxfp4" else 64), 0 if format == "mxfp4" else 0x88)
    codes[0, :8], codes[0, 8:16], codes[0, 8] = most, least, other
    x = torch.full((16, 32), 127.0)
    x[:, 16] = 1.0  # its weight is not minus that of element 0
    x *= torch.from_numpy(rng.uniform(0.01, 0.02, (16, 1)).astype(np.float32))
    weight = unit_scale(format, codes.to(torch.uint8), 32)
    driver.multiply(Weight.of(weight, activation), x)
    (got,) = driver.run()
    answer(activation, x, weight).check(torch.from_numpy(got.view(np.float32)))


@each_pair
def test_sums_lie_within_their_bound(
    driver: Driver, format: str, activation: str, seed: int
) -> None:
    """Of float64, the portable kernels and the reference: the bound is oracle.py's."""
    rng = np.random.default_rng(seed)
    cases = []
    for columns in COLUMNS:
        weight = random_weight(format, (7, columns), rng)
        x, bias = draw(rng, (3, columns)), draw(rng, (1, 7))[0]
        cases.append((weight, x, bias))
        laid = Weight.of(weight, activation)
        driver.multiply(laid, x)
        driver.multiply(laid, x, bias=bias)
        driver.multiply(laid, x, isa=PORTABLE)
    results = [torch.from_numpy(bits.view(np.float32)) for bits in driver.run()]
    for i, (weight, x, bias) in enumerate(cases):
        plain, biased, portable = results[3 * i : 3 * i + 3]
        want = answer(activation, x, weight)
        want.check(plain)
        want.check(portable)
        assert torch.equal(biased, plain + bias)
        if activation != "float32":
            want.check(linear(format, activation)(x, weight))


@each_pair
def test_same_bits_for_every_batch_and_split(
    driver: Driver, format: str, activation: str, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    rows, columns = 5, int(rng.integers(257, 700))
    laid = Weight.of(random_weight(format, (rows, columns), rng), activation)
    x = draw(rng, (16, columns))
    cuts = [(begin, end) for begin in range(rows) for end in range(begin, rows + 1)]
    driver.multiply(laid, x)
    for batch in range(1, 16):
        driver.multiply(laid, x[16 - batch :])
    for cut in cuts:
        driver.multiply(laid, x[:2], rows=cut)
    whole, *others = driver.run()
    for batch in range(1, 16):
        np.testing.assert_array_equal(others[batch - 1], whole[16 - batch :])
    for (begin, end), part in zip(cuts, others[15:], strict=True):
        np.testing.assert_array_equal(part[:, begin:end], whole[:2, begin:end])
        assert (np.delete(part, np.s_[begin:end], 1) == UNTOUCHED).all()


def hard_rows(rng: np.random.Generator, columns: int) -> torch.Tensor:
    """Zeros, subnormal, tiny and huge numbers, halves to be rounded, NaN and infinity in places."""
    x = draw(rng, (9, columns))
    x[0] = 0.0
    x[1] *= 1e-40
    x[2, ::3] = 0.0
    x[3] = torch.from_numpy(rng.integers(-254, 255, columns).astype(np.float32)) / 2
    x[3, ::32] = 127.0  # scale 1: the others lie on halves or integers
    x[4, rng.integers(columns)] = torch.inf
    x[5, rng.integers(columns)] = -torch.inf
    x[6, rng.integers(columns)] = torch.nan
    x[7] *= 1e35
    x[8] = torch.from_numpy(rng.integers(0, 2**32, columns, np.uint32).view(np.float32))
    return x


def as_portable(driver: Driver, weight: Weight, prepared: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """What AVX-512 keeps in another form, in the portable one."""
    if driver.isa != SETS["avx512-vnni"] or weight.format not in UNIT_BYTES:
        return prepared
    if weight.activation == "int8-g32":
        blocks = prepared.reshape(len(prepared), -1, 384).copy()
        offsets = blocks[..., 320:].view(np.int32)
        np.negative(offsets, out=offsets)
        return blocks.reshape(prepared.shape)
    values = prepared.view(np.uint32).reshape(len(prepared), -1, 4, 4, 16)  # 2 h + p, i, l
    return np.ascontiguousarray(values.swapaxes(-1, -2)).view(np.uint8).reshape(prepared.shape)


@each_pair
def test_prepared_bytes_are_the_portable_ones(
    driver: Driver, format: str, activation: str, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    unit = 1024 if activation != "int8-g32" else 256 + 64 + 64
    weight = Weight(b"", 1, 0, format, activation)
    for columns in COLUMNS:
        x = hard_rows(rng, columns)
        driver.prepare(weight, x, units(columns) * unit)
        driver.prepare(weight, x, units(columns) * unit, PORTABLE)
    results = driver.run()
    for own, want in zip(results[::2], results[1::2], strict=True):
        got = as_portable(driver, weight, own)
        different = (got != want).reshape(len(got), -1, 4).any(-1)
        if different.any():  # NaN may be any
            words = [a.view(np.float32)[different] for a in (got, want)]
            assert all(np.isnan(word).all() for word in words)


@each_pair
def test_what_is_not_finite_stays_in_its_row_and_is_seen(
    driver: Driver, format: str, activation: str, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    columns = 300
    laid = Weight.of(random_weight(format, (6, columns), rng), activation)
    clean = draw(rng, (5, columns))
    dirty = clean.clone()
    for row, bad in ((0, torch.nan), (2, torch.inf), (4, -torch.inf)):
        dirty[row, rng.integers(columns)] = bad
    driver.multiply(laid, clean)
    driver.multiply(laid, dirty)
    before, after = driver.run()
    np.testing.assert_array_equal(after[1::2], before[1::2])
    assert not np.isfinite(after[::2].view(np.float32)).any()
    if activation == "int8-g32":
        assert np.isnan(after[::2].view(np.float32)).all()


@pytest.mark.parametrize(("format", "activation"), [*INT8, *FLOAT[:2]])
def test_scales_of_every_size(driver: Driver, format: str, activation: str, seed: int) -> None:
    """All that a checked weight may have: E4M3 with subnormals, E8M0 of 0 to 254, any float16."""
    rng = np.random.default_rng(seed)
    rows, columns = 8, 512
    count = columns // {"nvfp4": 16, "mxfp4": 32, "int4-g128": 128}[format]
    codes = torch.from_numpy(rng.integers(0, 256, (rows, columns // 2), np.uint8))
    if format == "int4-g128":
        bits = rng.integers(0, 0x7C00, (rows, count)) | rng.integers(0, 2, (rows, count)) << 15
        scales = torch.from_numpy(bits.astype(np.uint16).view(np.float16))
    else:
        most = 0x7F if format == "nvfp4" else 230  # 2^103: sums stay finite
        scales = torch.from_numpy(rng.integers(0, most, (rows, count), np.uint8))
        scales[0] = 0 if format == "mxfp4" else 1
        scales[1] = most - 1
    weight = QuantizedTensor(format, (rows, columns), codes, scales)
    x = draw(rng, (2, columns))
    driver.multiply(Weight.of(weight, activation), x)
    (got,) = driver.run()
    want = answer(activation, x, weight)
    # Terms below the smallest normal number are rounded to 2^-149 each.
    bound = want.bound + columns * 2.0**-149
    oracle.Answer(want.exact, bound).check(torch.from_numpy(got.view(np.float32)))


def test_a_stream_reads_everything(driver: Driver, seed: int) -> None:
    rng = np.random.default_rng(seed)
    blocks = [rng.bytes(size) for size in (0, 1, 8, 63, 64, 255, 256, 257, 4096, 9999)]
    for data in blocks:
        driver.stream(data)
    for data, got in zip(blocks, driver.run(), strict=True):
        words = np.frombuffer(data + bytes(-len(data) % 8), np.uint64)
        assert got[0] == float(int(words.sum(dtype=np.uint64)))


@pytest.mark.parametrize("driver", ["neon-dotprod"], indirect=True)
def test_arm_without_dot_products_takes_the_portable_kernels(driver: Driver) -> None:
    *runner, program = driver.command
    if not runner:
        pytest.skip("this is an Arm processor: only QEMU can be another one")
    for cpu, name in (("max", "neon-dotprod"), ("cortex-a53", "portable")):
        command = [runner[0], "-cpu", cpu, program]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        assert said == f"{name}\n"


@pytest.mark.full
@each_pair
def test_every_width_and_batch(driver: Driver, format: str, activation: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    cases = []
    for columns in [*range(1, 600), 1024, 2047, 2048, 5632, 6912]:
        weight = random_weight(format, (4, columns), rng)
        x = draw(rng, (int(rng.integers(1, 17)), columns))
        driver.multiply(Weight.of(weight, activation), x)
        cases.append((weight, x))
    for bits, (weight, x) in zip(driver.run(), cases, strict=True):
        answer(activation, x, weight).check(torch.from_numpy(bits.view(np.float32)))


def test_quantize_gives_what_the_layout_is_for() -> None:
    """A weight of one block and a half is padded with codes that mean zero."""
    weight = quantize(torch.ones(1, 300), "int4-g128")
    assert len(Weight.of(weight, "int8-g32").rows) == 264
