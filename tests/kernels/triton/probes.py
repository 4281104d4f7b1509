"""Kernels of one operation each, for what the interpreter makes of them."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def cast(x: tl.tensor, y: tl.tensor, BLOCK: tl.constexpr) -> None:
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at).to(y.dtype.element_ty))


@triton.jit
def cast_through(x: tl.tensor, y: tl.tensor, TYPE: tl.constexpr, BLOCK: tl.constexpr) -> None:
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at).to(TYPE).to(y.dtype.element_ty))


@triton.jit
def arithmetic(x: tl.tensor, y: tl.tensor, z: tl.tensor, OP: tl.constexpr, N: tl.constexpr) -> None:
    at = tl.arange(0, N)
    a = tl.load(x + at)
    b = tl.load(y + at)
    if OP == "add":
        c = a + b
    elif OP == "sub":
        c = a - b
    elif OP == "mul":
        c = a * b
    elif OP == "less":
        c = a < b
    elif OP == "where":
        c = tl.where(a > b, a, b)
    elif OP == "abs":
        c = tl.abs(a)
    elif OP == "negative":
        c = -a
    elif OP == "maximum":
        c = tl.maximum(a, b)
    elif OP == "minimum":
        c = tl.minimum(a, b)
    elif OP == "propagate":
        c = tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
    elif OP == "clamp":
        c = tl.clamp(a, -b, b)
    tl.store(z + at, c)


@triton.jit
def constant(z: tl.tensor, N: tl.constexpr) -> None:
    tl.store(z + tl.arange(0, N), tl.full((N,), 0.1, tl.bfloat16))


@triton.jit
def sum_of(x: tl.tensor, z: tl.tensor, WIDEN: tl.constexpr, N: tl.constexpr) -> None:
    value = tl.load(x + tl.arange(0, N))
    tl.store(z + 1, tl.max(value, 0))
    if WIDEN:
        value = value.to(tl.float32)
    tl.store(z, tl.sum(value, 0))


@triton.jit
def fma(w: tl.tensor, x: tl.tensor, y: tl.tensor, z: tl.tensor, N: tl.constexpr) -> None:
    at = tl.arange(0, N)
    tl.store(z + at, tl.fma(tl.load(w + at), tl.load(x + at), tl.load(y + at)))


@triton.jit
def dot(x: tl.tensor, y: tl.tensor, z: tl.tensor, N: tl.constexpr) -> None:
    row = tl.arange(0, N)[:, None]
    at = row * N + tl.arange(0, N)[None, :]
    tl.store(z + at, tl.dot(tl.load(x + at), tl.load(y + at), input_precision="ieee"))


@triton.jit
def scaled(
    x: tl.tensor,
    sx: tl.tensor,
    y: tl.tensor,
    sy: tl.tensor,
    z: tl.tensor,
    N: tl.constexpr,
    K: tl.constexpr,
    GROUP: tl.constexpr,
) -> None:
    n = tl.arange(0, N)
    k = tl.arange(0, K // 2)
    g = tl.arange(0, K // GROUP)
    left = tl.load(x + n[:, None] * (K // 2) + k[None, :])
    right = tl.load(y + k[:, None] + n[None, :] * (K // 2))
    left_scale = tl.load(sx + n[:, None] * (K // GROUP) + g[None, :])
    right_scale = tl.load(sy + n[:, None] * (K // GROUP) + g[None, :])
    result = tl.dot_scaled(left, left_scale, "e2m1", right, right_scale, "e2m1")
    tl.store(z + n[:, None] * N + n[None, :], result)


@triton.jit
def assembly(x: tl.tensor, y: tl.tensor, z: tl.tensor, N: tl.constexpr) -> None:
    at = tl.arange(0, N)
    both = tl.inline_asm_elementwise(
        "{ .reg .b32 lo, hi; mov.b64 {lo, hi}, $2; dp4a.s32.s32 $0, $1, lo, 0; "
        "dp4a.s32.s32 $0, $1, hi, $0; }",
        "=r,r,l",
        [tl.load(x + at), tl.load(y + at)],
        dtype=tl.int32,
        is_pure=True,
        pack=1,
    )
    tl.store(z + at, both)


@triton.jit
def packed(x: tl.tensor, y: tl.tensor, low: tl.tensor, sum_: tl.tensor, N: tl.constexpr) -> None:
    """Four bytes and four words at once: the negated bytes, and the words plus the first byte."""
    at = tl.arange(0, N)
    a, b = tl.inline_asm_elementwise(
        "{ .reg .b32 t; and.b32 t, $5, 255; not.b32 $0, $5; add.s32 $1, $6, t; "
        "add.s32 $2, $7, t; add.s32 $3, $8, t; add.s32 $4, $9, t; }",
        "=r,=r,=r,=r,=r,r,r,r,r,r",
        [tl.load(x + at), tl.load(y + at)],
        dtype=(tl.uint8, tl.int32),
        is_pure=True,
        pack=4,
    )
    tl.store(low + at, a)
    tl.store(sum_ + at, b)


@triton.jit
def dependent(x: tl.tensor, z: tl.tensor, N: tl.constexpr) -> None:
    tl.extra.cuda.gdc_wait()
    tl.store(z + tl.arange(0, N), tl.load(x + tl.arange(0, N)) + 1)
    tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def from_libdevice(x: tl.tensor, z: tl.tensor, OP: tl.constexpr, N: tl.constexpr) -> None:
    at = tl.arange(0, N)
    value = tl.load(x + at)
    if OP == "rint":
        value = libdevice.rint(value)
    elif OP == "round":
        value = libdevice.round(value)
    elif OP == "trunc":
        value = libdevice.trunc(value)
    elif OP == "tanh":
        value = libdevice.tanh(value)
    elif OP == "erf":
        value = libdevice.erf(value)
    elif OP == "cbrt":
        value = libdevice.cbrt(value)
    tl.store(z + at, value)
