"""Recipes: typed, listed, and the same after JSON."""

from __future__ import annotations

import json

import pytest

from wmrt.core.errors import QuantizationError, UsageError
from wmrt.quant import RECIPES, Recipe, get_recipe
from wmrt.quant.steps import Clip, FourOverSix, Gptq, Hadamard


def test_the_recipes_there_are() -> None:
    table = {name: (r.weight_format, r.activation) for name, r in RECIPES.items()}
    assert table == {
        "bf16": ("bf16", "bf16"),
        "nvfp4": ("nvfp4", "int8-g32"),
        "mxfp4": ("mxfp4", "int8-g32"),
        "w4a8": ("int4-g128", "int8-g32"),
        "w4a8-g64": ("int4-g64", "int8-g32"),
        "w4a8-g32": ("int4-g32", "int8-g32"),
        "w4a8-zp": ("int4-g128-zp", "int8-g32"),
        "fp8": ("fp8-channel", "fp8-token"),
        "int8": ("int8-channel", "int8-token"),
        "nvfp4-a16": ("nvfp4", "bf16"),
        "mxfp4-a16": ("mxfp4", "bf16"),
    }
    assert all(recipe.name == name for name, recipe in RECIPES.items())
    assert [name for name, recipe in RECIPES.items() if not recipe.packs] == ["bf16"]


def test_get_recipe() -> None:
    own = Recipe("mine", "nvfp4", "bf16", exclude=("heads.*",))
    assert get_recipe(own) is own and get_recipe("w4a8") is RECIPES["w4a8"]
    with pytest.raises(UsageError, match="'bogus'; recipes are bf16, nvfp4, mxfp4, w4a8"):
        get_recipe("bogus")


def test_exclude_is_a_glob_over_module_names() -> None:
    recipe = Recipe("mine", "nvfp4", "int8-g32", exclude=("*.down", "heads.*"))
    assert recipe.excludes("blocks.3.down") and recipe.excludes("heads.action")
    assert not recipe.excludes("blocks.3.qkv") and not recipe.excludes("down")


def test_json_round_trip() -> None:
    own = Recipe("mine", "nvfp4", "bf16", (Hadamard(3), FourOverSix(), Gptq(0.05)), ("a.*", "b"))
    for recipe in (*RECIPES.values(), own):
        assert Recipe.from_json(json.loads(json.dumps(recipe.to_json()))) == recipe


def test_refusals() -> None:
    with pytest.raises(QuantizationError, match="int8-g32, bf16, fp8-token, int8-token"):
        Recipe("mine", "nvfp4", "int8")
    with pytest.raises(QuantizationError, match="unknown weight format 'fp8'"):
        Recipe("mine", "fp8", "bf16")
    with pytest.raises(QuantizationError, match="gptq choose 4-bit codes; fp8-channel rounds"):
        RECIPES["fp8"].with_(steps=(Hadamard(), Gptq()))
    assert RECIPES["int8"].with_(steps=(Hadamard(),)).method == "hadamard"
    with pytest.raises(QuantizationError, match=r"missing \['activation'.*unknown \['bits'\]"):
        Recipe.from_json({"name": "mine", "weight_format": "nvfp4", "bits": 4})


def test_what_found_the_codes_does_not_decide_who_may_run_them() -> None:
    nvfp4 = RECIPES["nvfp4"]
    calibrated = nvfp4.with_(steps=(FourOverSix(), Gptq()), exclude=("*.down",))
    assert nvfp4.executes(calibrated) and calibrated.executes(nvfp4)
    assert calibrated.method == "four-over-six,gptq" and nvfp4.method == "rtn"
    assert calibrated.needs_data and not nvfp4.needs_data
    assert nvfp4.with_(steps=(Clip(),)).needs_data
    assert not nvfp4.with_(steps=(Hadamard(), Clip(weighted=False))).needs_data
    assert not nvfp4.executes(RECIPES["nvfp4-a16"]) and not nvfp4.executes(RECIPES["mxfp4"])
