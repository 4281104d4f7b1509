"""Where every code and scale of a layout lies, written out element by element.

Second descriptions of what `wmrt.quant.layouts` computes with whole tensors: no code is shared.
"""

from __future__ import annotations

from collections.abc import Iterator

Place = tuple[str, int]  # tensor, index into it read as bytes
STEP = 256


def up(value: int, multiple: int) -> int:
    return (value + multiple - 1) // multiple * multiple


def code_place(layout: str, row: int, k: int, strides: dict[str, int]) -> tuple[Place, int]:
    """Byte of element [row, k] and its nibble (0 low, 1 high); `strides` are bytes of a row."""
    if layout == "canonical":
        return ("codes", row * strides["codes"] + k // 2), k % 2
    if layout == "gpu_gemv":  # little-endian words of eight nibbles
        word, nibble = divmod(k, 8)
        return ("words", row * strides["words"] + word * 4 + nibble // 2), nibble % 2
    if layout == "cublas_128x4":
        return ("tile_codes", row * strides["tile_codes"] + k // 2), k % 2
    unit, inside = divmod(k, STEP)
    lane, element = divmod(inside, 16)
    half, element = divmod(element, 8)
    nibble, i = divmod(element, 4)
    size = strides["unit"]
    return (
        "interleaved",
        row * strides["interleaved"] + unit * size + 64 * half + 4 * lane + i,
    ), nibble


def run_order(steps: int, block: int) -> list[int]:
    """Blocks of a row in the order in which gpu_gemv stores their scales."""
    order, first = [], 0
    while first < steps:
        length = 4 if steps - first >= 4 else 2 if steps - first >= 2 else 1
        owners = 8 if block <= 32 else STEP // block
        for owner in range(owners):
            for step in range(first, first + length):
                width = STEP // owners  # weights of a step that this owner answers for
                start = step * STEP + owner * width
                order += range(start // block, (start + width) // block)
        first += length
    return order


def block_places(
    layout: str, tensor: str, block: int, size: int, columns: int, strides: dict[str, int]
) -> Iterator[tuple[tuple[int, int], Place]]:
    """((row 0, block of the padded row), its first byte) of one per-block tensor of `size` bytes an
    entry; other rows lie `strides` further, except in tiles."""
    steps = up(columns, STEP) // STEP
    per_unit = STEP // block
    if layout == "canonical":
        for b in range(up(columns, block) // block):
            yield (0, b), (tensor, b * size)
    elif layout == "gpu_gemv":
        name = {"scales": "lane_scales", "zero_points": "lane_zeros"}[tensor]
        for position, b in enumerate(run_order(steps, block)):
            yield (0, b), (name, position * size)
    else:
        behind = 128 + (per_unit * strides["scale"] if tensor == "zero_points" else 0)
        for b in range(steps * per_unit):
            unit, inside = divmod(b, per_unit)
            yield (0, b), ("interleaved", unit * strides["unit"] + behind + inside * size)


def tile_place(row: int, column: int, columns: int) -> int:
    """off_128x4: byte of a scale in the flat swizzled tensor of `columns` columns."""
    tiles = (columns + 3) // 4
    return (
        ((row // 128) * tiles + column // 4) * 512
        + (row % 32) * 16
        + ((row % 128) // 32) * 4
        + column % 4
    )


def small_tile_place(row: int, column: int, columns: int) -> int:
    """off_8x4: the same for tiles of eight rows."""
    tiles = (columns + 3) // 4
    return ((row // 8) * tiles + column // 4) * 32 + (row % 8) * 4 + column % 4
