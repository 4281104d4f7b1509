"""Device functions: 4-bit codes and their scales, decoded and multiplied.

A word is an int32 of 8 consecutive codes, the first in the lowest nibble; its 8 int8 activations
are one int64, the first in the lowest byte. Callers choose by `DECODE`:

* ``prmt``: byte permutes and dot products of 4 bytes, every GPU from sm_80
* ``cvt``: as ``prmt``, but E2M1 becomes float by the conversion instruction of sm_100 and later
* ``plain``: arithmetic without PTX. Slow; what the others are checked against

Doubled, the levels of E2M1 are the integers 0, 1, 2, 3, 4, 6, 8, 12, and INT4's are taken 16 times:
dot products with int8 are exact in int32, and in float32 as well (below 2^20 over 32 weights).
"""

from __future__ import annotations

import triton
import triton.language as tl

#: 2 * E2M1 of the codes 0 to 3 and 4 to 7, a byte each: the table that PRMT selects from.
E2M1_LOW = tl.constexpr(0x03020100)
E2M1_HIGH = tl.constexpr(0x0C080604)
#: The same less 13 for codes without, and with a sign: every byte has its top bit set.
PLUS_LOW = tl.constexpr(0xF6F5F4F3 - (1 << 32))
PLUS_HIGH = tl.constexpr(0xFFFBF9F7 - (1 << 32))
MINUS_LOW = tl.constexpr(0xF0F1F2F3 - (1 << 32))
MINUS_HIGH = tl.constexpr(0xE7EBEDEF - (1 << 32))


_DOT8 = tl.constexpr(
    """
    {
    .reg .b32 xa, xb, f, g, h, p, n, a, b;
    mov.b64 {xa, xb}, $3;
    xor.b32 f, $2, 0x88888888;
    prmt.b32 p, $6, $7, $2;
    prmt.b32 n, $6, $7, f;
    dp4a.s32.s32 a, p, xa, $4;
    dp4a.s32.s32 b, n, xa, $5;
    shr.u32 g, $2, 16;
    shr.u32 h, f, 16;
    prmt.b32 p, $6, $7, g;
    prmt.b32 n, $6, $7, h;
    dp4a.s32.s32 $0, p, xb, a;
    dp4a.s32.s32 $1, n, xb, b;
    }"""
)
_BYTES8 = tl.constexpr(
    """
    {
    .reg .b32 f, g, h, p, n;
    xor.b32 f, $2, 0x88888888;
    prmt.b32 p, $3, $4, $2;
    prmt.b32 n, $5, $6, f;
    and.b32 $0, p, n;
    shr.u32 g, $2, 16;
    shr.u32 h, f, 16;
    prmt.b32 p, $3, $4, g;
    prmt.b32 n, $5, $6, h;
    and.b32 $1, p, n;
    }"""
)


@triton.jit
def dot8(
    q: tl.tensor,
    x: tl.tensor,
    plus: tl.tensor,
    minus: tl.tensor,
    zero: tl.tensor,
    E2M1: tl.constexpr,
    DECODE: tl.constexpr,
) -> tl.tensor:
    """A word times its activations, added to two int32 whose difference is the dot product.

    Levels are 2 * E2M1 or 16 * INT4. `zero` is 0, in a way the assembler cannot know: a table it
    knows becomes immediates, which cost one MOV for every other weight.
    """
    if DECODE == "plain":
        return plus + _plain_dot8(q, x, E2M1), minus
    elif E2M1:
        # The top bit of a selector makes PRMT give the sign of the byte it selects, here always 0.
        # Codes as selectors give the positive weights and 0 elsewhere; with all signs flipped, the
        # negative ones. 11 instructions for 8 weights; merging both costs as much, but more of it
        # on the one pipe that PRMT uses.
        return tl.inline_asm_elementwise(
            _DOT8,
            "=&r,=&r,r,l,r,r,r,r",
            [q, x, plus, minus, zero + E2M1_LOW, zero + E2M1_HIGH],
            dtype=(tl.int32, tl.int32),
            is_pure=True,
            pack=1,
        )
    else:
        low, high = bytes8(q, zero, E2M1, DECODE)
        first, second = operands8(x, E2M1, DECODE)
        return dot_bytes(low, high, first, second, plus), minus


@triton.jit
def bytes8(q: tl.tensor, zero: tl.tensor, E2M1: tl.constexpr, DECODE: tl.constexpr) -> tl.tensor:
    """A word's levels as two words of signed bytes, for `dot_bytes`: 2 * E2M1 - 13 of the weights 0
    to 3 and 4 to 7, or 16 * INT4 of the even and of the odd ones. ``plain``: the word, twice.
    """
    if DECODE == "plain":
        return q, q
    elif E2M1:
        # Two permutes as in `dot8`, but of tables whose bytes have their top bit set: where a
        # weight is of the other sign they give 0xFF, and AND merges them. Hence the 13.
        return tl.inline_asm_elementwise(
            _BYTES8,
            "=&r,=&r,r,r,r,r,r",
            [q, zero + PLUS_LOW, zero + PLUS_HIGH, zero + MINUS_LOW, zero + MINUS_HIGH],
            dtype=(tl.int32, tl.int32),
            is_pure=True,
            pack=1,
        )
    else:
        # A code is q + 8: with its top bit flipped it is the high nibble of the byte 16 q.
        return tl.inline_asm_elementwise(
            """{
            .reg .b32 s;
            shl.b32 s, $2, 4;
            and.b32 s, s, 0xF0F0F0F0;
            xor.b32 $0, s, 0x80808080;
            and.b32 s, $2, 0xF0F0F0F0;
            xor.b32 $1, s, 0x80808080;
            }""",
            "=&r,=r,r",
            [q],
            dtype=(tl.int32, tl.int32),
            is_pure=True,
            pack=1,
        )


@triton.jit
def operands8(x: tl.tensor, E2M1: tl.constexpr, DECODE: tl.constexpr) -> tl.tensor:
    """Activations of a word in the order of `bytes8`'s bytes: two int32."""
    if DECODE == "plain" or E2M1:
        return x.to(tl.int32), (x >> 32).to(tl.int32)
    else:
        return tl.inline_asm_elementwise(
            """{
            .reg .b32 xa, xb;
            mov.b64 {xa, xb}, $2;
            prmt.b32 $0, xa, xb, 0x6420;
            prmt.b32 $1, xa, xb, 0x7531;
            }""",
            "=&r,=&r,l",
            [x],
            dtype=(tl.int32, tl.int32),
            is_pure=True,
            pack=1,
        )


@triton.jit
def dot_bytes(
    low: tl.tensor, high: tl.tensor, first: tl.tensor, second: tl.tensor, total: tl.tensor
) -> tl.tensor:
    """8 products of signed bytes added to `total`."""
    return tl.inline_asm_elementwise(
        """{
        .reg .b32 a;
        dp4a.s32.s32 a, $1, $3, $5;
        dp4a.s32.s32 $0, $2, $4, a;
        }""",
        "=r,r,r,r,r,r",
        [low, high, first, second, total],
        dtype=tl.int32,
        is_pure=True,
        pack=1,
    )


@triton.jit
def dot_decoded(
    low: tl.tensor,
    high: tl.tensor,
    first: tl.tensor,
    second: tl.tensor,
    total: tl.tensor,
    E2M1: tl.constexpr,
    DECODE: tl.constexpr,
) -> tl.tensor:
    """8 products of what `bytes8` and `operands8` give, added to `total`, which `unbias8` began."""
    if DECODE == "plain":
        x = (second.to(tl.int64) << 32) | (first.to(tl.int64) & 0xFFFFFFFF)
        return total + _plain_dot8(low, x, E2M1)
    else:
        return dot_bytes(low, high, first, second, total)


@triton.jit
def unbias8(
    first: tl.tensor, second: tl.tensor, total: tl.tensor, E2M1: tl.constexpr, DECODE: tl.constexpr
) -> tl.tensor:
    """`total` plus what the 13 in `bytes8` take from a word's dot product."""
    if DECODE == "plain" or not E2M1:
        return total
    else:
        thirteens = tl.full(first.shape, 0x0D0D0D0D, tl.int32)
        return dot_bytes(thirteens, thirteens, first, second, total)


@triton.jit
def plain_level(code: tl.tensor, E2M1: tl.constexpr) -> tl.tensor:
    """The level of a code as an integer: 2 * E2M1 or 16 * INT4."""
    if E2M1:
        exponent, mantissa = (code >> 1) & 3, code & 1
        size = tl.where(exponent == 0, mantissa, (2 + mantissa) << tl.maximum(exponent - 1, 0))
        return tl.where(code >= 8, -size, size)
    else:
        return (code - 8) * 16


@triton.jit
def _plain_dot8(q: tl.tensor, x: tl.tensor, E2M1: tl.constexpr) -> tl.tensor:
    # All 8 at once, along one more axis: the interpreter's time is by the operation.
    place = tl.arange(0, 8)
    if len(q.shape) == 3:
        place = place[None, None, None, :]
    else:
        place = place[None, None, :]
    levels = plain_level((tl.expand_dims(q, -1) >> (4 * place)) & 15, E2M1)
    bytes = tl.expand_dims(x, -1) << (56 - 8 * place).to(tl.int64) >> 56
    return tl.sum(levels * bytes.to(tl.int32), len(q.shape))
