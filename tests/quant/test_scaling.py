"""Scales by output error: never worse than none, and better where outliers are."""

from __future__ import annotations

import statistics

import pytest
import torch
from torch import Tensor

from wmrt.quant import RECIPES, get_recipe, quantize
from wmrt.quant.emulate import emulate_input
from wmrt.quant.recipe import Recipe
from wmrt.quant.scaling import Fold, search
from wmrt.quant.steps import Awq, SmoothQuant

STEPS = [Awq(), Awq(grid=3), SmoothQuant()]


def case(seed: int, columns: int = 96) -> tuple[Tensor, Tensor]:
    """Inputs with a few loud channels, as those of trained layers, and a weight."""
    generator = torch.Generator().manual_seed(seed)
    loud = torch.ones(columns)
    loud[torch.randperm(columns, generator=generator)[:4]] = 30.0
    x = torch.randn(3, 50, columns, generator=generator) * loud
    return x, torch.randn(64, columns, generator=generator)


def plain(columns: int, share: int = 1) -> Fold:
    def never(scale: Tensor) -> None:
        raise AssertionError("a search applies nothing")

    return Fold("layer", torch.arange(columns) // share, never)


def error(x: Tensor, weight: Tensor, scale: Tensor | None, recipe: Recipe) -> float:
    exact = x @ weight.T
    if scale is not None:
        x, weight = x / scale, weight * scale
    rounded = quantize(weight, recipe.weight_format).dequantize()
    return float((emulate_input(x, recipe.activation) @ rounded.T - exact).square().sum())


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("name", ["nvfp4", "mxfp4", "w4a8"])
def test_outliers_gain(step: Awq | SmoothQuant, name: str, seed: int) -> None:
    """In most cases: now and then none of the scales that are tried is better than none."""
    recipe, shares = RECIPES[name], []
    for x, weight in (case(seed + k) for k in range(5)):
        scale = search(step, plain(96), x, weight, recipe)
        if scale is None:
            shares.append(1.0)
            continue
        assert scale.shape == (96,)
        assert float(scale.max() * scale.min()) == pytest.approx(1.0, rel=1e-5)
        shares.append(error(x, weight, scale, recipe) / error(x, weight, None, recipe))
        assert shares[-1] < 1.0
    # 4 of 96 channels carry nearly all of the output; finer steps for them are worth a lot, where
    # the search has more than three powers to choose from. By seed the share is 0.24 +-0.08 of
    # nvfp4 and 0.51 +-0.06 of w4a8; of mxfp4, whose scales are powers of two, 0.78 +-0.08.
    if step != Awq(grid=3):
        assert statistics.mean(shares) < (0.95 if name == "mxfp4" else 0.75)


@pytest.mark.parametrize("step", STEPS)
def test_it_is_the_best_of_what_was_tried_or_none(step: Awq | SmoothQuant, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, weight = torch.randn(64, 64, generator=generator), torch.randn(32, 64, generator=generator)
    for name in ("nvfp4", "int8"):
        recipe = get_recipe(name)
        scale = search(step, plain(64), x, weight, recipe)
        if scale is not None:
            assert error(x, weight, scale, recipe) < error(x, weight, None, recipe)


@pytest.mark.parametrize("step", [Awq(), SmoothQuant(0.5)])
def test_columns_share_their_channels_scale(step: Awq | SmoothQuant, seed: int) -> None:
    x, weight = case(seed)
    scale = search(step, plain(96, share=3), x, weight, RECIPES["w4a8"])
    assert scale is not None and scale.shape == (32,)


def test_smoothquant_with_a_fixed_alpha_is_the_formula(seed: int) -> None:
    x, weight = case(seed)
    scale = search(SmoothQuant(0.3), plain(96), x, weight, RECIPES["w4a8"])
    assert scale is not None
    expected = x.abs().amax((0, 1)) ** 0.3 / weight.abs().amax(0) ** 0.7
    ratio = scale / expected  # up to one factor for all channels
    assert float(ratio.max() / ratio.min()) == pytest.approx(1.0, rel=1e-5)


def test_dead_channels_are_harmless(seed: int) -> None:
    x, weight = case(seed)
    x[..., :10] = 0.0
    weight[:, 20:30] = 0.0
    for step in (Awq(), SmoothQuant(), SmoothQuant(0.5)):
        scale = search(step, plain(96), x, weight, RECIPES["nvfp4"])
        assert scale is None or bool((torch.isfinite(scale) & (scale > 0)).all())
        dead = search(step, plain(96), torch.zeros_like(x), weight, RECIPES["nvfp4"])
        assert dead is None or bool((torch.isfinite(dead) & (dead > 0)).all())
