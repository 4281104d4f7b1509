"""A 4-bit weight in layout ``gpu_gemv`` times 1 to 16 activation vectors: kernel and launch."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from wmrt.core.errors import QuantizationError
from wmrt.kernels.triton import checks_ops
from wmrt.kernels.triton.aot_cases import TARGETS, AotCase
from wmrt.kernels.triton.arrays import arrays, not_followed
from wmrt.kernels.triton.formulas import Grid
from wmrt.kernels.triton.gemv_rows import row_sums
from wmrt.kernels.triton.library import FP_FUSION
from wmrt.kernels.triton.plans import BATCH, Plan, plan
from wmrt.kernels.triton.variants import Variant
from wmrt.quant.formats import block_format
from wmrt.quant.layouts.base import STEP
from wmrt.quant.layouts.gpu import LANES, GpuGemv

GRID = Grid("ceil_div(rows, ROWS)")
#: Of every kernel that reads such a weight.
MATRIX = (
    "words weights:gpu_gemv.words rows, 32 * STEPS;"
    "entries weights:gpu_gemv.lane_scales rows, ENTRIES;"
)
ARRAYS = arrays(
    MATRIX + "x input BATCH, 32 * STEPS; factors input BATCH, 8 * STEPS; out output BATCH, rows"
)
FLOAT_ARRAYS = not_followed(
    arrays(MATRIX + "x input BATCH, 256 * STEPS; out output BATCH, rows"), "factors"
)


@triton.jit(do_not_specialize=["rows"])  # of one row, `zero` would be known to be 0
def gemv(
    words: tl.tensor,
    entries: tl.tensor,
    x: tl.tensor,
    factors: tl.tensor,
    out: tl.tensor,
    rows: tl.tensor,
    scale: tl.tensor,
    STEPS: tl.constexpr,
    ENTRIES: tl.constexpr,
    FORMAT: tl.constexpr,
    OWNERS: tl.constexpr,
    BATCH: tl.constexpr,
    ROWS: tl.constexpr,
    SPLIT: tl.constexpr,
    CHUNK: tl.constexpr,
    AHEAD: tl.constexpr,
    FLOAT: tl.constexpr,
    DECODE: tl.constexpr,
) -> None:
    """out[b, n] = scale * sum_k w[n, k] x[b, k], float32[BATCH, rows]; `ROWS` rows a program.

    Args:
        words: int32[rows, 32 * STEPS].
        entries: ``lane_scales`` [rows, ENTRIES]: uint8 (mxfp4), float16 (int4), or nvfp4's seen as
            int16, the two blocks of a lane together.
        x: int8 codes seen as int64[BATCH, 32 * STEPS], or with `FLOAT` float32[BATCH, 256 * STEPS]
            in the order of `lane_floats`.
        factors: float32[BATCH, 8 * STEPS], the scales of the codes; not read with `FLOAT`.
        scale: the tensor's global scale.
        FORMAT: nvfp4, mxfp4 or int4; OWNERS: entries of a step, 8, or fewer where lanes share one.
        SPLIT, CHUNK, AHEAD: see `row_sums`.
    """
    zero = tl.minimum(rows, 0)
    mine = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    acc = row_sums(
        words, entries, x, factors, tl.minimum(mine, rows - 1), zero,
        STEPS, ENTRIES, FORMAT, OWNERS, BATCH, SPLIT, CHUNK, AHEAD, FLOAT, DECODE,
    )  # fmt: skip
    # Every lane holds the sum, the first one stores it. Times zero, so that the compiler sees no
    # neighbours to store together: bringing them to one lane takes shared memory and two barriers.
    lane = tl.arange(0, 8 * SPLIT)
    at = (mine + mine * zero)[:, None] + (lane * zero)[None, :]
    first = (mine < rows)[:, None] & (lane == 0)[None, :]
    for b in tl.static_range(BATCH):
        total = tl.sum(acc[b], 1) * unit(FORMAT, FLOAT, DECODE) * scale
        tl.store(out + b * rows + at, tl.broadcast_to(total[:, None], at.shape), mask=first)


@triton.jit
def unit(FORMAT: tl.constexpr, FLOAT: tl.constexpr, DECODE: tl.constexpr) -> tl.tensor:
    """The power of two that decoded levels and scales lack."""
    levels: tl.constexpr = 0.5 if FORMAT != "int4" else 0.0625
    floats: tl.constexpr = 1.0 if DECODE == "cvt" else 16384.0
    block: tl.constexpr = 256.0 if FORMAT == "nvfp4" else 1.0
    return block * (floats if FLOAT else levels)


def constants(
    format: str, shape: tuple[int, int], batch: int, decode: str, how: Plan
) -> dict[str, Any]:
    """Constants of `gemv` for a weight [N, K], without ``FLOAT``."""
    spec = block_format(format)
    stored = GpuGemv().stored(spec, shape)
    return {
        "STEPS": stored["words"][0][1] * 8 // STEP,
        "ENTRIES": stored["lane_scales"][0][1] // (2 if spec.scale == "e4m3" else 1),
        "FORMAT": "int4" if spec.element == "int4" else format,
        "OWNERS": min(LANES, STEP // spec.block),
        "BATCH": batch,
        "ROWS": how.rows,
        "SPLIT": how.split,
        "CHUNK": how.chunk,
        "AHEAD": how.ahead,
        "DECODE": decode,
    }


def multiply(
    x: Tensor,
    factors: Tensor | None,
    words: Tensor,
    scales: Tensor,
    format: str,
    global_scale: float,
    variant: Variant,
) -> Tensor:
    """x[B, 256 S] times rows of 256 S weights -> float32[B, N], in launches of up to 16 vectors.

    Args:
        x: int8 codes with their scales in `factors` [B, 8 S], or float32 as `lane_floats` gives it
            and no factors.
        words, scales: int32[N, 32 S] and ``lane_scales``, as layout ``gpu_gemv`` stores them.
        variant: what the device gets.

    Raises:
        QuantizationError: tensors that do not fit together.
        UnsupportedError: a format without kernels, or a weight of 2^31 words or more.
    """
    _check(x, factors, words, scales, format)
    rows, columns = words.shape[0], words.shape[1] * 8
    how = plan(rows, columns, min(len(x), BATCH), variant.two_rows_from)
    decode = variant.bf16 if factors is None else variant.int8
    entries = entries_of(scales, format)
    out = x.new_empty(len(x), rows, dtype=torch.float32)
    seen = x if factors is None else x.view(torch.int64)
    for start in range(0, len(x), BATCH):
        part, to = seen[start : start + BATCH], out[start : start + BATCH]
        gemv[GRID(rows=rows, ROWS=how.rows)](
            words,
            entries,
            part,
            part if factors is None else factors[start : start + BATCH],
            to,
            rows,
            global_scale,
            **constants(format, (rows, columns), len(part), decode, how),
            FLOAT=factors is None,
            num_warps=how.warps,
            enable_fp_fusion=FP_FUSION,
        )
    return out


def _check(x: Tensor, factors: Tensor | None, words: Tensor, scales: Tensor, format: str) -> None:
    checks_ops.product(x, factors, words, scales, format)
    given = {"x": x, "words": words, "scales": scales}
    if factors is not None:
        given["factors"] = factors
    elif x.dtype != torch.float32 or x.shape[1] != words.shape[1] * 8:
        raise QuantizationError(
            f"x must be torch.float32 [B, {words.shape[1] * 8}], got {x.dtype} {list(x.shape)}"
        )
    check_aligned(**given)


def check_aligned(**tensors: Tensor) -> None:
    """`QuantizationError` where one is not contiguous, or off its multiple of bytes."""
    for name, tensor in tensors.items():
        if not tensor.is_contiguous() or tensor.data_ptr() % (16 if name == "words" else 8):
            raise QuantizationError(
                f"{name} must be contiguous and lie at a multiple of 16 bytes; got strides "
                f"{tensor.stride()} at {tensor.data_ptr():#x}; copy it with .clone()"
            )


def entries_of(scales: Tensor, format: str) -> Tensor:
    """``lane_scales`` as the kernels read them: nvfp4's two of a lane together."""
    return scales.view(torch.int16) if format == "nvfp4" else scales


def matrix_types(format: str) -> dict[str, str]:
    """Types of the two tensors of a weight, for `AotCase.signature`."""
    return {
        "words": "*i32",
        "entries": {"nvfp4": "*i16", "mxfp4": "*u8"}.get(format, "*fp16"),
    }


def aot_cases() -> list[AotCase]:
    """Matrices of the preset 1.3b, by their place in a layer: every format with one vector, nvfp4
    with 8, and bfloat16 activations with both conversions."""
    qkv, gate_up, down = (3072, 2048), (13824, 2048), (2048, 6912)
    found = [
        _case(f"{name}.{place}", format, shape, 1)
        for name, format in (("nvfp4", "nvfp4"), ("mxfp4", "mxfp4"), ("w4a8", "int4-g128"))
        for place, shape in (("qkv", qkv), ("gate_up", gate_up), ("down", down))
    ]
    found.append(_case("nvfp4.qkv.batch8", "nvfp4", qkv, 8))
    for form, targets in (("prmt", (87, 89, 90)), ("cvt", (110, 120))):
        found += [
            _case(f"{f}_a16.qkv.{form}", f, qkv, 1, form, targets) for f in ("nvfp4", "mxfp4")
        ]
    return found


def _case(
    name: str,
    format: str,
    shape: tuple[int, int],
    batch: int,
    a16: str | None = None,
    targets: tuple[int, ...] = TARGETS,
) -> AotCase:
    """A case of the plan for large devices; `a16` is the variant of bfloat16 activations."""
    how = plan(*shape, batch, two_rows_from=4096)
    pointers = {**matrix_types(format), "x": "*fp32" if a16 else "*i64", "factors": "*fp32"}
    dot = () if a16 else ("IDP.4A.S8.S8",)
    return AotCase(
        name=f"gemv_{name}",
        kernel=gemv,
        signature={**pointers, "out": "*fp32", "rows": "i32", "scale": "fp32"},
        constants={**constants(format, shape, batch, a16 or "prmt", how), "FLOAT": bool(a16)},
        warps=how.warps,
        grid=GRID,
        arrays=FLOAT_ARRAYS if a16 else ARRAYS,
        scalars={"rows": shape[0]},
        aligned=(*pointers, "out"),
        targets=targets,
        weights_per_program=how.rows * shape[1],
        instructions=dot + (("F2FP.F16.E2M1",) if a16 == "cvt" else ()),
        slow=batch > 4,
    )
