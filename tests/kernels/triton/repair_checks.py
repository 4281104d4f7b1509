"""What each repair of the interpreter has to give, computed by numpy and ml_dtypes: by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import torch
import triton.language as tl
from numpy.typing import NDArray

from tests.conftest import FULL
from tests.kernels.triton.probes import (
    arithmetic,
    assembly,
    cast,
    cast_through,
    constant,
    dependent,
    dot,
    fma,
    from_libdevice,
    packed,
    scaled,
    sum_of,
)

COUNT = 1 << 20 if FULL else 1 << 17
BF16 = torch.bfloat16
Random = np.random.Generator


def any_float32(generator: Random, count: int = COUNT) -> NDArray[np.float32]:
    """Every kind of float32: subnormals, infinities and NaN among them."""
    return generator.integers(0, 2**32, count, dtype=np.uint32).view(np.float32)


def moderate(generator: Random, count: int = COUNT) -> NDArray[np.float32]:
    """Magnitudes of 2^-20 to 2^20, so that 8-bit formats see carries, overflow and underflow."""
    scale = np.exp2(generator.integers(-20, 21, count)).astype(np.float32)
    return np.asarray(generator.standard_normal(count).astype(np.float32) * scale)


def any_bf16(generator: Random, count: int = COUNT) -> torch.Tensor:
    return torch.from_numpy(generator.integers(-(2**15), 2**15, count).astype(np.int16)).view(BF16)


def as_numpy(value: torch.Tensor) -> NDArray[Any]:
    """bf16 and fp8 as ml_dtypes."""
    kinds: dict[torch.dtype, tuple[torch.dtype, Any]] = {
        BF16: (torch.int16, ml_dtypes.bfloat16),
        torch.float8_e4m3fn: (torch.uint8, ml_dtypes.float8_e4m3fn),
        torch.float8_e5m2: (torch.uint8, ml_dtypes.float8_e5m2),
    }
    if value.dtype not in kinds:
        return np.asarray(value.numpy())
    bits, kind = kinds[value.dtype]
    return np.asarray(value.view(bits).numpy().view(kind))


def same(got: torch.Tensor, want: NDArray[Any]) -> None:
    """Equal values with equal signs of zero; any NaN for a NaN."""
    found = as_numpy(got)
    assert found.dtype == want.dtype, (found.dtype, want.dtype)
    nan = np.isnan(want.astype(np.float64))
    np.testing.assert_array_equal(np.isnan(found.astype(np.float64)), nan)
    unsigned = f"u{want.dtype.itemsize}"
    np.testing.assert_array_equal(found[~nan].view(unsigned), want[~nan].view(unsigned))


def bf16_casts(generator: Random) -> None:
    x = any_float32(generator)
    y = torch.empty(COUNT, dtype=BF16)
    cast[(1,)](torch.from_numpy(x), y, BLOCK=COUNT)
    with np.errstate(all="ignore"):
        same(y, x.astype(ml_dtypes.bfloat16))
    whole = torch.from_numpy(generator.integers(-(2**31), 2**31, COUNT).astype(np.int32))
    cast[(1,)](whole, y, BLOCK=COUNT)
    same(y, whole.numpy().astype(np.float32).astype(ml_dtypes.bfloat16))
    every = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(BF16)
    for kind in (torch.float32, torch.float16, torch.float64):
        z = torch.empty(2**16, dtype=kind)
        cast[(1,)](every, z, BLOCK=2**16)
        with np.errstate(all="ignore"):
            same(z, as_numpy(every).astype(z.numpy().dtype))
    small = every[every.float().abs() < 2**30]
    small = small[: 1 << (len(small).bit_length() - 1)].contiguous()
    integers = torch.empty(len(small), dtype=torch.int32)
    cast[(1,)](small, integers, BLOCK=len(small))
    np.testing.assert_array_equal(integers.numpy(), small.float().numpy().astype(np.int32))
    tenth = torch.empty(16, dtype=BF16)
    constant[(1,)](tenth, N=16)
    assert tenth.tolist() == [torch.tensor(0.1, dtype=BF16).item()] * 16


def bf16_arithmetic(generator: Random) -> None:
    x, y = any_bf16(generator), any_bf16(generator)
    a, b = as_numpy(x), as_numpy(y)
    z = torch.empty(COUNT, dtype=BF16)
    with np.errstate(all="ignore"):
        wants = {
            "add": a + b,
            "sub": a - b,
            "mul": a * b,
            "where": np.where(a > b, a, b),
            "abs": np.abs(a),
        }
        for name, want in wants.items():
            arithmetic[(1,)](x, y, z, OP=name, N=COUNT)
            same(z, want)
        less = torch.empty(COUNT, dtype=torch.bool)
        arithmetic[(1,)](x, y, less, OP="less", N=COUNT)
        np.testing.assert_array_equal(less.numpy(), a < b)
    got = torch.empty(2)
    row = torch.from_numpy(generator.standard_normal(4096).astype(np.float32)).to(BF16)
    sum_of[(1,)](row, got, WIDEN=True, N=4096)
    bound = 4096 * 2.0**-24 * float(row.double().abs().sum())
    assert abs(float(got[0]) - float(row.double().sum())) <= bound
    assert float(got[1]) == float(row.max())
    m, n = (torch.from_numpy(moderate(generator, 64 * 64)).to(BF16).view(64, 64) for _ in range(2))
    close_dot(m, n)


def close_dot(m: torch.Tensor, n: torch.Tensor) -> None:
    """tl.dot within the error of 64 roundings of float32 of the sum of absolute products."""
    got = torch.empty(64, 64)
    dot[(1,)](m, n, got, N=64)
    bound = 64 * 2.0**-24 * (m.double().abs() @ n.double().abs())
    assert bool(((got.double() - m.double() @ n.double()).abs() <= bound).all())


def saturated(x: NDArray[np.float32], kind: Any) -> NDArray[Any]:
    largest = float(ml_dtypes.finfo(kind).max)
    return np.clip(x, -largest, largest).astype(kind)


def fp8_casts(generator: Random) -> None:
    pairs = (
        (torch.float8_e4m3fn, tl.float8e4nv, ml_dtypes.float8_e4m3fn),
        (torch.float8_e5m2, tl.float8e5, ml_dtypes.float8_e5m2),
    )
    for stored, inside, kind in pairs:
        codes = torch.arange(256, dtype=torch.int16).to(torch.uint8).view(stored)
        for wide in (torch.float32, torch.float16, BF16):
            z = torch.empty(256, dtype=wide)
            cast[(1,)](codes, z, BLOCK=256)
            same(z, as_numpy(codes).astype(as_numpy(z).dtype))
        y = torch.empty(COUNT, dtype=stored)
        with np.errstate(all="ignore"):
            for x in (any_float32(generator), moderate(generator)):
                cast[(1,)](torch.from_numpy(x), y, BLOCK=COUNT)
                same(y, saturated(x, kind))
            for narrow in (torch.float16, BF16):
                x16 = torch.from_numpy(moderate(generator)).to(narrow)
                cast[(1,)](x16, y, BLOCK=COUNT)
                same(y, saturated(x16.float().numpy(), kind))
        through = torch.empty(COUNT)
        cast_through[(1,)](torch.from_numpy(x), through, TYPE=inside, BLOCK=COUNT)
        same(through, saturated(x, kind).astype(np.float32))
        values = as_numpy(codes[: 127 if kind is ml_dtypes.float8_e4m3fn else 124])
        picked = generator.choice(values, (2, 64, 64)).view(np.uint8)
        close_dot(*torch.from_numpy(picked).view(stored))


def fma_rounds_once(generator: Random) -> None:
    """Where x * y + z nearly cancels the rounding of the product is all that is left."""
    x, y = (generator.standard_normal(COUNT).astype(np.float32) for _ in range(2))
    product = x.astype(np.float64) * y
    z = -product.astype(np.float32)
    got = torch.empty(COUNT)
    fma[(1,)](*map(torch.from_numpy, (x, y, z)), got, N=COUNT)
    same(got, (product + z).astype(np.float32))  # both exact: product of 48 bits, close sum
    halves = [torch.from_numpy(v).half() for v in (x, y, z)]
    half = torch.empty(COUNT, dtype=torch.float16)
    fma[(1,)](*halves, half, N=COUNT)
    a, b, c = (v.numpy().astype(np.float64) for v in halves)
    same(half, (a * b + c).astype(np.float16))  # at most 22 + 30 bits: exact in float64


def nan_is_dropped(generator: Random) -> None:
    for kind in (torch.float32, BF16):
        x, y = (torch.from_numpy(any_float32(generator)).to(kind) for _ in range(2))
        a, b = x.float().numpy(), y.float().numpy()
        z = torch.empty(COUNT, dtype=kind)
        either = (np.isnan(a) != np.isnan(b)) | (a != b)  # not the sign of a zero
        with np.errstate(all="ignore"):
            clamped = np.fmin(np.fmax(a, -b), b)
            for name, want in (
                ("maximum", np.fmax(a, b)),
                ("minimum", np.fmin(a, b)),
                ("propagate", np.maximum(a, b)),
                ("clamp", clamped),
            ):
                arithmetic[(1,)](x, y, z, OP=name, N=COUNT)
                np.testing.assert_array_equal(z.float().numpy()[either], want[either])


def dot_scaled(generator: Random) -> None:
    n, k = 32, 128
    for group in (16, 32):
        codes = [generator.integers(0, 256, (n, k // 2), dtype=np.uint8) for _ in range(2)]
        if group == 16:
            raw = [generator.integers(0, 0x7F, (n, k // group), dtype=np.uint8) for _ in range(2)]
            scales = [r.view(ml_dtypes.float8_e4m3fn).astype(np.float64) for r in raw]
            given = [torch.from_numpy(r).view(torch.float8_e4m3fn) for r in raw]
        else:
            raw = [generator.integers(117, 138, (n, k // group), dtype=np.uint8) for _ in range(2)]
            scales = [np.exp2(r.astype(np.float64) - 127) for r in raw]
            given = [torch.from_numpy(r) for r in raw]
        values = []
        for code, scale in zip(codes, scales, strict=True):
            nibbles = np.stack([code & 15, code >> 4], -1).reshape(n, k)
            decoded = nibbles.view(ml_dtypes.float4_e2m1fn).astype(np.float64)
            values.append(decoded * np.repeat(scale, group, 1))
        z = torch.empty(n, n)
        x, y = map(torch.from_numpy, codes)
        scaled[(1,)](x, given[0], y, given[1], z, N=n, K=k, GROUP=group)
        bound = k * 2.0**-24 * (np.abs(values[0]) @ np.abs(values[1]).T)
        assert (np.abs(z.double().numpy() - values[0] @ values[1].T) <= bound).all()


def inline_assembly(generator: Random) -> None:
    n = 1024
    x = torch.from_numpy(generator.integers(-(2**31), 2**31, n).astype(np.int32))
    y = torch.from_numpy(generator.integers(-(2**63), 2**63, n, dtype=np.int64))
    z = torch.empty(n, dtype=torch.int32)
    assembly[(1,)](x, y, z, N=n)
    a = x.numpy().view(np.int8).reshape(n, 4).astype(np.int64)
    b = y.numpy().view(np.int8).reshape(n, 2, 4)
    np.testing.assert_array_equal(z.numpy(), (a[:, None] * b).sum((1, 2)))
    bytes_ = torch.from_numpy(generator.integers(0, 256, n, dtype=np.uint8))
    flipped = torch.empty_like(bytes_)
    total = torch.empty_like(x)
    packed[(1,)](bytes_, x, flipped, total, N=n)
    np.testing.assert_array_equal(flipped.numpy(), ~bytes_.numpy())
    first = np.repeat(bytes_.numpy().reshape(-1, 4)[:, 0], 4).astype(np.int32)
    np.testing.assert_array_equal(total.numpy(), x.numpy() + first)
    dependent[(1,)](x, z, N=n)
    np.testing.assert_array_equal(z.numpy(), x.numpy() + 1)


def functions_of_libdevice(generator: Random) -> None:
    x = np.asarray(generator.standard_normal(COUNT) * 3, np.float32)
    x[:6] = (0.5, 1.5, -2.5, np.inf, np.nan, -0.0)
    z = torch.empty(COUNT)
    wide = x.astype(np.float64)
    wants = {
        "rint": np.rint(x),
        "trunc": np.trunc(x),
        "round": np.sign(wide) * np.floor(np.abs(wide) + 0.5),
    }
    for name, want in wants.items():
        from_libdevice[(1,)](torch.from_numpy(x), z, OP=name, N=COUNT)
        np.testing.assert_array_equal(z.numpy(), want.astype(np.float32))
    for name, exact in (("tanh", math.tanh), ("erf", math.erf)):
        from_libdevice[(1,)](torch.from_numpy(x), z, OP=name, N=COUNT)
        want = np.array([exact(v) for v in wide[:4096]])
        np.testing.assert_allclose(z.numpy()[:4096], want, rtol=2.0**-23)


CHECKS: dict[str, Callable[[Random], None]] = {
    "bf16_casts": bf16_casts,
    "bf16_arithmetic": bf16_arithmetic,
    "fp8_casts": fp8_casts,
    "fma": fma_rounds_once,
    "nan_of_min_max": nan_is_dropped,
    "scaled_dot": dot_scaled,
    "inline_asm": inline_assembly,
    "libdevice": functions_of_libdevice,
}
