"""The emulated product is the operators' own, up to the order of float32 sums."""

from __future__ import annotations

import pytest
import torch

from wmrt.core.errors import QuantizationError
from wmrt.kernels import linear
from wmrt.quant import RECIPES, quantize
from wmrt.quant.emulate import emulate_input

PACKING = [name for name, recipe in RECIPES.items() if recipe.packs]


@pytest.mark.parametrize("name", PACKING)
@pytest.mark.parametrize("columns", [256, 72])
def test_it_computes_what_the_operator_computes(name: str, columns: int, seed: int) -> None:
    recipe, generator = RECIPES[name], torch.Generator().manual_seed(seed)
    x = torch.randn(5, columns, generator=generator)
    x[:, 3] *= 30
    packed = quantize(torch.randn(48, columns, generator=generator), recipe.weight_format)
    op = linear(recipe.weight_format, recipe.activation)
    given, weight = emulate_input(x, recipe.activation), packed.dequantize()
    # Each product and each of K partial sums rounds by 2^-24 of the sum of magnitudes, in either.
    limit = 2 * (columns + 4) * 2.0**-24 * (given.abs() @ weight.abs().T)
    assert bool(((given @ weight.T - op(x, packed)).abs() <= limit).all())


def test_shape_and_finiteness_stay(seed: int) -> None:
    x = torch.randn(2, 3, 40, generator=torch.Generator().manual_seed(seed))
    for activation in ("int8-g32", "int8-token", "fp8-token", "bf16"):
        found = emulate_input(x, activation)
        assert found.shape == x.shape and found.dtype == torch.float32
        assert torch.equal(emulate_input(torch.zeros(2, 40), activation), torch.zeros(2, 40))


def test_an_unknown_activation_is_named() -> None:
    with pytest.raises(QuantizationError, match="int3"):
        emulate_input(torch.zeros(2, 32), "int3")
