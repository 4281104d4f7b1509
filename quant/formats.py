"""Weight formats: what a matrix [N, K] becomes, which numbers hold its codes and its scales.

* nvfp4: NVIDIA's NVFP4, E2M1 in blocks of 16 with an E4M3 scale each and one FP32 global scale
* mxfp4: OCP Microscaling 1.0, E2M1 in blocks of 32 with an E8M0 scale each
* int4-g32, -g64, -g128: INT4 in groups with a float16 scale; with -zp a zero point as well
* fp8-tensor, fp8-channel: E4M3 with one float32 scale, or one a row
* int8-channel: INT8 with one float32 scale a row

Two 4-bit elements share one byte; the even element sits in the low nibble.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from wmrt.core.errors import QuantizationError
from wmrt.quant.e8m0 import E8M0_RULES as E8M0_RULES
from wmrt.quant.e8m0 import decode_e8m0 as decode_e8m0
from wmrt.quant.e8m0 import encode_e8m0 as encode_e8m0
from wmrt.quant.elements import E2M1_LEVELS as E2M1_LEVELS
from wmrt.quant.elements import E2M1_MAX as E2M1_MAX
from wmrt.quant.elements import E2M1_VALUES as E2M1_VALUES
from wmrt.quant.elements import E4M3_MAX as E4M3_MAX
from wmrt.quant.elements import INT4_LEVELS as INT4_LEVELS
from wmrt.quant.elements import decode_e2m1 as decode_e2m1
from wmrt.quant.elements import decode_e4m3 as decode_e4m3
from wmrt.quant.elements import decode_int4 as decode_int4
from wmrt.quant.elements import decode_int8 as decode_int8
from wmrt.quant.elements import encode_e2m1 as encode_e2m1
from wmrt.quant.elements import encode_e4m3 as encode_e4m3
from wmrt.quant.elements import encode_int4 as encode_int4
from wmrt.quant.elements import encode_int8 as encode_int8
from wmrt.quant.elements import level_pairs as level_pairs
from wmrt.quant.elements import level_table as level_table

NVFP4_SPAN = E2M1_MAX * E4M3_MAX  # 2688: the tensor's largest magnitude maps to 6 x 448
ZERO_POINTS = 16  # an INT4 zero point is stored as z + 8, as the codes are


@dataclass(frozen=True)
class BlockFormat:
    """A weight format: the numbers its codes are, and one scale per `block` elements along K.

    * `block`: elements that share a scale; 0 is the whole row
    * `levels`: the value of each of the 16 codes of a 4-bit format; empty for 8-bit ones
    * `scale`, `scale_dtype`: kind of number (e4m3, e8m0, fp16, fp32) and how it is stored (uint8
      bit patterns for the first two)
    * `has_global`: a float32 factor over the whole tensor (nvfp4)
    * `element`: e2m1, int4, e4m3 or int8
    * `has_zero_points`: a code per block that means zero (int4 only), uint8 z + 8 in 0..15
    * `per_tensor`: one scale for all rows
    """

    name: str
    block: int
    levels: tuple[float, ...]
    scale: str
    scale_dtype: torch.dtype
    has_global: bool
    element: str
    has_zero_points: bool = False
    per_tensor: bool = False

    @property
    def bits(self) -> int:
        """Bits of one code: 4 (two a byte) or 8."""
        return 4 if self.levels else 8

    @property
    def zero_code(self) -> int:
        """The code that means zero where no zero point says otherwise (INT4 is stored as q + 8)."""
        return self.levels.index(0.0) if self.levels else 0

    def width(self, columns: int) -> int:
        """K', the columns rounded up to whole blocks."""
        return -(-columns // self.block) * self.block if self.block else columns

    def block_of(self, columns: int) -> int:
        """Elements that share a scale in a row of K columns."""
        return self.block or columns

    def scale_shape(self, shape: tuple[int, int]) -> tuple[int, int]:
        """Shape of the scales of a weight [N, K]: [N, K' / block], or [1, 1] for a whole tensor."""
        rows, columns = shape
        return 1 if self.per_tensor else rows, self.width(columns) // self.block_of(columns)

    def code_bytes(self, columns: int) -> int:
        """Bytes of the codes of K columns, a last half byte counted whole."""
        return -(-columns * self.bits // 8)


def _int4(group: int, zero_points: bool) -> BlockFormat:
    return BlockFormat(
        f"int4-g{group}" + ("-zp" if zero_points else ""),
        group,
        INT4_LEVELS,
        "fp16",
        torch.float16,
        False,
        "int4",
        has_zero_points=zero_points,
    )


FORMATS = {
    fmt.name: fmt
    for fmt in (
        BlockFormat("nvfp4", 16, E2M1_LEVELS, "e4m3", torch.uint8, True, "e2m1"),
        BlockFormat("mxfp4", 32, E2M1_LEVELS, "e8m0", torch.uint8, False, "e2m1"),
        *(_int4(group, zero) for zero in (False, True) for group in (128, 64, 32)),
        BlockFormat("fp8-tensor", 0, (), "fp32", torch.float32, False, "e4m3", per_tensor=True),
        BlockFormat("fp8-channel", 0, (), "fp32", torch.float32, False, "e4m3"),
        BlockFormat("int8-channel", 0, (), "fp32", torch.float32, False, "int8"),
    )
}


def block_format(name: str) -> BlockFormat:
    """The format called `name`; `QuantizationError` lists the names that exist."""
    if name not in FORMATS:
        raise QuantizationError(f"unknown weight format {name!r}; formats are {', '.join(FORMATS)}")
    return FORMATS[name]


def split(x: Tensor, size: int) -> Tensor:
    """[..., K] -> [..., K/size, size]."""
    return x.reshape(*x.shape[:-1], x.shape[-1] // size, size)


def pack_nibbles(codes: Tensor) -> Tensor:
    """uint8[..., K] of 4-bit codes, K even -> uint8[..., K/2], even element in the low nibble."""
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def unpack_nibbles(packed: Tensor) -> Tensor:
    """uint8[..., K/2] -> uint8[..., K]; inverse of `pack_nibbles`."""
    return torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)


def decode_codes(codes: Tensor, fmt: BlockFormat) -> Tensor:
    """Stored codes of `fmt`, uint8[R, bytes] -> float32[R, K'] of their values, exact.

    One 8-byte table entry per packed byte: 46 us for 512x256 on one core, against 620 us by
    advanced indexing and 190 us by embedding.
    """
    if fmt.element == "e4m3":
        return decode_e4m3(codes)
    if fmt.element == "int8":
        return decode_int8(codes)
    pairs = torch.index_select(level_pairs(fmt.levels, codes.device), 0, codes.reshape(-1).int())
    return pairs.view(torch.float32).view(codes.shape[0], -1)


def decode_scales(scales: Tensor, fmt: BlockFormat) -> Tensor:
    """Stored scales of `fmt` -> float32 of the same shape, exact."""
    if fmt.scale == "e4m3":
        return decode_e4m3(scales)
    if fmt.scale == "e8m0":
        return decode_e8m0(scales)
    return scales.to(torch.float32)
