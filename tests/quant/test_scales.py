"""Scale choices: what other libraries choose, never worse than the format's rule, refusals."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.quant.golden import ARRAYS
from wmrt.core.errors import QuantizationError
from wmrt.quant import quantize
from wmrt.quant.block_scales import blocks_of
from wmrt.quant.elements import decode_e2m1, decode_int4, encode_e2m1, encode_int4
from wmrt.quant.formats import FORMATS, BlockFormat, decode_scales
from wmrt.quant.nearest import nearest
from wmrt.quant.rules import Rules
from wmrt.quant.scales import Chosen, choose_scales
from wmrt.quant.steps import Clip, FourOverSix
from wmrt.quant.tensor import QuantizedTensor

FOUR_BIT = tuple(name for name, fmt in FORMATS.items() if fmt.bits == 4)
PLAIN = Clip(weighted=False)


def draw(seed: int, rows: int, columns: int) -> Tensor:
    """Gaussian weights whose columns differ in size, with a few outliers."""
    g = torch.Generator().manual_seed(seed)
    w = torch.randn(rows, columns, generator=g) * torch.exp(torch.randn(columns, generator=g))
    w[torch.rand(rows, columns, generator=g) < 0.01] *= 20
    return w * 0.02


def rounded(weight: Tensor, format: str, chosen: Chosen) -> QuantizedTensor:
    return quantize(
        weight,
        format,
        scales=chosen.scales,
        global_scale=chosen.global_scale,
        zero_points=chosen.zero_points,
    )


def block_errors(weight: Tensor, q: QuantizedTensor, counts: Tensor | None = None) -> Tensor:
    """float64[N, K'/block]: squared errors, each column times `counts`."""
    change = (q.dequantize().double() - weight.double()).square()
    if counts is not None:
        change *= counts.double()
    return blocks_of(change, q.spec).double().sum(-1)


def no_worse(mine: Tensor, theirs: Tensor) -> bool:
    """Up to the float32 rounding of sums over at most 128 squares."""
    return bool((mine <= theirs * (1 + 128 * 2.0**-24) + 1e-30).all())


@pytest.mark.parametrize("element", ["e2m1", "int4"])
def test_arithmetic_rounding_equals_the_codes(element: str, seed: int) -> None:
    grid = torch.arange(-20, 20, 1 / 64)
    x = torch.cat([grid, torch.randn(10_000, generator=torch.Generator().manual_seed(seed)) * 4])
    want = decode_e2m1(encode_e2m1(x)) if element == "e2m1" else decode_int4(encode_int4(x))
    assert torch.equal(nearest(x, element), want)
    assert torch.equal(x[: len(grid)], grid)  # left alone


@pytest.mark.parametrize("name", FOUR_BIT)
def test_without_a_step_the_scales_are_the_formats_own(name: str, seed: int) -> None:
    w = draw(seed, 5, 200)
    q, chosen = quantize(w, name), choose_scales(w, name)
    assert torch.equal(chosen.scales, q.scales)
    assert chosen.global_scale == (q.global_scale if q.spec.has_global else None)
    assert (chosen.zero_points is None) == (q.zero_points is None)
    assert torch.equal(rounded(w, name, chosen).codes, q.codes)


@pytest.mark.parametrize("name", ["w", "wout"])
@pytest.mark.parametrize("metric", ["MSE", "MAE"])
@pytest.mark.parametrize("largest", [448, 256])
def test_four_over_six_equals_transformer_engine(largest: int, metric: str, name: str) -> None:
    x = torch.from_numpy(ARRAYS[f"x_{name}"])
    chosen = choose_scales(x, "nvfp4", FourOverSix(metric.lower(), float(largest)))
    key = f"nv_te_4o6_{metric}_{largest}"
    np.testing.assert_array_equal(chosen.scales.numpy(), ARRAYS[f"{key}_scale_{name}"])
    # Its arithmetic of the quotient decides exact ties; ours rounds once less (`Rules.division`).
    q = quantize(
        x,
        "nvfp4",
        scales=chosen.scales,
        global_scale=chosen.global_scale,
        rules=Rules(division="reciprocal"),
    )
    np.testing.assert_array_equal(q.codes.numpy(), ARRAYS[f"{key}_codes_{name}"])
    assert chosen.global_scale == np.float32(x.abs().max()) / np.float32(6 * largest)


def test_four_over_six_takes_either_scale_and_the_better_one(seed: int) -> None:
    w = draw(seed, 64, 256)
    own = quantize(w, "nvfp4")
    chosen = choose_scales(w, "nvfp4", FourOverSix())
    raised = own.scales != chosen.scales
    assert 0.1 < float(raised.float().mean()) < 0.9
    ratio = decode_scales(chosen.scales, own.spec) / decode_scales(own.scales, own.spec)
    # Two E4M3 roundings of at most 1/16 each around one and a half.
    assert bool(((ratio[raised] > 1.5 * 15 / 17) & (ratio[raised] < 1.5 * 17 / 15)).all())
    assert no_worse(block_errors(w, rounded(w, "nvfp4", chosen)), block_errors(w, own))


@pytest.mark.parametrize("name", FOUR_BIT)
@pytest.mark.parametrize("columns", [256, 77])
@pytest.mark.parametrize("weighted", [False, True])
def test_clip_is_never_worse_than_the_own_scale(
    name: str, columns: int, weighted: bool, seed: int
) -> None:
    w = draw(seed, 240, columns)  # one block of mxfp4 in 20 gets better: of 720 surely one
    counts = torch.rand(columns, generator=torch.Generator().manual_seed(seed)) ** 4
    chosen = choose_scales(
        w, name, Clip(weighted=weighted), importance=counts if weighted else None
    )
    q, own = rounded(w, name, chosen), quantize(w, name)
    mine, theirs = (block_errors(w, t, counts if weighted else None) for t in (q, own))
    assert no_worse(mine, theirs)
    assert float(mine.sum()) < float(theirs.sum())
    QuantizedTensor.from_tensors(name, q.shape, q.tensors())


def storable(spec: BlockFormat, own: Tensor, step: Clip) -> list[Tensor]:
    """Every scale `step` may try, written another way: neighbours by value."""
    if spec.scale == "e8m0":
        return [own, own - 1, own + 1]
    if spec.scale == "e4m3":
        return [torch.full_like(own, byte) for byte in range(127)]
    return [own] + [
        (own.float() * r).half() for r in torch.linspace(step.lowest, step.highest, step.grid)
    ]


@pytest.mark.parametrize("name", ["nvfp4", "mxfp4", "int4-g32"])
def test_clip_finds_what_trying_every_scale_finds(name: str, seed: int) -> None:
    w = draw(seed, 16, 128)
    own = quantize(w, name)
    # Limits that take in every E4M3 scale which could be best: below half of the own one most of
    # a block saturates, above twice it, half of the levels are idle.
    step = Clip(lowest=0.4, highest=2.0, weighted=False)
    chosen = choose_scales(w, name, step)
    least = torch.stack(
        [
            block_errors(w, quantize(w, name, scales=s, global_scale=chosen.global_scale))
            for s in storable(own.spec, own.scales, step)
        ]
    ).amin(0)
    assert no_worse(block_errors(w, rounded(w, name, chosen)), least)


def test_importance_protects_the_columns_that_count(seed: int) -> None:
    w = draw(seed, 256, 1024)  # 16 384 values that count: the ratio below is 0.39 +-0.05 by seed
    counts = torch.full((1024,), 1e-3)
    counts[::16] = 1.0
    plain = rounded(w, "nvfp4", choose_scales(w, "nvfp4", PLAIN))
    guided = rounded(w, "nvfp4", choose_scales(w, "nvfp4", Clip(), importance=counts))
    error = [float((q.dequantize() - w)[:, ::16].square().sum()) for q in (plain, guided)]
    assert error[1] < 0.7 * error[0]


@pytest.mark.parametrize("name", FOUR_BIT)
def test_zero_blocks_keep_their_own_scale(name: str, seed: int) -> None:
    w = draw(seed, 4, 256)
    w[1] = 0
    w[2, :128] = 0
    chosen = choose_scales(w, name, PLAIN)
    q = rounded(w, name, chosen)
    assert torch.equal(chosen.scales[1], quantize(w, name).scales[1])
    assert not q.dequantize()[1].any() and not q.dequantize()[2, :128].any()
    zero = choose_scales(torch.zeros(2, 64), name, PLAIN)
    assert zero.global_scale in (None, 1.0) and not zero.scales.any()


@pytest.mark.parametrize("name", FOUR_BIT)
def test_row_slices_change_nothing(name: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    w = draw(seed, 13, 192)
    whole = choose_scales(w, name, PLAIN)
    monkeypatch.setattr("wmrt.quant.scales.SLICE", 512)
    parts = choose_scales(w, name, PLAIN)
    assert torch.equal(whole.scales, parts.scales)
    assert (whole.zero_points is None) == (parts.zero_points is None)
    if whole.zero_points is not None and parts.zero_points is not None:
        assert torch.equal(whole.zero_points, parts.zero_points)


def test_a_given_global_scale_is_kept(seed: int) -> None:
    w = draw(seed, 8, 64)
    g = quantize(w, "nvfp4").global_scale * 2
    for step in (None, FourOverSix(), PLAIN):
        assert choose_scales(w, "nvfp4", step, global_scale=g).global_scale == g


def test_what_is_gained_on_gaussian_weights(seed: int) -> None:
    # Root mean square against round to nearest on N(0, 1), on one draw: four-over-six .913,
    # clip .854 for nvfp4, .997 for mxfp4, .917 for int4-g128.
    w = torch.randn(256, 512, generator=torch.Generator().manual_seed(seed))

    def gain(name: str, step: FourOverSix | Clip) -> float:
        q, own = rounded(w, name, choose_scales(w, name, step)), quantize(w, name)
        return float((q.dequantize() - w).norm() / (own.dequantize() - w).norm())

    assert gain("nvfp4", FourOverSix()) == pytest.approx(0.913, abs=0.02)
    for name, expected in (("nvfp4", 0.854), ("mxfp4", 0.997), ("int4-g128", 0.917)):
        assert gain(name, PLAIN) == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize(
    ("importance", "told"),
    [
        (None, "give importance"),
        (torch.ones(63), r"must be \[64\]"),
        (torch.ones(1, 64), r"must be \[64\]"),
        (torch.full((64,), -1.0), "not negative"),
        (torch.full((64,), torch.nan), "finite"),
    ],
)
def test_importance_that_cannot_be_used(importance: Tensor | None, told: str) -> None:
    with pytest.raises(QuantizationError, match=told):
        choose_scales(torch.ones(2, 64), "nvfp4", Clip(), importance=importance)


def test_other_refusals() -> None:
    w = torch.ones(2, 64)
    with pytest.raises(QuantizationError, match="not mxfp4"):
        choose_scales(w, "mxfp4", FourOverSix())
    with pytest.raises(QuantizationError, match="4-bit"):
        choose_scales(w, "fp8-channel", PLAIN)
    with pytest.raises(QuantizationError, match="unknown weight format"):
        choose_scales(w, "nvfp5")
    with pytest.raises(QuantizationError, match="NaN or infinite"):
        choose_scales(w * torch.nan, "nvfp4", PLAIN)
