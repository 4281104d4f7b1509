"""``cpu_interleaved``: what a CPU kernel reads in one pass, front to back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from wmrt.quant.formats import BlockFormat
from wmrt.quant.layouts.base import (
    STEP,
    InSteps,
    Stored,
    bits,
    check_padding,
    per_block,
    slices,
    trim,
    widen,
    zero_byte,
)
from wmrt.quant.tensor import QuantizedTensor, padded
from wmrt.quant.tensor import layout as canonical

_CODES = STEP // 2  # bytes
_LANES = 16  # 32-bit lanes of a 512-bit register, one block of 16 weights each


class CpuInterleaved(InSteps):
    """Per 256 weights of a row, 128 bytes of codes and then the scales of those weights.

    One tensor ``interleaved``, uint8[N, stride]. A row is its units of 256 weights one after the
    other and 0 to 12 zero bytes, so that rows are a multiple of 16 bytes apart. K is padded to 256.
    A unit is

    * two halves of 64 bytes, h = 0 and 1. Byte ``64 h + 4 l + i`` (l < 16, i < 4) holds element
      ``16 l + 8 h + i`` in its low nibble and ``16 l + 8 h + 4 + i`` in its high one
    * the scales of the unit's blocks in order, little-endian: 16 bytes for nvfp4, 8 for mxfp4, 2, 4
      or 8 float16 for int4 of 128, 64 or 32
    * for int4 with zero points a byte per block, and 2 zero bytes for groups of 128

    Lane l of a 512-bit register is the block of 16 weights l of the unit: one load gives a half,
    masking and shifting its two nibbles give four weights of each block per 32-bit lane, which is
    what VNNI multiplies and adds; the 16 scale bytes of nvfp4 convert in one go. AVX2 reads a half
    in two parts, NEON in four. Scales among the codes read 17% faster than scales behind the row
    (75 against 64 GB/s on two cores): one stream instead of two. Units of 132 to 152 bytes cannot
    keep lines of 64 bytes aligned, so rows are not aligned to them either.

    Padding for K = 256, 2048, 6912: nvfp4 none; mxfp4 5.9%, none, 0.2%; int4-g128 9.1%, none, 0.1%.
    """

    name = "cpu_interleaved"
    alignment = 16

    def stored(self, spec: BlockFormat, shape: tuple[int, int]) -> Stored:
        self.require(spec, shape)
        units = padded(shape[1], STEP) // STEP
        stride = self.row(units * _unit(spec))
        stored: Stored = {"interleaved": ((shape[0], stride), torch.uint8)}
        if spec.has_global:
            stored["global_scale"] = ((), torch.float32)
        return stored

    def lay(self, weight: QuantizedTensor) -> dict[str, Tensor]:
        spec, rest = weight.spec, weight.tensors()
        codes = rest.pop("codes")
        blocks = {name: bits(rest.pop(name)) for name in per_block(spec)}
        size, dtype = self.stored(spec, weight.shape)["interleaved"]
        rows = torch.zeros(size, dtype=dtype, device=codes.device)
        for part in slices(*size):
            to = _views(rows[part], spec, weight.shape[1])
            units = to.codes.shape[1]
            words = widen(codes[part], units * _CODES, zero_byte(spec)).view(torch.int32)
            words = _shuffle(torch.unflatten(words, 1, (units, _LANES, 2)))
            to.codes.copy_(words.transpose(-1, -2))
            for name, fill in per_block(spec).items():
                wide = widen(blocks[name][part], units * STEP // spec.block, fill)
                to.blocks[name].copy_(torch.unflatten(wide.view(torch.uint8), 1, (units, -1)))
        return {"interleaved": rows, **rest}

    def gather(
        self, spec: BlockFormat, shape: tuple[int, int], tensors: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        rest = dict(tensors)
        rows = rest.pop("interleaved")
        held = {
            name: torch.empty(size, dtype=dtype, device=rows.device)
            for name, (size, dtype) in canonical(spec, shape).items()
            if name not in rest
        }
        for part in slices(*rows.shape):
            found = _views(_copied(rows[part]), spec, shape[1])
            for gap in found.gaps:
                check_padding(gap, "interleaved")
            words = _unshuffle(_copied(found.codes.transpose(-1, -2))).flatten(1)
            width = held["codes"].shape[1]
            held["codes"][part] = trim(words.view(torch.uint8), width, "codes", zero_byte(spec))
            for name, fill in per_block(spec).items():
                to = bits(held[name])
                wide = _copied(found.blocks[name].flatten(1)).view(to.dtype)
                to[part] = trim(wide, to.shape[1], name, fill)
        return {**held, **rest}


def _unit(spec: BlockFormat) -> int:
    """Bytes of 256 weights with their scales and zero points."""
    each = spec.scale_dtype.itemsize + spec.has_zero_points
    return padded(_CODES + STEP // spec.block * each, 4)


@dataclass(frozen=True)
class _Views:
    """Views of some rows: `codes` int32[R, units, 2, 16], per block tensor its bytes
    uint8[R, units, S], and what lies between and behind."""

    codes: Tensor
    blocks: dict[str, Tensor]
    gaps: tuple[Tensor, ...]


def _views(rows: Tensor, spec: BlockFormat, columns: int) -> _Views:
    units, unit = padded(columns, STEP) // STEP, _unit(spec)
    inner = torch.unflatten(rows[:, : units * unit], 1, (units, unit))
    words = rows.view(torch.int32)[:, : units * unit // 4]
    blocks, start = {}, _CODES
    for name in per_block(spec):
        each = spec.scale_dtype.itemsize if name == "scales" else 1
        stop = start + STEP // spec.block * each
        blocks[name] = inner[..., start:stop]
        start = stop
    words = torch.unflatten(words, 1, (units, unit // 4))[..., : _CODES // 4]
    codes = torch.unflatten(words, -1, (2, _LANES))
    return _Views(codes, blocks, (inner[..., start:], rows[:, units * unit :]))


def _copied(part: Tensor) -> Tensor:
    """In new memory: aligned for words, which a file's tensors are not, and without gaps."""
    return part.clone(memory_format=torch.contiguous_format)


def _shuffle(words: Tensor) -> Tensor:
    """Nibbles 0 1 2 3 4 5 6 7 of each word -> 0 4 1 5 2 6 3 7, in place."""
    return _swap(_swap(words, 8, 0x0000FF00), 4, 0x00F000F0)


def _unshuffle(words: Tensor) -> Tensor:
    """Inverse of `_shuffle`, in place."""
    return _swap(_swap(words, 4, 0x00F000F0), 8, 0x0000FF00)


def _swap(words: Tensor, shift: int, mask: int) -> Tensor:
    """Exchange the bits under `mask` with those `shift` above them, in place."""
    different = (words >> shift).bitwise_xor_(words).bitwise_and_(mask)
    words ^= different
    words ^= different.bitwise_left_shift_(shift)
    return words
