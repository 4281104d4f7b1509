"""What triton's interpreter computes wrongly or not at all, and what it should: one class each.

The interpreter runs a kernel on numpy arrays, operation by operation, through the methods of a
builder. A repair overrides some of them. `Repair.last` is the last release seen with the fault;
`tests/kernels/triton/test_interpreter.py` shows each fault without its repair.

Seen in 3.6.0, 3.7.1, 3.8.0 and 3.9.0.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as upstream
from triton.runtime.interpreter import InterpreterBuilder as Builder
from triton.runtime.interpreter import TensorHandle as Handle

from wmrt.core.errors import UnsupportedError
from wmrt.kernels.triton import bits
from wmrt.kernels.triton.emulated import InlineAsm, Libdevice

_FP8 = {tl.float8e4nv: bits.E4M3, tl.float8e5: bits.E5M2}
_RTZ = upstream._ir.ROUNDING_MODE.RTZ


def _is_bf16(handle: Any) -> bool:
    """Bits of bf16 in uint16, and not the bools of a comparison of such."""
    return bool(handle.dtype.scalar == tl.bfloat16 and handle.data.dtype == np.uint16)


def _wide(handle: Any) -> Any:
    """bf16 or fp8 as float32; anything else as it is."""
    if _is_bf16(handle):
        return Handle(bits.decode(handle.data, bits.BF16), tl.float32)
    if handle.dtype.scalar in _FP8:
        return Handle(bits.decode(handle.data, _FP8[handle.dtype.scalar]), tl.float32)
    return handle


def sum_of(reduction: Any, values: Any) -> Any:
    """``tl.sum``, for `ReduceOps.sum`: of bf16 it adds up bits. Compiled it rounds to bf16 at every
    step, in an order of its own, so no kernel of ours may do that."""
    if values.dtype == tl.bfloat16:
        raise UnsupportedError("tl.sum of bf16 adds up in bf16; cast to float32 first")
    return _SUM(reduction, values)


_SUM = upstream.ReduceOps.sum


def _bf16(values: Any) -> Any:
    return Handle(bits.encode(values, bits.BF16), tl.bfloat16)


class Bf16Casts(Builder):
    """float32 to bf16 drops bits instead of rounding; to and from other types it casts raw bits."""

    def cast_impl(self, src: Any, dst_type: Any) -> Any:
        target = dst_type.scalar
        if _is_bf16(src) and target != tl.bfloat16:
            values = _wide(src).data.astype(upstream._get_np_dtype(target))
            return Handle(values, target)
        if target == tl.bfloat16 and not _is_bf16(src):
            # Compiled, an integer becomes bf16 by way of float32.
            return _bf16(src.data.astype(np.float32) if src.dtype.is_int() else src.data)
        return super().cast_impl(src, dst_type)

    def create_fp_to_fp(self, src: Any, dst_type: Any, rounding_mode: Any) -> Any:
        kinds = (src.dtype.scalar, dst_type.scalar)
        if tl.bfloat16 in kinds and not set(_FP8) & set(kinds) and rounding_mode != _RTZ:
            return self.cast_impl(src, dst_type)
        return super().create_fp_to_fp(src, dst_type, rounding_mode)

    def get_bf16(self, value: float) -> Any:
        return _bf16(np.array([value], np.float64))


class Bf16Arithmetic(Builder):
    """Operations on bf16 take its bits for integers. They are computed in float32 and rounded
    once more, which for +, -, *, / and sqrt gives the correctly rounded result."""

    def binary_op(self, lhs: Any, rhs: Any, op: Any) -> Any:
        if not _is_bf16(lhs):
            return super().binary_op(lhs, rhs, op)
        result = super().binary_op(_wide(lhs), _wide(rhs), op)
        return _bf16(result.data) if result.data.dtype == np.float32 else result

    def unary_op(self, arg: Any, op: Any) -> Any:
        if not _is_bf16(arg):
            return super().unary_op(arg, op)
        return _bf16(super().unary_op(_wide(arg), op).data)

    def ternary_op(self, lhs: Any, rhs: Any, other: Any, op: Any) -> Any:
        if op is np.where or not _is_bf16(other):
            return super().ternary_op(lhs, rhs, other, op)
        return _bf16(super().ternary_op(_wide(lhs), _wide(rhs), _wide(other), op).data)

    def create_rsqrt(self, arg: Any) -> Any:
        result = super().create_rsqrt(_wide(arg))
        return _bf16(result.data) if _is_bf16(arg) else result

    def create_erf(self, arg: Any) -> Any:
        result = super().create_erf(_wide(arg))
        return _bf16(result.data) if _is_bf16(arg) else result

    def create_dot(self, a: Any, b: Any, d: Any, *rest: Any) -> Any:
        if _is_bf16(a) or _is_bf16(b):
            a, b = _wide(a), _wide(b)
        return super().create_dot(a, b, d, *rest)


class Fp8Casts(Builder):
    """Casts to fp8 lose the carry out of the mantissa (2.5 to 5% of values come out halved), wrap
    instead of saturating and flush subnormals; casts from fp8 misread NaN and infinity.

    Rounded to nearest even and saturated, as PTX's ``cvt.rn.satfinite``.
    """

    def create_fp_to_fp(self, src: Any, dst_type: Any, rounding_mode: Any) -> Any:
        source, target = src.dtype.scalar, dst_type.scalar
        if target in _FP8 and rounding_mode != _RTZ:
            values = bits.encode(_wide(src).data, _FP8[target], saturate=True)
            return Handle(values, target)
        if source in _FP8:
            wide = _wide(src)
            if target == tl.bfloat16:
                return _bf16(wide.data)
            return Handle(wide.data.astype(upstream._get_np_dtype(target)), target)
        if source.is_fp8() or target.is_fp8():
            raise UnsupportedError(
                f"the interpreter is not repaired for {source} to {target}, {rounding_mode}; "
                "use fp8e4nv or fp8e5 with the default rounding"
            )
        return super().create_fp_to_fp(src, dst_type, rounding_mode)

    def create_dot(self, a: Any, b: Any, d: Any, *rest: Any) -> Any:
        a, b = (_wide(x) if x.dtype.scalar in _FP8 else x for x in (a, b))
        return super().create_dot(a, b, d, *rest)


class FusedMultiplyAdd(Builder):
    """``tl.fma`` rounds the product and then the sum."""

    def create_fma(self, x: Any, y: Any, z: Any) -> Any:
        if z.data.dtype == np.float64:
            return super().create_fma(x, y, z)
        exact = bits.fused(*(_wide(operand).data for operand in (x, y, z)))
        if _is_bf16(z):
            return _bf16(exact)
        return Handle(exact.astype(z.data.dtype), z.dtype.scalar)


class NanOfMinMax(Builder):
    """``tl.minimum``, ``tl.maximum`` and ``tl.clamp`` give NaN where hardware drops it and gives
    the other operand, unless NaN is to propagate."""

    def create_minnumf(self, lhs: Any, rhs: Any) -> Any:
        return self.binary_op(lhs, rhs, np.fmin)

    def create_maxnumf(self, lhs: Any, rhs: Any) -> Any:
        return self.binary_op(lhs, rhs, np.fmax)

    def create_clampf(self, arg: Any, lo: Any, hi: Any, propagate_nans: Any) -> Any:
        if propagate_nans == upstream._ir.PROPAGATE_NAN.NONE:
            return self.create_minnumf(self.create_maxnumf(arg, lo), hi)
        return self.create_minimumf(self.create_maximumf(arg, lo), hi)


class ScaledDot(Builder):
    """``tl.dot_scaled`` is missing up to 3.7; later it reads E4M3 scales, NVFP4's, as E8M0."""

    def create_dot_scaled(self, *given: Any) -> Any:
        lhs, lhs_scale, lhs_form, rhs, rhs_scale, rhs_form, _, lhs_k, rhs_k, total = given
        left = _operand(lhs, lhs_form, -1 if lhs_k else -2)
        right = _operand(rhs, rhs_form, -2 if rhs_k else -1)
        if lhs_scale is not None:
            left = left * _spread(lhs_scale, left.shape[-1])
        if rhs_scale is not None:
            right = right * np.swapaxes(_spread(rhs_scale, right.shape[-2]), -1, -2)
        return Handle((left @ right + total.data).astype(np.float32), tl.float32)


def _operand(handle: Any, form: Any, axis: int) -> bits.Array:
    """float32 values of an operand; two codes a byte of E2M1, the first in the low nibble."""
    if form.name != "E2M1":
        return np.asarray(_wide(handle).data, np.float32)
    codes = np.moveaxis(handle.data.view(np.uint8), axis, -1)
    pairs = np.stack([codes & 15, codes >> 4], -1)
    return np.moveaxis(bits.E2M1[pairs].reshape(*codes.shape[:-1], -1), -1, axis)


def _spread(scale: Any, length: int) -> bits.Array:
    """Scales [.., R, blocks] as float32[.., R, length]: E4M3, or E8M0 in a uint8 (255 is NaN)."""
    if scale.dtype.scalar in _FP8:
        values = _wide(scale).data
    else:
        power = scale.data.view(np.uint8).astype(np.int64)
        values = np.where(power == 255, np.nan, np.ldexp(1.0, power - 127)).astype(np.float32)
    return np.repeat(values, length // values.shape[-1], -1)


class Repair(NamedTuple):
    """A fault's repair and the last release, major and minor, that has the fault; None: all."""

    builder: Any
    last: tuple[int, int] | None


#: By name, in the order of method resolution: an earlier one sees an operation first.
REPAIRS: dict[str, Repair] = {
    "bf16_casts": Repair(Bf16Casts, None),
    "bf16_arithmetic": Repair(Bf16Arithmetic, None),
    "fp8_casts": Repair(Fp8Casts, None),
    "fma": Repair(FusedMultiplyAdd, (3, 8)),
    "nan_of_min_max": Repair(NanOfMinMax, (3, 7)),
    "scaled_dot": Repair(ScaledDot, None),
    "inline_asm": Repair(InlineAsm, None),
    "libdevice": Repair(Libdevice, None),
}
