"""``cublas_128x4``: block scales in the tiles that tensor cores with FP4 operands read."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from wmrt.core.errors import QuantizationError
from wmrt.quant.formats import BlockFormat
from wmrt.quant.layouts.base import Layout, Stored, check_padding, trim, widen, zero_byte
from wmrt.quant.tensor import QuantizedTensor, padded
from wmrt.quant.tensor import layout as canonical

_COLUMNS = 4
_WEIGHTS = 32  # K of the codes is padded to this: rows of a 4-bit operand are multiples of 16 bytes


class CublasTiles(Layout):
    """Codes as they are, scales in tiles of 128 rows by 4 columns.

    * ``tile_codes``: uint8[N, K''/2], the even element in the low nibble, K padded to 32
    * ``tile_scales``: uint8[ceil(N/128), ceil(C/4), 512] for C blocks along K; row r, column c is
      byte ``(r % 32) * 16 + (r % 128) // 32 * 4 + c % 4`` of tile (r // 128, c // 4). Rows and
      columns beyond N and C are zero

    The order of block scales that cuBLASLt documents for 1D block scaling and that CUTLASS shares.
    It needs byte scales of blocks of 16 or 32, so nvfp4 and mxfp4 only. For whole tiles (N a
    multiple of 128, K of 64 or 128) nothing is padded. nvfp4 at K = 256, 2048, 6912 pads
    nothing along K; N that is no multiple of 128 stores scales of up to 127 rows more.
    """

    name = "cublas_128x4"
    alignment = 16
    rule = "byte scales (E4M3 or E8M0) of blocks of 16 or 32"

    def takes(self, spec: BlockFormat) -> bool:
        return spec.scale in ("e4m3", "e8m0") and spec.block in (16, 32)

    def padded_shape(self, spec: BlockFormat, shape: tuple[int, int]) -> tuple[int, int]:
        return shape[0], padded(shape[1], _WEIGHTS)

    def stored(self, spec: BlockFormat, shape: tuple[int, int]) -> Stored:
        self.require(spec, shape)
        blocks = padded(shape[1], spec.block) // spec.block
        stored: Stored = {
            "tile_codes": ((shape[0], padded(shape[1], _WEIGHTS) // 2), torch.uint8),
            "tile_scales": ((-(-shape[0] // 128), -(-blocks // _COLUMNS), 512), spec.scale_dtype),
        }
        if spec.has_global:
            stored["global_scale"] = ((), torch.float32)
        return stored

    def lay(self, weight: QuantizedTensor) -> dict[str, Tensor]:
        spec, rest = weight.spec, weight.tensors()
        codes, scales = rest.pop("codes"), rest.pop("scales")
        (_, width), _ = self.stored(spec, weight.shape)["tile_codes"]
        if codes.shape[1] != width:
            codes = widen(codes, width, zero_byte(spec))
        return {"tile_codes": codes, "tile_scales": swizzle(scales), **rest}

    def gather(
        self, spec: BlockFormat, shape: tuple[int, int], tensors: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        rest = dict(tensors)
        codes, tiles = rest.pop("tile_codes"), rest.pop("tile_scales")
        wanted = canonical(spec, shape)
        codes = trim(codes, wanted["codes"][0][1], "tile_codes", zero_byte(spec)).contiguous()
        scales = unswizzle(tiles, wanted["scales"][0])
        return {"codes": codes, "scales": scales, **rest}


def swizzle(scales: Tensor, tile_rows: int = 128) -> Tensor:
    """Byte scales [N, C] -> tiles [ceil(N/tile_rows), ceil(C/4), 4 tile_rows], zero padded.

    `tile_rows` 128 is the order of weights and large inputs; 8 that of inputs of few rows, where
    row r, column c is byte ``r % 8 * 4 + c % 4`` of its tile.
    """
    inner = _inner(tile_rows)
    rows, columns = padded(scales.shape[0], tile_rows), padded(scales.shape[1], _COLUMNS)
    wide = scales.new_zeros(rows, columns)
    wide[: scales.shape[0], : scales.shape[1]] = scales
    parts = wide.view(rows // tile_rows, *inner, columns // _COLUMNS, _COLUMNS)
    return parts.permute(0, 3, 2, 1, 4).reshape(rows // tile_rows, columns // _COLUMNS, -1)


def unswizzle(tiles: Tensor, shape: tuple[int, ...], tile_rows: int = 128) -> Tensor:
    """Inverse of `swizzle` for scales of `shape`; `QuantizationError` if the padding is not 0."""
    across, down = _inner(tile_rows)
    parts = torch.unflatten(tiles, -1, (down, across, _COLUMNS)).permute(0, 3, 2, 1, 4)
    wide = parts.reshape(tiles.shape[0] * tile_rows, tiles.shape[1] * _COLUMNS)
    rows, columns = shape
    check_padding(wide[rows:], "tile_scales")
    return trim(wide[:rows], columns, "tile_scales").contiguous()


def _inner(tile_rows: int) -> tuple[int, int]:
    """How a tile's rows divide: four groups of 32 lie across each other, eight rows do not."""
    if tile_rows not in (8, 128):
        raise QuantizationError(f"scale tiles have 8 or 128 rows, not {tile_rows}")
    return max(1, tile_rows // 32), min(32, tile_rows)
