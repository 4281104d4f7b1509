"""``cpu_interleaved``: what a CPU kernel reads in one pass, front to back.

Arranged by numpy: torch would start its threads for each of a slice's thirty operations, and wait
for all of them, which takes ten times as long where a processor is busy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wmrt.core.errors import QuantizationError
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
    zero_byte,
)
from wmrt.quant.tensor import QuantizedTensor, ordinary, padded, scale_bits
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
        device, codes = weight.codes.device, _array(rest.pop("codes"))
        blocks = {name: _array(bits(rest.pop(name))) for name in per_block(spec)}
        size, dtype = self.stored(spec, weight.shape)["interleaved"]
        rows = torch.empty(size, dtype=dtype)
        whole = rows.numpy()
        for part in slices(*size):
            to = _views(whole[part], spec, weight.shape[1])
            units = to.codes.shape[1]
            words = _wide(codes[part], units * _CODES, zero_byte(spec)).view(np.uint32)
            words = words.reshape(-1, units, _LANES, 2)
            _shuffle(words)
            to.codes[...] = words.swapaxes(-1, -2)
            for name, fill in per_block(spec).items():
                wide = _wide(blocks[name][part], units * STEP // spec.block, fill)
                to.blocks[name][...] = wide.view(np.uint8).reshape(len(wide), units, -1)
            for gap in to.gaps:
                gap[...] = 0
        return {"interleaved": rows.to(device), **rest}

    def gather(
        self, spec: BlockFormat, shape: tuple[int, int], tensors: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        rest = dict(tensors)
        rows = rest.pop("interleaved")
        held = {
            name: torch.empty(size, dtype=dtype)
            for name, (size, dtype) in canonical(spec, shape).items()
            if name not in rest
        }
        to = {name: bits(tensor).numpy() for name, tensor in held.items()}
        whole, width = _array(rows), held["codes"].shape[1]
        for part in slices(*rows.shape):
            # In new memory: aligned for words, which a file's tensors are not.
            found = _views(np.array(whole[part], order="C"), spec, shape[1])
            for gap in found.gaps:
                check_padding(torch.from_numpy(gap), "interleaved")
            words = np.ascontiguousarray(found.codes.swapaxes(-1, -2))
            _unshuffle(words)
            codes = words.view(np.uint8).reshape(len(words), -1)
            to["codes"][part] = _cut(codes, width, "codes", zero_byte(spec))
            for name, fill in per_block(spec).items():
                wide = found.blocks[name].reshape(len(words), -1).view(to[name].dtype)
                to[name][part] = _cut(wide, to[name].shape[1], name, fill)
        return {**{name: tensor.to(rows.device) for name, tensor in held.items()}, **rest}

    def check(
        self, spec: BlockFormat, shape: tuple[int, int], tensors: Mapping[str, Tensor]
    ) -> None:
        """By the scales alone, a ninth of the bytes, but for rows in which one is not ordinary:
        0.1 s instead of 7 s for the 1.3B preset."""
        doubtful = _doubtful(tensors["interleaved"], spec, shape[1])
        if not len(doubtful):
            return
        part = {**tensors, "interleaved": tensors["interleaved"][doubtful]}
        try:
            super().check(spec, (len(doubtful), shape[1]), part)
        except QuantizationError:
            super().check(spec, shape, tensors)  # says where in the whole weight
            raise


def _unit(spec: BlockFormat) -> int:
    """Bytes of 256 weights with their scales and zero points."""
    each = spec.scale_dtype.itemsize + spec.has_zero_points
    return padded(_CODES + STEP // spec.block * each, 4)


def _doubtful(rows: Tensor, spec: BlockFormat, columns: int) -> Tensor:
    """Indices of the rows that have to be read back to know that they are right: all of them where
    K is padded or codes have zero points, else those with a scale that is not positive and finite
    or with bytes behind the units that are not zero."""
    everything = torch.arange(len(rows), device=rows.device)
    if columns % STEP or spec.has_zero_points:
        return everything
    width = columns // STEP * _unit(spec)
    scales, gap = _scale_bytes(rows[:, :width], spec), rows[:, width:]
    if ordinary(spec, scales) and not bool(gap.any()):
        return everything[:0]
    dtype, low, high = scale_bits(spec)
    bits = scales.view(dtype)
    return everything[(bits < low).any(1) | (bits > high).any(1) | (gap != 0).any(1)]


def _scale_bytes(units: Tensor, spec: BlockFormat) -> Tensor:
    """uint8[R, U * S]: the S bytes of scales of each of the U units uint8[R, U * unit] of a row.

    As items of S bytes: 58 ms for the 79 million scales of the 1.3B preset, byte by byte 140.
    """
    each = STEP // spec.block * spec.scale_dtype.itemsize
    whole = np.dtype(
        {"names": ["s"], "formats": [f"V{each}"], "offsets": [_CODES], "itemsize": _unit(spec)}
    )
    found = np.ascontiguousarray(units.cpu().numpy().view(whole)["s"])
    return torch.from_numpy(found.view(np.uint8))


@dataclass(frozen=True)
class _Views:
    """Views of some rows: `codes` uint32[R, units, 2, 16], per block tensor its bytes
    uint8[R, units, S], and what lies between and behind."""

    codes: NDArray[np.uint32]
    blocks: dict[str, NDArray[np.uint8]]
    gaps: tuple[NDArray[np.uint8], ...]


def _views(rows: NDArray[np.uint8], spec: BlockFormat, columns: int) -> _Views:
    units, unit = padded(columns, STEP) // STEP, _unit(spec)
    width = units * unit
    inner = rows[:, :width].reshape(-1, units, unit)
    words = rows[:, :width].view(np.uint32).reshape(-1, units, unit // 4)
    blocks, start = {}, _CODES
    for name in per_block(spec):
        each = spec.scale_dtype.itemsize if name == "scales" else 1
        stop = start + STEP // spec.block * each
        blocks[name] = inner[..., start:stop]
        start = stop
    codes = words[..., : _CODES // 4].reshape(-1, units, 2, _LANES)
    return _Views(codes, blocks, (inner[..., start:], rows[:, width:]))


def _array(tensor: Tensor) -> NDArray[Any]:
    return tensor.detach().cpu().numpy()


def _wide(part: NDArray[Any], columns: int, fill: int) -> NDArray[Any]:
    """[R, C] -> [R, columns] with `fill` behind, in new memory."""
    wide = np.empty((len(part), columns), part.dtype)
    wide[:, : part.shape[1]] = part
    wide[:, part.shape[1] :] = fill
    return wide


def _cut(part: NDArray[Any], columns: int, what: str, fill: int) -> NDArray[Any]:
    """Inverse of `_wide`; refuses a filling that is not `fill`."""
    return trim(torch.from_numpy(part), columns, what, fill).numpy()


def _shuffle(words: NDArray[np.uint32]) -> None:
    """Nibbles 0 1 2 3 4 5 6 7 of each word -> 0 4 1 5 2 6 3 7, in place."""
    room = np.empty_like(words)
    _swap(words, room, 8, 0x0000FF00)
    _swap(words, room, 4, 0x00F000F0)


def _unshuffle(words: NDArray[np.uint32]) -> None:
    """Inverse of `_shuffle`, in place."""
    room = np.empty_like(words)
    _swap(words, room, 4, 0x00F000F0)
    _swap(words, room, 8, 0x0000FF00)


def _swap(words: NDArray[np.uint32], room: NDArray[np.uint32], shift: int, mask: int) -> None:
    """Exchange the bits under `mask` with those `shift` above them, in place."""
    by = np.uint32(shift)
    np.right_shift(words, by, out=room)
    np.bitwise_xor(room, words, out=room)
    np.bitwise_and(room, np.uint32(mask), out=room)
    np.bitwise_xor(words, room, out=words)
    np.left_shift(room, by, out=room)
    np.bitwise_xor(words, room, out=words)
