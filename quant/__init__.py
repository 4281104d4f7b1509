"""Quantization: formats, recipes, packed tensors and the bytes they cost."""

if __name__ == "quant":  # the folder itself was put on sys.path
    raise ImportError("import wmrt.quant: the bare name quant belongs to nobody")

from wmrt.quant.quantize import quantize
from wmrt.quant.recipe import RECIPES, Recipe, get_recipe
from wmrt.quant.tensor import QuantizedTensor

__all__ = ["RECIPES", "QuantizedTensor", "Recipe", "get_recipe", "quantize"]
