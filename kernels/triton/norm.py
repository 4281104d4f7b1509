"""RMSNorm, and int8 activations in groups of 32 as the 4-bit matrices take them."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from wmrt.kernels.triton import checks_heads as checks
from wmrt.kernels.triton import checks_ops
from wmrt.kernels.triton.aot_cases import AotCase, named
from wmrt.kernels.triton.arrays import arrays, not_followed
from wmrt.kernels.triton.dependent import dependent_case, follow, options
from wmrt.kernels.triton.formulas import Grid
from wmrt.quant.activations import GROUP

GRID = Grid("batch")
#: Of a row of `out` the first WIDTH numbers are written, its scales with `QUANTIZE` alone.
ARRAYS = arrays(
    "x input batch, K; weight weights K; out output batch, STRIDE;"
    "scales output batch, ceil_div(WIDTH, GROUP)"
)


@triton.jit
def row_scale(x: tl.tensor, K: tl.constexpr, eps: tl.tensor) -> tl.tensor:
    """1 / sqrt(mean(x^2) + eps) of rows x[..., BLOCK] padded with zeros; each step rounded once, so
    that a row's scale does not depend on what the device approximates."""
    total = tl.sum(x * x, axis=-1)
    if K & (K - 1) == 0:
        mean = total * (1.0 / K)
    else:
        mean = tl.div_rn(total, K * 1.0)
    return tl.div_rn(1.0, tl.sqrt_rn(mean + eps))


@triton.jit
def quantize_groups(x: tl.tensor, GROUP: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """x[BLOCK] -> int8 codes [BLOCK / GROUP, GROUP] and float32 scales [BLOCK / GROUP].

    As `wmrt.quant.activations.quantize_groups` where the largest magnitude of a group is at least
    2^-90; of a group with less, the codes are 0. The largest is found among bit patterns, which
    order floats as integers do and put NaN on top: `tl.max` of floats would drop it.

    A quotient is taken by a reciprocal, one for a group, and corrected by its remainder (Markstein,
    "Computation of elementary functions on the IBM RISC System/6000", 1990): three instructions
    where a division has ten. Below 2^-90, whose pattern is 37 << 23, the remainder may be rounded.
    """
    groups = tl.reshape(x, (x.shape[0] // GROUP, GROUP))
    largest = tl.max(groups.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=1)
    size = largest.to(tl.float32, bitcast=True)
    near = size * (1.0 / 127.0)
    scales = tl.fma(tl.fma(near, -127.0, size), 1.0 / 127.0, near)
    inverse = tl.broadcast_to(tl.div_rn(1.0, scales)[:, None], groups.shape)
    quotient = groups * inverse
    rest = tl.fma(quotient, tl.broadcast_to(-scales[:, None], groups.shape), groups)
    # 1.5 * 2^23: adding it rounds to an integer, half to even, in the lowest bits.
    whole = (tl.fma(rest, inverse, quotient) + 12582912.0).to(tl.int32, bitcast=True)
    ordinary = (largest >= 37 << 23) & (largest < 0x7F800000)
    return tl.where(ordinary[:, None], whole, 0).to(tl.int8), scales


@triton.jit
def rms_norm_kernel(
    x: tl.tensor,
    weight: tl.tensor,
    out: tl.tensor,
    scales: tl.tensor,
    eps: tl.tensor,
    K: tl.constexpr,
    WIDTH: tl.constexpr,
    STRIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    QUANTIZE: tl.constexpr,
    GROUP: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    """One program, one row: float32[rows, K], or int8 codes [rows, WIDTH] and their scales. Rows
    of `out` are STRIDE apart."""
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    follow(DEPENDENT)
    value = tl.load(x + row * K + at, mask=at < K, other=0.0).to(tl.float32)
    factor = tl.load(weight + at, mask=at < K, other=0.0)
    value = value * row_scale(value, K, eps) * factor
    if QUANTIZE:
        codes, steps = quantize_groups(value, GROUP)
        tl.store(out + row * STRIDE + at, tl.reshape(codes, (BLOCK,)), mask=at < WIDTH)
        group = tl.arange(0, BLOCK // GROUP)
        tl.store(scales + row * (WIDTH // GROUP) + group, steps, mask=group < WIDTH // GROUP)
    else:
        tl.store(out + row * STRIDE + at, value, mask=at < K)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm of float[..., K], float32[..., K] (Zhang and Sennrich, 2019).

    Raises:
        UsageError: shapes or types that do not fit, or K over `checks_heads.WIDEST`.
    """
    rows, width = checks_ops.rms_norm(x, weight)
    out = torch.empty_like(x, dtype=torch.float32)
    _launch(x, weight, out, out, eps, rows, width, quantize=False)
    return out


def rms_norm_int8(
    x: Tensor, weight: Tensor, eps: float, *, padded_to: int = GROUP
) -> tuple[Tensor, Tensor]:
    """RMSNorm of float[..., K] as int8 codes [..., K'] and float32 scales [..., K'/32].

    K' is K rounded up to a multiple of `padded_to`, itself one of 32. Errors as `rms_norm`.
    """
    rows, width = checks_ops.rms_norm(x, weight)
    wide = checks_ops.padded(width, padded_to)
    codes = torch.empty((*x.shape[:-1], wide), dtype=torch.int8, device=x.device)
    scales = torch.empty((*x.shape[:-1], wide // GROUP), device=x.device)
    _launch(x, weight, codes, scales, eps, rows, wide, quantize=True)
    return codes, scales


def rms_norm_to(
    x: Tensor, weight: Tensor, eps: float, out: Tensor, *, dependent: bool = False
) -> None:
    """`rms_norm` of float32[B, K] into `out` float32[B, K], of which rows may lie apart.

    `dependent`: see `wmrt.kernels.triton.dependent`.

    Raises `UsageError`: tensors that do not fit together, or K over `checks_heads.WIDEST`.
    """
    checks.rms_norm_to(x, weight, out)
    rows, width = x.shape
    made = _constants(width, width, out.stride(0), quantize=False)
    rms_norm_kernel[GRID(batch=rows)](
        *(x, weight, out, out, eps), **made, num_warps=_warps(made["BLOCK"]), **options(dependent)
    )


def _launch(
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    scales: Tensor,
    eps: float,
    rows: int,
    wide: int,
    *,
    quantize: bool,
) -> None:
    if rows == 0:
        return
    constants = _constants(x.shape[-1], wide, wide, quantize=quantize)
    warps = _warps(constants["BLOCK"])
    rms_norm_kernel[GRID(batch=rows)](
        *(x, weight, out, scales, eps), **constants, num_warps=warps, **options(False)
    )


def _constants(width: int, wide: int, stride: int, *, quantize: bool) -> dict[str, int | bool]:
    block = max(GROUP, 1 << (wide - 1).bit_length())
    sizes = {"K": width, "WIDTH": wide, "STRIDE": stride, "BLOCK": block}
    return {**sizes, "QUANTIZE": quantize, "GROUP": GROUP}


def _warps(block: int) -> int:
    """16 values a lane, one warp at least: 8 KiB in flight a program at 2048 columns."""
    return min(16, max(1, block // 512))


def aot_cases() -> list[AotCase]:
    """The widths of the presets `small` and `1.3b`, with and without quantization, and into rows
    with room for an embedded action."""
    found = []
    for width, more in ((256, 32), (2048, 64)):
        for op in ("rms_norm", "rms_norm_int8", "rms_norm_to"):
            quantize = op == "rms_norm_int8"
            stride = width + more if op == "rms_norm_to" else width
            constants = _constants(width, width, stride, quantize=quantize)
            found.append(
                AotCase(
                    name=f"{op}.{width}",
                    kernel=rms_norm_kernel,
                    signature={
                        "x": "*fp32",
                        "weight": "*fp32",
                        "out": "*i8" if quantize else "*fp32",
                        "scales": "*fp32",
                        "eps": "fp32",
                    },
                    constants={**constants, "DEPENDENT": False},
                    warps=_warps(constants["BLOCK"]),
                    grid=GRID,
                    arrays=ARRAYS if quantize else not_followed(ARRAYS, "scales"),
                )
            )
    return [*found, dependent_case(named(found, "rms_norm_to.2048"))]
