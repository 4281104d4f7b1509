"""Small floating-point formats in numpy, rounded once and to nearest even.

What the repaired interpreter and the PTX emulator compute with. Independent of torch and of
ml_dtypes, against which the tests hold it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[Any]
_ONE = np.int64(1)


@dataclass(frozen=True)
class Format:
    """A binary format of 16 bits or fewer whose all-zero exponent means subnormal.

    ``mantissa`` bits, the ``smallest`` normal exponent, the bit patterns of the ``largest`` finite
    value, of infinity (None: there is none) and of NaN.
    """

    name: str
    bits: int
    mantissa: int
    smallest: int
    largest: int
    infinity: int | None
    nan: int

    @property
    def storage(self) -> type[np.unsignedinteger[Any]]:
        """The unsigned integer that holds one value."""
        return np.uint16 if self.bits == 16 else np.uint8


#: NaNs are the ones that NVIDIA's conversions write.
FP16 = Format("fp16", 16, 10, -14, 0x7BFF, 0x7C00, 0x7FFF)
BF16 = Format("bf16", 16, 7, -126, 0x7F7F, 0x7F80, 0x7FFF)
E4M3 = Format("e4m3", 8, 3, -6, 0x7E, None, 0x7F)
E5M2 = Format("e5m2", 8, 2, -14, 0x7B, 0x7C, 0x7F)
#: Values of the sixteen codes of FP4 E2M1.
E2M1 = np.array([0.0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def encode(values: ArrayLike, form: Format, *, saturate: bool = False) -> Array:
    """Bit patterns of ``values`` (float16, 32 or 64), rounded to nearest even.

    Too large becomes infinity, or NaN where there is none; with ``saturate`` the largest finite
    value, infinities included, as PTX's ``.satfinite`` does.
    """
    given = np.asarray(values)
    wide = given.astype(np.float64)
    magnitude = np.abs(wide)
    bounded = np.where(np.isfinite(wide), magnitude, 0.0)
    exponent = np.frexp(bounded)[1].astype(np.int64) - 1
    exponent = np.where(bounded > 0, np.maximum(exponent, form.smallest), form.smallest)
    # An exact scaling, so this is the only rounding; a carry runs into the exponent by itself.
    units = np.rint(np.ldexp(bounded, form.mantissa - exponent)).astype(np.int64)
    pattern = ((exponent - form.smallest) << np.int64(form.mantissa)) + units
    beyond = form.nan if form.infinity is None else form.infinity
    over = form.largest if saturate else beyond
    pattern = np.where((pattern > form.largest) | np.isinf(wide), over, pattern)
    pattern = np.where(np.isnan(wide), form.nan, pattern)
    sign = np.signbit(wide).astype(np.int64) << np.int64(form.bits - 1)
    return np.asarray((pattern | sign).astype(form.storage))


def decode(patterns: ArrayLike, form: Format) -> Array:
    """float32 values of bit patterns; exact."""
    if form is BF16:
        wide = np.asarray(np.asarray(patterns).astype(np.uint32) << np.uint32(16))
        return np.asarray(wide.view(np.float32))
    if form is FP16:
        return np.asarray(np.asarray(patterns).astype(np.uint16).view(np.float16), np.float32)
    return np.asarray(_table(form)[np.asarray(patterns).astype(np.uint8)])


def _table(form: Format) -> Array:
    """Every value of an 8-bit format."""
    if form.name not in _TABLES:
        code = np.arange(1 << form.bits, dtype=np.int64)
        magnitude = code & ((1 << (form.bits - 1)) - 1)
        fraction = magnitude & ((1 << form.mantissa) - 1)
        field = magnitude >> form.mantissa
        units = np.where(field > 0, fraction + (_ONE << form.mantissa), fraction)
        power = np.maximum(field, 1) - 1 + form.smallest - form.mantissa
        value = np.ldexp(units.astype(np.float64), power)
        value = np.where(magnitude > form.largest, np.nan, value)
        if form.infinity is not None:
            value = np.where(magnitude == form.infinity, np.inf, value)
        value = np.where(code != magnitude, -value, value)
        _TABLES[form.name] = value.astype(np.float32)
    return _TABLES[form.name]


_TABLES: dict[str, Array] = {}


def fused(x: ArrayLike, y: ArrayLike, z: ArrayLike) -> Array:
    """x * y + z for float32 or narrower as float64, rounded so that one further rounding to
    float32 or narrower is the only one that counts.

    The product is exact in float64. The sum is rounded to odd (Boldo and Melquiond, "Emulation of
    a FMA and correctly-rounded sums", 2008): its error (Knuth's TwoSum) decides the last bit.
    """
    product = np.asarray(x, np.float64) * np.asarray(y, np.float64)
    addend = np.asarray(z, np.float64)
    total = np.asarray(product + addend)
    with np.errstate(invalid="ignore"):
        back = total - product
        error = (product - (total - back)) + (addend - back)
    pattern = total.view(np.int64)
    inexact = np.isfinite(total) & (error != 0) & ((pattern & 1) == 0)
    # Towards the exact value: one unit up in magnitude if the error points away from zero.
    step = np.where((error > 0) == (total > 0), _ONE, -_ONE)
    return np.asarray(np.where(inexact, pattern + step, pattern).view(np.float64))
