"""Operators are asked for exactly, and an error lists what exists."""

from __future__ import annotations

import pytest
import torch

from wmrt.core.errors import UnsupportedError, WmrtError
from wmrt.kernels import linear, operators
from wmrt.kernels.registry import register
from wmrt.quant import RECIPES


def test_every_recipe_has_a_reference() -> None:
    for recipe in RECIPES.values():
        op = linear(recipe.weight_format, recipe.activation)
        assert op.implementation == "reference" and op.name.endswith(".reference")
        assert (op.format, op.activation) == (recipe.weight_format, recipe.activation)


def test_names() -> None:
    assert {op.name for op in operators() if op.implementation == "reference"} == {
        "linear_bf16.reference",
        "linear_nvfp4_a8.reference",
        "linear_mxfp4_a8.reference",
        *(f"linear_int4_g{g}{zp}_a8.reference" for g in (32, 64, 128) for zp in ("", "_zp")),
        "linear_fp8_channel_fp8.reference",
        "linear_fp8_tensor_fp8.reference",
        "linear_int8_channel_int8.reference",
        "linear_nvfp4_a16.reference",
        "linear_mxfp4_a16.reference",
    }
    assert len({op.name for op in operators()}) == len(operators())


@pytest.mark.parametrize(
    ("key", "said"),
    [
        (("nvfp4", "int8-g32", "magic"), "no implementation 'magic' of linear; there are ref"),
        (("bf16", "int8-g32", ""), "no implementation '' of linear; there are reference, native"),
        (("nvfp5", "int8-g32", "reference"), "no reference linear .*'nvfp5'.* mxfp4 with int8-g32"),
        (("fp8-tensor", "fp8-token", "native"), "no native linear .* mxfp4 with bf16, bf16 with"),
    ],
)
def test_what_does_not_exist_is_never_replaced(key: tuple[str, str, str], said: str) -> None:
    with pytest.raises(UnsupportedError, match=said):
        linear(*key)


def test_a_name_is_registered_once() -> None:
    with pytest.raises(WmrtError, match=r"linear_nvfp4_a8\.reference is registered twice"):
        register("nvfp4", "int8-g32", "reference")(lambda x, weight: torch.empty(0))
