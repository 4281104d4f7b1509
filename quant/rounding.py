"""One weight through a recipe's scale choice and rounding."""

from __future__ import annotations

from torch import Tensor

from wmrt.core.errors import QuantizationError
from wmrt.quant.gptq import gptq
from wmrt.quant.hessian import Hessian
from wmrt.quant.quantize import quantize
from wmrt.quant.recipe import Recipe
from wmrt.quant.scales import choose_scales
from wmrt.quant.steps import Clip, FourOverSix, Gptq, Rescale
from wmrt.quant.tensor import QuantizedTensor


def round_weight(weight: Tensor, x: Tensor | None, recipe: Recipe) -> QuantizedTensor:
    """The weight float32[N, K] packed by the steps of ``recipe`` after its transforms.

    Args:
        weight: as transformed.
        x: inputs float32[..., K] of the linear on calibration data; None if no step needs them.

    Raises `QuantizationError` when a step cannot do what is asked.
    """
    scales = next((s for s in recipe.steps if isinstance(s, (FourOverSix, Clip))), None)
    order = next((s for s in recipe.steps if isinstance(s, Gptq)), None)
    again = next((s for s in recipe.steps if isinstance(s, Rescale)), None)
    if scales is None and order is None:
        return quantize(weight, recipe.weight_format)
    importance = None
    if isinstance(scales, Clip) and scales.weighted:
        importance = _rows(x, "clip").square().mean(0)
    chosen = choose_scales(weight, recipe.weight_format, scales, importance=importance)
    if order is None:
        return quantize(
            weight,
            recipe.weight_format,
            scales=chosen.scales,
            zero_points=chosen.zero_points,
            global_scale=chosen.global_scale,
        )
    hessian = Hessian(weight.shape[1])
    hessian.add(_rows(x, "gptq"))
    return gptq(weight, hessian.matrix(), recipe.weight_format, chosen, order, again)


def _rows(x: Tensor | None, step: str) -> Tensor:
    if x is None:
        raise QuantizationError(f"{step} needs the layer's inputs; give calibration data")
    return x.flatten(0, -2)
