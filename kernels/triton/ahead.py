"""Weights of the next launch, asked into the second-level cache by the one before it.

At the border of two launches nobody reads memory: the last sums are stored, the next programs are
placed, their first weights are on their way, 1.4 to 3 us that cost 1.4 to 8 MB each. What a launch
asks for when it has read its own weights arrives meanwhile, and the next one finds it in the cache.
Only a hint: nothing is computed from it, nothing waits for it, no bit of a result depends on it.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from wmrt.kernels.triton.aot_cases import AotCase
from wmrt.kernels.triton.arrays import Array

#: Bytes that one request brings: a sector. Neighbours of a line are one request of a warp.
SECTOR = 32

#: Rows, and of words and of scales: bytes between rows, bytes of each that are asked for, turns of
#: all lanes of a launch. Empty: nothing is asked for.
Share = tuple[int, ...]

#: A case that neither depends on another launch nor asks for the weights of the next one.
PLAIN = {"DEPENDENT": False, "NEXT": ()}


@triton.jit
def ask_ahead(words: tl.tensor, scales: tl.tensor, NEXT: tl.constexpr) -> None:
    """This program's part of `NEXT`, a `Share`, of the next launch's words and scales."""
    if len(NEXT) > 0:
        ask_rows(words, NEXT[0], NEXT[1], NEXT[2], NEXT[3], NEXT[7])
        ask_rows(scales, NEXT[0], NEXT[4], NEXT[5], NEXT[6], NEXT[7])


@triton.jit
def ask_rows(
    base: tl.tensor,
    ROWS: tl.constexpr,
    STRIDE: tl.constexpr,
    TAKE: tl.constexpr,
    TURNS: tl.constexpr,
    LANES: tl.constexpr,
) -> None:
    """The first `TAKE` bytes of `ROWS` rows that lie `STRIDE` bytes apart, over all programs."""
    SECTORS: tl.constexpr = (TAKE + 31) // 32
    place = base.to(tl.int64)
    for turn in tl.static_range(TURNS):
        i = (turn * tl.num_programs(0) + tl.program_id(0)) * LANES + tl.arange(0, LANES)
        i = tl.minimum(i, ROWS * SECTORS - 1)  # asking twice is harmless, and shorter than a mask
        prefetch(place + (i // SECTORS * STRIDE + i % SECTORS * 32))


@triton.jit
def prefetch(address: tl.tensor) -> None:
    """Asks the sector at each address into the second-level cache."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.b32 $0, 0;",
        "=r,l",
        [address],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


def share(
    words: Tensor | None, scales: Tensor | None, kib: int, programs: int, warps: int
) -> Share:
    """What a launch of `programs` asks for of the next one's words and scales.

    The beginnings of all rows, whole lines of them: that is what the next launch's programs read
    first, each its own rows, so that all of them gain. At most about `kib` KiB, at least a line.
    """
    if words is None or scales is None or not kib:
        return ()
    rows, lanes = words.shape[0], 32 * warps
    strides = [t.stride(0) * t.element_size() for t in (words, scales)]
    part = min(1.0, kib * 1024 / (rows * sum(strides)))
    found: list[int] = [rows]
    for stride, line in zip(strides, (128, SECTOR), strict=True):
        take = min(stride, max(line, int(stride * part) // line * line))
        sectors = rows * -(-take // SECTOR)
        found += [stride, take, -(-sectors // (programs * lanes))]
    return (*found, lanes)


def next_types() -> dict[str, str]:
    """Types of the two tensors, for `AotCase.signature`; scales are only asked for, as bytes."""
    return {"next_words": "*i32", "next_scales": "*u8"}


def next_arrays(share: Share) -> dict[str, Array]:
    """What the two tensors are, from what is asked of them: the matrix of the next launch, of which
    nothing is read. `next_words` as int32, `next_scales` as bytes."""
    if not share:
        return dict.fromkeys(next_types(), Array("unused", ()))
    rows, words, scales = share[0], share[1] // 4, share[4]
    return {
        "next_words": Array("weights", (rows, words), "gpu_gemv.words"),
        "next_scales": Array("weights", (rows, scales), "gpu_gemv.lane_scales"),
    }


def ahead_case(case: AotCase, shape: tuple[int, int], programs: int) -> AotCase:
    """The case in front of an nvfp4 matrix [N, K] of which 6 MiB are asked for, as on an H200."""
    rows, columns = shape
    words = torch.empty(rows, columns // 8, dtype=torch.int32, device="meta")
    scales = torch.empty(rows, columns // 16, dtype=torch.uint8, device="meta")
    following = share(words, scales, 6144, programs, case.warps)
    return replace(
        case,
        name=f"{case.name}.ahead",
        constants={**case.constants, "NEXT": following},
        arrays={**case.arrays, **next_arrays(following)},
        instructions=(*case.instructions, "CCTL.E.PF2"),
    )
