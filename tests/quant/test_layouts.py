"""Layouts: every byte is one canonical element or known padding, and nothing else is read back."""

from __future__ import annotations

from collections.abc import Callable

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from tests.quant.layout_cases import TAKEN, Shape, raw, same, weight
from wmrt.core.errors import QuantizationError
from wmrt.quant import QuantizedTensor
from wmrt.quant.formats import FORMATS
from wmrt.quant.layouts import (
    LAYOUTS,
    from_layout,
    laid_out,
    stored,
    to_layout,
)

EIGHT_BITS = tuple(name for name, spec in FORMATS.items() if spec.bits == 8)
#: Shapes with padding of every kind: inside a block, behind blocks, behind rows, below rows.
SHAPES = [(1, 1), (3, 40), (2, 601), (131, 70), (2, 256 * 7)]


# ---- round trips ----


@hypothesis.given(
    st.sampled_from(TAKEN), st.integers(1, 70), st.integers(1, 1100), st.integers(0, 2**32 - 1)
)
def test_round_trip(case: tuple[str, str], rows: int, columns: int, seed: int) -> None:
    layout, name = case
    q = weight(seed, (rows, columns), name)
    laid = to_layout(q, layout)
    described = {key: (tuple(t.shape), t.dtype) for key, t in laid.items()}
    assert described == stored(layout, name, q.shape)
    assert all(t.is_contiguous() for t in laid.values())
    back = from_layout(name, q.shape, layout, laid)
    assert same(back, q)
    again = to_layout(back, layout)
    assert all(np.array_equal(raw(laid[key]), raw(again[key])) for key in laid)


@pytest.mark.parametrize("name", ["nvfp4", "int4-g128"])
def test_large_weights_are_arranged_in_slices(name: str, seed: int) -> None:
    q = weight(seed, (1901, 300), name)  # rows of 272 or 288 bytes: three slices, the last short
    laid = to_layout(q, "cpu_interleaved")
    assert same(from_layout(name, q.shape, "cpu_interleaved", laid), q)


def test_tensors_need_not_be_aligned_or_contiguous(seed: int) -> None:
    for layout, name in TAKEN:
        q = weight(seed, (5, 300), name)
        laid = {}
        for key, t in to_layout(q, layout).items():
            if t.ndim < 2:
                laid[key] = t
                continue
            wide = torch.zeros(*t.shape[:-1], t.shape[-1] + 3, dtype=t.dtype)
            laid[key] = wide[..., 1:-2]
            laid[key].copy_(t)
        assert same(from_layout(name, q.shape, layout, laid), q)


def test_codes_read_from_an_odd_address(seed: int) -> None:
    q = weight(seed, (4, 512), "mxfp4")
    moved = torch.empty(q.codes.numel() + 1, dtype=torch.uint8)[1:].view(q.codes.shape)
    moved.copy_(q.codes)
    other = QuantizedTensor("mxfp4", q.shape, moved, q.scales)
    for layout in LAYOUTS:
        laid, again = to_layout(q, layout), to_layout(other, layout)
        assert all(torch.equal(laid[key], again[key]) for key in laid)


def test_what_is_in_order_already_is_not_copied(seed: int) -> None:
    q = weight(seed, (4, 512), "nvfp4")
    start = q.codes.data_ptr()
    assert to_layout(q, "gpu_gemv")["words"].data_ptr() == start
    assert to_layout(q, "cublas_128x4")["tile_codes"].data_ptr() == start
    assert to_layout(q, "canonical")["codes"].data_ptr() == start


# ---- read in place ----


@hypothesis.given(
    st.sampled_from(TAKEN),
    st.integers(1, 40),
    st.sampled_from([1, 40, 256, 512, 700]),
    st.integers(0, 2**32 - 1),
)
def test_in_place_refuses_what_reading_back_refuses(
    case: tuple[str, str], rows: int, columns: int, seed: int
) -> None:
    layout, name = case
    rng = np.random.default_rng(seed)
    q = weight(seed, (rows, columns), name)
    laid = {key: t.clone() for key, t in to_layout(q, layout).items()}
    held = laid_out(name, q.shape, layout, laid)
    assert held.tensors is laid and (held.layout, held.global_scale) == (layout, q.global_scale)
    key = list(laid)[rng.integers(len(laid))]
    spoiled = laid[key].view(-1).view(torch.uint8)
    for index in rng.integers(len(spoiled), size=rng.integers(1, 4)):
        spoiled[index] = (0, 0x7F, 0x80, 0xFF, int(rng.integers(256)))[rng.integers(5)]
    assert refusal(laid_out, q, layout, laid) == refusal(from_layout, q, layout, laid)


def refusal(read: Callable[..., object], q: QuantizedTensor, layout: str, laid: object) -> str:
    try:
        read(q.format, q.shape, layout, laid)
    except QuantizationError as error:
        return str(error)
    return "none"


@pytest.mark.parametrize("byte", [0x00, 0x7F, 0x80, 0xFF])
@pytest.mark.parametrize("name", ["nvfp4", "mxfp4"])
def test_one_scale_among_many_is_found_and_told_where(name: str, byte: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    q = weight(seed, (700, 512), name)
    block = FORMATS[name].block
    row, column = int(rng.integers(700)), int(rng.integers(512 // block))
    q.scales[row, column] = byte
    codes = q.codes[row, column * block // 2 : (column + 1) * block // 2]
    for code in (0x00, 0x11):  # zeros may have any scale that is a number
        codes.fill_(code)
        laid = to_layout(q, "cpu_interleaved")
        told = refusal(laid_out, q, "cpu_interleaved", laid)
        zero = name == "nvfp4" and byte in (0x00, 0x80)
        nan = byte == 0xFF or (name, byte) == ("nvfp4", 0x7F)
        assert (told != "none") == (nan or (zero and code != 0)), told
        assert told == "none" or f"at row {row}, block {column}" in told
        assert told == refusal(from_layout, q, "cpu_interleaved", laid)


# ---- what a layout states ----


@pytest.mark.parametrize("shape", [*SHAPES, (2048, 6912), (256, 256)])
@pytest.mark.parametrize(("layout", "name"), TAKEN)
def test_what_it_states_is_what_it_stores(layout: str, name: str, shape: Shape) -> None:
    said = LAYOUTS[layout].describe(name, shape)
    held = stored(layout, name, shape)
    assert said.bytes == sum(torch.Size(s).numel() * d.itemsize for s, d in held.values())
    spec, (rows, columns) = FORMATS[name], shape
    blocks = rows * -(-columns // spec.block)
    own = rows * -(-columns // 2) + blocks * (spec.scale_dtype.itemsize + spec.has_zero_points)
    assert said.padding_bytes == said.bytes - own - 4 * spec.has_global >= 0
    assert said.padded_shape[0] == rows and said.padded_shape[1] >= columns
    for size, dtype in held.values():
        assert len(size) == 0 or size[-1] * dtype.itemsize % said.alignment == 0


def test_padding_is_small_for_the_shapes_that_ship() -> None:
    """Percent of a weight's own bytes, for K of the shipped model and of the 1.3B one."""

    def percent(layout: str, name: str) -> list[float]:
        said = [LAYOUTS[layout].describe(name, (2048, k)) for k in (256, 768, 2048, 6912)]
        return [round(100 * p.padding_bytes / (p.bytes - p.padding_bytes), 1) for p in said]

    assert percent("cpu_interleaved", "nvfp4") == [0, 0, 0, 0]
    assert percent("cpu_interleaved", "mxfp4") == [5.9, 2.0, 0, 0.2]
    assert percent("cpu_interleaved", "int4-g128") == [9.1, 1.0, 0, 0.1]
    assert percent("gpu_gemv", "nvfp4") == percent("gpu_gemv", "mxfp4") == [0, 0, 0, 0]
    assert percent("gpu_gemv", "int4-g128") == [3.0, 1.0, 0, 0.1]
    assert percent("cublas_128x4", "nvfp4") == percent("cublas_128x4", "mxfp4") == [0, 0, 0, 0]


# ---- refusals ----


def test_what_a_layout_cannot_take_names_the_rule(seed: int) -> None:
    for name in EIGHT_BITS:
        q = weight(seed, (4, 64), name)
        assert same(from_layout(name, q.shape, "canonical", to_layout(q, "canonical")), q)
        for layout in ("cpu_interleaved", "gpu_gemv"):
            with pytest.raises(QuantizationError, match=f"{layout} takes 4-bit codes .* {name}"):
                to_layout(q, layout)
    for name in [n for n in FORMATS if n not in ("nvfp4", "mxfp4")]:
        for refused in (
            lambda name=name: stored("cublas_128x4", name, (128, 128)),
            lambda name=name: to_layout(weight(seed, (4, 64), name), "cublas_128x4"),
            lambda name=name: from_layout(name, (4, 64), "cublas_128x4", {}),
            lambda name=name: LAYOUTS["cublas_128x4"].describe(name, (4, 64)),
        ):
            with pytest.raises(QuantizationError, match=f"takes byte scales .* {name} is not"):
                refused()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_shapes_that_are_none(layout: str) -> None:
    for shape in ((0, 256), (4, 0), (-1, 64)):
        with pytest.raises(QuantizationError, match="at least one row and column"):
            stored(layout, "nvfp4", shape)


def test_unknown_names(seed: int) -> None:
    with pytest.raises(QuantizationError, match="unknown layout 'marlin'; layouts are canonical"):
        to_layout(weight(seed, (4, 64), "nvfp4"), "marlin")
    with pytest.raises(QuantizationError, match="unknown weight format"):
        stored("gpu_gemv", "fp3", (4, 64))


def refuse(case: tuple[str, str], seed: int, change: Callable[[dict[str, Tensor]], object],
           match: str, shape: Shape = (5, 300)) -> None:  # fmt: skip
    layout, name = case
    laid = {key: t.clone() for key, t in to_layout(weight(seed, shape, name), layout).items()}
    change(laid)
    with pytest.raises(QuantizationError, match=match) as caught:
        from_layout(name, shape, layout, laid)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("case", TAKEN)
def test_names_shapes_and_types(case: tuple[str, str], seed: int) -> None:
    for key, t in to_layout(weight(seed, (5, 300), case[1]), case[0]).items():
        refuse(case, seed, lambda s, key=key: s.pop(key), f"missing: {key}, unexpected: none")
        if t.ndim:
            cut = [t[:-1], t[..., :-1], t[None], t.flatten()]
            for wrong in (*cut, t.to(torch.int64)):
                refuse(case, seed, lambda s, k=key, w=wrong: s.update({k: w}), f"{key} .*must be")
    refuse(case, seed, lambda s: s.update(more=torch.zeros(1)), "unexpected: more")


@pytest.mark.parametrize("case", TAKEN)
def test_tensors_of_another_layout_or_shape(case: tuple[str, str], seed: int) -> None:
    layout, name = case
    for other in LAYOUTS:
        if other != layout and (other, name) in TAKEN:
            laid = to_layout(weight(seed, (5, 300), name), other)
            with pytest.raises(QuantizationError, match="missing"):
                from_layout(name, (5, 300), layout, laid)
    laid = to_layout(weight(seed, (300, 600), name), layout)
    with pytest.raises(QuantizationError, match="must be"):
        from_layout(name, (600, 300), layout, laid)


PADDED = [case for case in TAKEN if case[0] != "canonical"]


@pytest.mark.parametrize("case", PADDED)
def test_garbage_in_any_byte_of_the_padding_is_refused(case: tuple[str, str], seed: int) -> None:
    layout, name = case
    q = weight(seed, (3, 300), name)
    laid, rng = to_layout(q, layout), np.random.default_rng(seed)
    # A byte is padding if no canonical one decides it: two weights that differ in every canonical
    # bit agree on it.
    flip = {key: ~t.view(torch.uint8 if t.dtype == torch.uint8 else torch.int16)
            for key, t in q.tensors().items() if key != "global_scale"}  # fmt: skip
    opposite = QuantizedTensor(name, q.shape, flip["codes"], flip["scales"].view(q.scales.dtype),
                               zero_points=flip.get("zero_points"))  # fmt: skip
    other, count = to_layout(opposite, layout), 0
    for key in [key for key in laid if key != "global_scale"]:
        free = np.flatnonzero(raw(laid[key]) == raw(other[key]))
        count += len(free)
        for index in rng.choice(free, min(len(free), 12), replace=False):
            spoiled = {k: t.clone() for k, t in laid.items()}
            spoiled[key].view(-1).view(torch.uint8)[index] ^= int(rng.integers(1, 256))
            with pytest.raises(QuantizationError, match="padding of"):
                from_layout(name, q.shape, layout, spoiled)
    plain = sum(t.numel() * t.element_size() for t in q.tensors().values())
    assert count == LAYOUTS[layout].describe(name, q.shape).bytes - plain > 0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_scales_are_judged_as_ever(layout: str, seed: int) -> None:
    q = weight(seed, (5, 300), "nvfp4")
    bad = q.scales.clone()
    bad[4, 3] = 0x7F
    laid = to_layout(QuantizedTensor("nvfp4", q.shape, q.codes, bad, q.global_scale), layout)
    with pytest.raises(QuantizationError, match="1 are not, the first at row 4, block 3: nan"):
        from_layout("nvfp4", q.shape, layout, laid)
    for factor in (0.0, torch.nan):
        laid = {**to_layout(q, layout), "global_scale": torch.tensor(factor)}
        with pytest.raises(QuantizationError, match="positive and finite"):
            from_layout("nvfp4", q.shape, layout, laid)
