"""Device functions: E2M1 and block scales as float32; see `wmrt.kernels.triton.decode`."""

from __future__ import annotations

import triton
import triton.language as tl

from wmrt.kernels.triton.decode import plain_level


def _unpack(part: str, first: int, second: int) -> str:
    """PTX: the two halves of w, which `part` sets, as float32 number `first` and `second`."""
    return part + (f"mov.b32 {{l, h}}, w; cvt.f32.f16 ${first}, l; cvt.f32.f16 ${second}, h;\n")


def _shifted(place: int) -> str:
    """PTX: w gets the codes number `place` and `place + 4` of $8 as float16."""
    left = 9 - 4 * place
    move = f"shl.b32 t, $8, {left}" if left > 0 else f"shr.u32 t, $8, {-left}"
    return (
        f"shl.b32 w, $8, {12 - 4 * place}; and.b32 w, w, 0x80008000; "
        f"{move}; and.b32 t, t, 0x0E000E00; or.b32 w, w, t; "
    )


_REGISTERS = "{ .reg .b32 w, t; .reg .b16 l, h; .reg .b8 b<4>;\n"
_SHIFT = tl.constexpr(_REGISTERS + "".join(_unpack(_shifted(i), i, i + 4) for i in range(4)) + "}")
_CONVERT = tl.constexpr(
    _REGISTERS
    + "mov.b32 {b0, b1, b2, b3}, $8;\n"
    + "".join(_unpack(f"cvt.rn.f16x2.e2m1x2 w, b{i}; ", 2 * i, 2 * i + 1) for i in range(4))
    + "}"
)


@triton.jit
def floats8(q: tl.tensor, DECODE: tl.constexpr) -> tl.tensor:
    """The 8 E2M1 weights of a word as float32, in order, each times 2^-14 (``cvt``: as they are).

    float16 has E2M1's bits at 15 and 11..9, with an exponent 14 lower: exact, subnormals too. Two
    codes 4 places apart land in both halves at once.
    """
    if DECODE == "plain":
        w: tl.tensor = ()
        for i in tl.static_range(8):
            w = w + (plain_level((q >> (4 * i)) & 15, True).to(tl.float32) * 2.0**-15,)
        return w
    else:
        return tl.inline_asm_elementwise(
            _CONVERT if DECODE == "cvt" else _SHIFT,
            "=&f,=&f,=&f,=&f,=&f,=&f,=&f,=&f,r",
            [q],
            dtype=(tl.float32,) * 8,
            is_pure=True,
            pack=1,
        )


@triton.jit
def e4m3_pair(scales: tl.tensor, DECODE: tl.constexpr) -> tl.tensor:
    """The two E4M3 scales of an int16 -> two float32, each times 2^-8.

    A scale is not negative, and bits 6..0 of E4M3 are bits 13..7 of float16 with an exponent 8
    lower: exact, subnormals too, and no fp8 type is needed, which sm_87 does not have.
    """
    if DECODE == "plain":
        return _plain_e4m3(scales.to(tl.int32) & 0x7F), _plain_e4m3(
            (scales >> 8).to(tl.int32) & 0x7F
        )
    else:
        # An int16 comes in a register whose upper half is anything. Selector 4 is a byte of zeros:
        # 0, scale, 0, scale; then everything one bit down.
        return tl.inline_asm_elementwise(
            """{
            .reg .b32 t;
            .reg .b16 l, h;
            prmt.b32 t, $2, 0, 0x1404;
            shr.u32 t, t, 1;
            mov.b32 {l, h}, t;
            cvt.f32.f16 $0, l;
            cvt.f32.f16 $1, h;
            }""",
            "=f,=f,r",
            [scales],
            dtype=(tl.float32, tl.float32),
            is_pure=True,
            pack=1,
        )


@triton.jit
def _plain_e4m3(b: tl.tensor) -> tl.tensor:
    """E4M3 without its sign, as an integer 0..126 -> float32, times 2^-8."""
    exponent, mantissa = b >> 3, (b & 7).to(tl.float32)
    normal = (1.0 + mantissa * 0.125) * ((exponent + 112) << 23).to(tl.float32, bitcast=True)
    return tl.where(exponent == 0, mantissa * 2.0**-17, normal)


@triton.jit
def e8m0(b: tl.tensor) -> tl.tensor:
    """E8M0 (below 255, as an integer) -> float32 2^(b - 127), exact; 2^-127 is subnormal."""
    return tl.maximum(b.to(tl.int32) << 23, 0x00400000).to(tl.float32, bitcast=True)
