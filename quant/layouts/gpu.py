"""``gpu_gemv``: what a GPU's matrix times vector kernel reads with one wide load per lane."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from wmrt.quant.formats import BlockFormat
from wmrt.quant.layouts.base import STEP, InSteps, Stored, bits, per_block, trim, widen, zero_byte
from wmrt.quant.tensor import QuantizedTensor, padded
from wmrt.quant.tensor import layout as canonical

_LANE = {"scales": "lane_scales", "zero_points": "lane_zeros"}
LANES = 8  # lanes that share a row; each owns 16 bytes = 32 weights of a step


class GpuGemv(InSteps):
    """Codes in their usual order; scales in the order in which a lane uses them.

    Eight lanes share a row. In step s, lane t owns the weights ``256 s + 32 t`` to ``+ 31``: 16
    bytes, two blocks of nvfp4 or one of mxfp4. K is padded to 256, and steps go in runs: as many
    runs of 4 as fit, then one of 2 and one of 1 as the rest needs.

    * ``words``: int32[N, K''/8]; one word is 8 consecutive weights, the first in the lowest nibble,
      so that its nibbles select bytes of a table as they stand. Rows are a multiple of 128 bytes
    * ``lane_scales``: [N, C], the scale's dtype; run by run, lane by lane, step by step, a lane's
      own scales in order. A lane loads the scales of a run at once: for 4 steps 8 bytes of nvfp4,
      4 of mxfp4, 8 of int4. Where a block spans several lanes (int4 of 64 and 128) they share one
      entry, and the entries stand for 2 or 4 lanes. Rows are padded to a multiple of 8 bytes
    * ``lane_zeros``: for int4 with zero points those, uint8, in the same order

    A warp reads four rows at a time, a whole line of 128 bytes of each. Sixteen lanes to a row
    would pad K = 6912 = 27 * 256 by 3.7% and double K = 256; scales always in runs of 4 would pad
    K = 256 by a third. As it is, K = 256, 2048, 6912 need no padding for nvfp4 and mxfp4, and 3.0%,
    none, 0.1% for int4-g128.
    """

    name = "gpu_gemv"
    alignment = 8

    def stored(self, spec: BlockFormat, shape: tuple[int, int]) -> Stored:
        self.require(spec, shape)
        width = padded(shape[1], STEP)
        stored: Stored = {"words": ((shape[0], width // 8), torch.int32)}
        for name in per_block(spec):
            dtype = spec.scale_dtype if name == "scales" else torch.uint8
            row = self.row(width // spec.block, dtype.itemsize)
            stored[_LANE[name]] = ((shape[0], row), dtype)
        if spec.has_global:
            stored["global_scale"] = ((), torch.float32)
        return stored

    def lay(self, weight: QuantizedTensor) -> dict[str, Tensor]:
        spec, rest = weight.spec, weight.tensors()
        codes = rest.pop("codes")
        stored = self.stored(spec, weight.shape)
        width = stored["words"][0][1] * 4
        # A view where the words are there already: no second copy of a weight of whole steps.
        if codes.shape[1] != width or codes.storage_offset() % 4 or not codes.is_contiguous():
            codes = widen(codes, width, zero_byte(spec))
        lanes = {}
        for name, fill in per_block(spec).items():
            wide = widen(rest.pop(name), width * 2 // spec.block, fill)
            row = stored[_LANE[name]][0][1]
            lanes[_LANE[name]] = widen(_by_lane(wide, spec), row)
        return {"words": codes.view(torch.int32), **lanes, **rest}

    def gather(
        self, spec: BlockFormat, shape: tuple[int, int], tensors: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        rest, wanted = dict(tensors), canonical(spec, shape)
        codes = rest.pop("words").contiguous().view(torch.uint8)
        entries = codes.shape[1] * 2 // spec.block
        codes = trim(codes, wanted["codes"][0][1], "words", zero_byte(spec))
        found = {"codes": codes.contiguous()}
        for name, fill in per_block(spec).items():
            key, (_, dtype) = _LANE[name], wanted[name]
            lanes = trim(bits(rest.pop(key)), entries, key)
            wide = trim(_by_block(lanes, spec), wanted[name][0][1], key, fill)
            found[name] = wide.contiguous().view(dtype)
        return {**found, **rest}


def _by_lane(blocks: Tensor, spec: BlockFormat) -> Tensor:
    """Entries of whole steps [N, E] in the order of blocks -> in that of runs, lanes, steps."""
    runs = [
        torch.unflatten(blocks[:, run], 1, (-1, steps, *lane)).transpose(2, 3).flatten(1)
        for run, steps, lane in _runs(blocks.shape[1], spec)
    ]
    return torch.cat(runs, 1)


def _by_block(lanes: Tensor, spec: BlockFormat) -> Tensor:
    """Inverse of `_by_lane`."""
    runs = [
        torch.unflatten(lanes[:, run], 1, (-1, lane[0], steps, lane[1])).transpose(2, 3).flatten(1)
        for run, steps, lane in _runs(lanes.shape[1], spec)
    ]
    return torch.cat(runs, 1)


def _runs(entries: int, spec: BlockFormat) -> Iterator[tuple[slice, int, tuple[int, int]]]:
    """The runs of 4, of 2 and of 1 steps: their entries, their steps, and how the entries of one
    step divide into (lanes or groups of lanes that share one, entries of each)."""
    blocks = STEP // spec.block
    steps, owners = entries // blocks, min(LANES, blocks)
    start = 0
    for length, count in ((4, steps // 4), (2, steps // 2 % 2), (1, steps % 2)):
        stop = start + length * count * blocks
        if count:
            yield slice(start, stop), length, (owners, blocks // owners)
        start = stop
