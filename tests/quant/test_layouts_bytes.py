"""Every byte of a layout against index formulas in plain loops, and against golden vectors."""

from __future__ import annotations

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from tests.quant.golden import ARRAYS
from tests.quant.layout_cases import TAKEN, Shape, raw, weight
from tests.quant.layout_oracle import block_places, code_place, small_tile_place, tile_place, up
from wmrt.core.errors import QuantizationError
from wmrt.quant import QuantizedTensor
from wmrt.quant.formats import BlockFormat
from wmrt.quant.layouts import get_layout, swizzle, to_layout, unswizzle

# With padding inside a block, behind blocks, in runs of 4, 2 and 1 steps, and below rows of tiles.
SHAPES = [(1, 1), (2, 601), (1, 256 * 7)]
CASES = [(*case, shape) for case in TAKEN for shape in SHAPES]
CASES += [("cublas_128x4", name, (131, 70)) for name in ("nvfp4", "mxfp4")]


class Map:
    """Expected nibbles of every stored tensor; each is claimed once at most."""

    def __init__(self, laid: dict[str, Tensor]) -> None:
        self.found = {key: raw(t) for key, t in laid.items()}
        self.claimed = {key: np.zeros((len(t), 2), bool) for key, t in self.found.items()}

    def nibble(self, place: tuple[str, int], high: int, value: int) -> None:
        key, index = place
        assert not self.claimed[key][index, high], f"{key}[{index}] holds two things"
        self.claimed[key][index, high] = True
        assert self.found[key][index] >> (4 * high) & 15 == value, f"{key}[{index}]"

    def entry(self, place: tuple[str, int], value: np.ndarray) -> None:
        for offset, byte in enumerate(value):
            for high in (0, 1):
                self.nibble((place[0], place[1] + offset), high, int(byte) >> (4 * high) & 15)


def strides(layout: str, spec: BlockFormat, laid: dict[str, Tensor]) -> dict[str, int]:
    rows = {key: t.shape[-1] * t.element_size() for key, t in laid.items() if t.ndim > 1}
    scale, blocks = spec.scale_dtype.itemsize, 256 // spec.block
    rows["scale"] = scale
    rows["unit"] = up(128 + blocks * (scale + spec.has_zero_points), 4)
    return rows


def check_every_byte(layout: str, q: QuantizedTensor) -> None:
    spec, (rows, columns) = q.spec, q.shape
    laid = to_layout(q, layout)
    step = strides(layout, spec, laid)
    seen = Map(laid)
    codes = raw(q.codes).reshape(rows, -1)
    wide = get_layout(layout).padded_shape(spec, q.shape)[1]
    for row in range(rows):
        for k in range(wide):
            inside = k // 2 < codes.shape[1]
            code = int(codes[row, k // 2]) >> (k % 2 * 4) & 15 if inside else spec.zero_code
            seen.nibble(*code_place(layout, row, k, step), code)
    for name, size in (("scales", step["scale"]), ("zero_points", 1)):
        if name not in q.tensors():
            continue
        entries = raw(q.tensors()[name]).reshape(rows, -1, size)
        if layout == "cublas_128x4":
            for row in range(rows):
                for column in range(entries.shape[1]):
                    place = tile_place(row, column, entries.shape[1])
                    seen.entry(("tile_scales", place), entries[row, column])
            continue
        fill = np.full(size, spec.zero_code if name == "zero_points" else 0)
        places = list(block_places(layout, name, spec.block, size, columns, step))
        for row in range(rows):
            for (_, block), (key, place) in places:
                value = entries[row, block] if block < entries.shape[1] else fill
                seen.entry((key, row * step[key] + place), value)
    if spec.has_global:
        seen.entry(("global_scale", 0), raw(torch.tensor(q.global_scale)))
    for key, claimed in seen.claimed.items():
        rest = np.where(~claimed[:, 0], seen.found[key] & 15, 0)
        rest |= np.where(~claimed[:, 1], seen.found[key] & 0xF0, 0)
        assert not rest.any(), f"{key}: padding is not zero"


@pytest.mark.parametrize(("layout", "name", "shape"), CASES)
def test_every_byte_is_where_the_formula_says(
    layout: str, name: str, shape: Shape, seed: int
) -> None:
    check_every_byte(layout, weight(seed, shape, name))


# ---- golden vectors ----


@pytest.mark.parametrize("key", [k for k in ARRAYS if k.startswith("swz_in_")])
def test_swizzled_scales_are_those_of_torchao(key: str) -> None:
    scales = torch.from_numpy(ARRAYS[key])
    want = ARRAYS[key.replace("_in_", "_out_")]
    tiles = swizzle(scales)
    assert tiles.shape == (-(-scales.shape[0] // 128), -(-scales.shape[1] // 4), 512)
    np.testing.assert_array_equal(tiles.flatten().numpy(), want)
    assert torch.equal(unswizzle(tiles, tuple(scales.shape)), scales)


@pytest.mark.parametrize("name", ["w", "wout", "edge"])
def test_swizzled_scales_are_those_of_flashinfer(name: str) -> None:
    scales = ARRAYS.get(f"nv_flashinfer_scale_{name}", ARRAYS[f"nv_te_scale_{name}"])
    want = ARRAYS[f"nv_flashinfer_sf_swizzled_128x4_{name}"]
    np.testing.assert_array_equal(swizzle(torch.from_numpy(scales)).flatten().numpy(), want)


def test_tiles_of_eight_rows() -> None:
    scales = torch.from_numpy(ARRAYS["swz8x4_in_20x6"])
    tiles = swizzle(scales, 8)
    np.testing.assert_array_equal(tiles.flatten().numpy(), ARRAYS["swz8x4_out_20x6"])
    assert torch.equal(unswizzle(tiles, (20, 6), 8), scales)
    with pytest.raises(QuantizationError, match="8 or 128 rows, not 16"):
        swizzle(scales, 16)


@hypothesis.given(st.integers(1, 300), st.integers(1, 9), st.integers(0, 2**32 - 1))
@hypothesis.settings(max_examples=20)
def test_tiles_by_their_formula(rows: int, columns: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    scales = torch.from_numpy(rng.integers(1, 127, (rows, columns), dtype=np.uint8))
    for tile_rows, place in ((128, tile_place), (8, small_tile_place)):
        flat = swizzle(scales, tile_rows).flatten()
        for row in range(rows):
            for column in range(columns):
                assert flat[place(row, column, columns)] == scales[row, column]
        assert int((flat != 0).sum()) == rows * columns
        assert torch.equal(
            unswizzle(swizzle(scales, tile_rows), (rows, columns), tile_rows), scales
        )
