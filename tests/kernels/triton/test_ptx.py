"""The PTX emulator, instruction by instruction, against plain integers, numpy and ml_dtypes."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.conftest import FULL
from wmrt.core.errors import UnsupportedError, UsageError
from wmrt.kernels.triton import ptx

COUNT = 1_000_000 if FULL else 100_000
WORD = 2**32


def words(generator: np.random.Generator, count: int = COUNT) -> NDArray[np.uint32]:
    return generator.integers(0, WORD, count, dtype=np.uint32)


def one(instruction: str, *inputs: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """The 32-bit result of one instruction on registers."""
    operands = ", ".join(f"${index + 1}" for index in range(len(inputs)))
    letters = ",".join(["=r", *("r" for _ in inputs)])
    (result,) = ptx.emulate(f"{instruction} $0, {operands};", letters, inputs)
    return np.broadcast_to(result, inputs[0].shape).astype(np.uint32)


def same(got: NDArray[np.uint32], want: NDArray[np.uint32]) -> None:
    np.testing.assert_array_equal(got, want)


def test_prmt_picks_bytes_and_signs(seed: int) -> None:
    generator = np.random.default_rng(seed)
    a, b, selector = (words(generator) for _ in range(3))
    pool = np.stack([a, b], -1).astype("<u4").view(np.uint8)
    want = np.empty((COUNT, 4), np.uint8)
    for index in range(4):
        nibble = selector >> np.uint32(4 * index) & np.uint32(15)
        byte = pool[np.arange(COUNT), nibble & 7]
        want[:, index] = np.where(nibble & 8, np.where(byte & 128, 255, 0), byte)
    same(one("prmt.b32", a, b, selector), want.view("<u4")[:, 0])


@pytest.mark.parametrize("left", ["s32", "u32"])
@pytest.mark.parametrize("right", ["s32", "u32"])
def test_dp4a_is_a_dot_product_of_bytes(left: str, right: str, seed: int) -> None:
    generator = np.random.default_rng(seed)
    a, b, c = (words(generator) for _ in range(3))
    kinds = {"s32": np.int8, "u32": np.uint8}
    x = a.view(kinds[left]).reshape(-1, 4).astype(np.int64)
    y = b.view(kinds[right]).reshape(-1, 4).astype(np.int64)
    want = (x * y).sum(1) + c.view(np.int32)
    same(one(f"dp4a.{left}.{right}", a, b, c), (want % WORD).astype(np.uint32))


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("and.b32", lambda a, b: a & b),
        ("or.b32", lambda a, b: a | b),
        ("xor.b32", lambda a, b: a ^ b),
        ("add.s32", lambda a, b: a + b),
        ("add.u32", lambda a, b: a + b),
        ("sub.s32", lambda a, b: a - b),
        ("sub.u32", lambda a, b: a - b),
        ("mul.lo.s32", lambda a, b: a * b),
        ("mul.lo.u32", lambda a, b: a * b),
    ],
)
def test_integer_arithmetic_wraps(name: str, want: Callable[..., object], seed: int) -> None:
    generator = np.random.default_rng(seed)
    a, b = words(generator), words(generator)
    same(one(name, a, b), np.asarray(want(a, b), np.uint32))


def test_mad_not_and_lop3(seed: int) -> None:
    generator = np.random.default_rng(seed)
    a, b, c = (words(generator) for _ in range(3))
    same(one("mad.lo.s32", a, b, c), a * b + c)
    same(one("mad.lo.u32", a, b, c), a * b + c)
    same(one("not.b32", a), ~a)
    # 0xF0, 0xCC and 0xAA stand for the operands themselves (PTX ISA, lop3).
    for table, want in ((0x80, a & b & c), (0xEA, (a & b) | c), (0x96, a ^ b ^ c), (0x35, None)):
        (got,) = ptx.emulate(f"lop3.b32 $0, $1, $2, $3, {table};", "=r,r,r,r", (a, b, c))
        if want is None:  # a ? ~b : ~c
            want = (a & ~b) | (~a & ~c)
        same(got.astype(np.uint32), want)


def test_shifts_of_32_and_more_shift_all_out(seed: int) -> None:
    generator = np.random.default_rng(seed)
    a, by = words(generator), generator.integers(0, 70, COUNT).astype(np.uint32)
    wide, clipped = a.astype(np.uint64), np.minimum(by, 32).astype(np.uint64)
    same(one("shl.b32", a, by), (wide << clipped).astype(np.uint32))
    for name in ("shr.u32", "shr.b32"):
        same(one(name, a, by), (wide >> clipped).astype(np.uint32))
    signed = a.view(np.int32).astype(np.int64) >> clipped.astype(np.int64)
    same(one("shr.s32", a, by), signed.astype(np.int32).view(np.uint32))


def nan_aware(got: NDArray[np.uint32], want: NDArray[np.float32]) -> None:
    """Same bits; any NaN for a NaN."""
    nan = np.isnan(want)
    assert np.isnan(got.view(np.float32)[nan]).all()
    np.testing.assert_array_equal(got[~nan], want.view(np.uint32)[~nan])


@pytest.mark.parametrize("suffix", ["f32", "rn.f32"])
def test_float32_add_and_mul(suffix: str, seed: int) -> None:
    generator = np.random.default_rng(seed)
    a, b = words(generator), words(generator)
    x, y = a.view(np.float32), b.view(np.float32)
    with np.errstate(all="ignore"):
        nan_aware(one(f"add.{suffix}", a, b), x + y)
        nan_aware(one(f"mul.{suffix}", a, b), x * y)


def nearest(value: Fraction, digits: int, smallest: int) -> float:
    """``value`` rounded to nearest even at ``digits`` bits, no unit below 2^smallest."""
    if value == 0:
        return 0.0
    exponent = math.floor(math.log2(abs(value))) + 1
    unit = Fraction(2) ** max(exponent - digits, smallest)
    if abs(value) < Fraction(2) ** (exponent - 1):  # log2 rounded up
        unit = Fraction(2) ** max(exponent - 1 - digits, smallest)
    return float(round(value / unit) * unit)


def test_fma_rounds_once(seed: int) -> None:
    """Against exact fractions, with addends that nearly cancel or sit at a midpoint."""
    generator = np.random.default_rng(seed)
    count = COUNT // 50
    x, y = (generator.standard_normal(count).astype(np.float32) for _ in range(2))
    tiny = 2.0 ** -generator.integers(0, 60, count)
    z = (-(x.astype(np.float64) * y) * (1 + tiny)).astype(np.float32)
    z[::2] = generator.standard_normal(count).astype(np.float32)[::2] * tiny[::2]
    got = one("fma.rn.f32", *(each.view(np.uint32) for each in (x, y, z))).view(np.float32)
    want = [
        nearest(Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c)), 24, -149)
        for a, b, c in zip(x, y, z, strict=True)
    ]
    np.testing.assert_array_equal(got, np.array(want, np.float32))


def test_a_fused_sum_at_a_midpoint_of_float32() -> None:
    """1 + 2^-24 + 2^-70 lies just above a midpoint; rounding twice would drop to 1."""
    x = np.array([1 + 2.0**-12], np.float32).view(np.uint32)
    y = np.array([2.0**-12], np.float32).view(np.uint32)
    z = np.array([1 - 2.0**-12 + 2.0**-23], np.float32)
    exact = Fraction(float(z[0])) + Fraction(2) ** -12 + Fraction(2) ** -24
    got = one("fma.rn.f32", x, y, z.view(np.uint32)).view(np.float32)
    assert float(got[0]) == nearest(exact, 24, -149)
    close = [np.array([v], np.float32).view(np.uint32) for v in (2.0**-35, 2.0**-35, 1 + 2.0**-23)]
    assert float(one("fma.rn.f32", *close).view(np.float32)[0]) == 1 + 2.0**-23


@pytest.mark.parametrize(("name", "dtype"), [("f16", np.float16), ("bf16", ml_dtypes.bfloat16)])
def test_fma_of_halves_rounds_once(name: str, dtype: type, seed: int) -> None:
    generator = np.random.default_rng(seed)
    count = COUNT // 100
    values = [generator.standard_normal((count, 2)).astype(dtype) for _ in range(3)]
    packed = [value.view(np.uint16).view(np.uint32)[:, 0] for value in values]
    got = one(f"fma.rn.{name}x2", *packed).view(np.uint16).view(dtype).reshape(count, 2)
    digits, smallest = (11, -24) if name == "f16" else (8, -133)
    x, y, z = (value.astype(np.float64).ravel() for value in values)
    want = [
        nearest(Fraction(a) * Fraction(b) + Fraction(c), digits, smallest)
        for a, b, c in zip(x, y, z, strict=True)
    ]
    np.testing.assert_array_equal(got.astype(np.float64).ravel(), want)


def test_halves_add_and_multiply(seed: int) -> None:
    generator = np.random.default_rng(seed)
    a, b = words(generator), words(generator)
    x, y = (each.view(np.uint16).view(np.float16) for each in (a, b))
    with np.errstate(all="ignore"):
        for name, want in (("add", x + y), ("mul", x * y)):
            got = one(f"{name}.rn.f16x2", a, b).view(np.uint16)
            nan = np.isnan(want)
            assert np.isnan(got.view(np.float16)[nan]).all()
            np.testing.assert_array_equal(got[~nan], want.view(np.uint16)[~nan])


def test_conversions_between_floats_and_integers(seed: int) -> None:
    generator = np.random.default_rng(seed)
    every = np.arange(2**16, dtype=np.uint32)
    nan_aware(
        one("cvt.f32.f16", every),
        every.astype(np.uint16).view(np.float16).astype(np.float32),
    )
    a = words(generator)
    same(one("cvt.rn.f32.s32", a), a.view(np.int32).astype(np.float32).view(np.uint32))
    x = (generator.standard_normal(COUNT) * 10.0 ** generator.integers(-3, 12, COUNT)).astype("f4")
    x[:5] = (0.5, 1.5, -2.5, np.inf, np.nan)
    want = np.clip(np.rint(np.nan_to_num(x.astype(np.float64), nan=0)), -(2**31), 2**31 - 1)
    got = one("cvt.rni.s32.f32", x.view(np.uint32)).view(np.int32)
    np.testing.assert_array_equal(got, want.astype(np.int64))


@pytest.mark.parametrize(
    ("name", "dtype", "width"),
    [("e2m1", ml_dtypes.float4_e2m1fn, 4), ("e4m3", ml_dtypes.float8_e4m3fn, 8)],
)
def test_every_pair_of_narrow_floats(name: str, dtype: type, width: int) -> None:
    codes = np.arange(2 ** (2 * width), dtype=np.uint32)
    kind, letter = (".b8", "h") if width == 4 else (".b16", "h")
    asm = f"{{ .reg {kind} c; .reg .b16 u; mov.b16 c, $1; cvt.rn.f16x2.{name}x2 $0, c; }}"
    (got,) = ptx.emulate(asm, f"=r,{letter}", (codes,))
    halves = got.astype(np.uint32).view(np.uint16).view(np.float16).reshape(-1, 2)
    mask = 2**width - 1
    for index in range(2):
        part = (codes >> np.uint32(index * width) & np.uint32(mask)).astype(np.uint8)
        want = part.view(dtype).astype(np.float32)
        np.testing.assert_array_equal(halves[:, index].astype(np.float32), want)
        negative = np.signbit(want) & ~np.isnan(want)
        np.testing.assert_array_equal(np.signbit(halves[:, index]) & ~np.isnan(want), negative)


def test_mov_packs_unpacks_and_drops(seed: int) -> None:
    generator = np.random.default_rng(seed)
    wide = generator.integers(0, 2**64, 100, dtype=np.uint64)
    asm = """{ // scopes, comments and declarations of several registers
        .reg .b32 lo, hi; .reg .b16 h<2>; /* a
        comment of two lines */ .reg .b8 b0, b3;
        mov.b64 {lo, hi}, $2;
        mov.b32 {h0, h1}, lo;
        mov.b32 $0, {h1, h0};
        mov.b32 {b0, _, _, b3}, hi;
        mov.b16 h0, {b3, b0};
        mov.b32 $1, {h0, h0};
    }"""
    swapped, repeated = ptx.emulate(asm, "=r,=r,l", (wide,))
    low, high = wide & np.uint64(WORD - 1), wide >> np.uint64(32)
    want = low >> np.uint64(16) | (low & np.uint64(0xFFFF)) << np.uint64(16)
    np.testing.assert_array_equal(swapped, want)
    half = high >> np.uint64(24) | (high & np.uint64(255)) << np.uint64(8)
    np.testing.assert_array_equal(repeated, half | half << np.uint64(16))


def test_literals() -> None:
    zero = np.zeros(1, np.uint32)
    for text, want in (("-1", WORD - 1), ("0x80000000U", 2**31), ("0b101", 5), ("0f3F800000", 0)):
        (got,) = ptx.emulate(f"add.u32 $0, $1, {text};", "=r,r", (zero,))
        assert int(got[0]) == (0x3F800000 if text.startswith("0f") else want)


def test_barriers_of_dependent_launches_do_nothing() -> None:
    asm = "griddepcontrol.wait; mov.b32 $0, $1; griddepcontrol.launch_dependents;"
    (got,) = ptx.emulate(asm, "=r,r", (np.array([7], np.uint32),))
    assert got.tolist() == [7]


@pytest.mark.parametrize(
    ("asm", "error", "says"),
    [
        ("vabsdiff4.u32.u32.u32 $0, $1, $1, $1;", UnsupportedError, "'vabsdiff4.u32.u32.u32'"),
        ("@p mov.b32 $0, $1;", UnsupportedError, "'@p'"),
        ("{ .reg .pred p; mov.b32 $0, $1; }", UnsupportedError, r"'\.pred'"),
        ("{ .reg .b32 a; add.s32 $0, a, $1; }", UsageError, "'a' is read before"),
        ("add.s32 $0, b, $1;", UsageError, "'b' is not declared"),
        ("add.s32 b, $1, $1;", UsageError, "'b' is not declared"),
        ("add.s32 $1, $1, $1;", UsageError, r"'\$0' is read before"),
    ],
)
def test_what_is_not_emulated_is_named(asm: str, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        ptx.emulate(asm, "=r,r", (np.zeros(1, np.uint32),))


def test_constraints_are_checked() -> None:
    x = np.zeros(1, np.uint32)
    with pytest.raises(UnsupportedError, match="'n': emulated are h, r, l"):
        ptx.emulate("mov.b32 $0, $1;", "=r,n", (x,))
    with pytest.raises(UsageError, match="1 inputs for the constraints '=r,r,r'"):
        ptx.emulate("mov.b32 $0, $1;", "=r,r,r", (x,))
