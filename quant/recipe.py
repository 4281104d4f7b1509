"""Recipes: which weights are quantized to what, and what the activations become."""

from __future__ import annotations

import fnmatch
from dataclasses import asdict, dataclass
from typing import Any

from wmrt.core.errors import QuantizationError, UsageError
from wmrt.quant.formats import block_format

ACTIVATIONS = ("int8-g32", "bf16")


@dataclass(frozen=True)
class Recipe:
    """One complete choice of weight format, activation format and what stays out.

    * `weight_format`: a name in `formats.FORMATS`, or ``bf16``
    * `activation`: ``int8-g32`` (dynamic, one float32 scale per 32 along K) or ``bf16``
    * `scale`: how a block scale is chosen; ``rtn`` is the format's own rule
    * `exclude`: globs over module names; a linear that matches stays bf16
    """

    name: str
    weight_format: str
    activation: str
    scale: str = "rtn"
    exclude: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.weight_format != "bf16":
            block_format(self.weight_format)
        if self.activation not in ACTIVATIONS:
            raise QuantizationError(
                f"unknown activation format {self.activation!r}; use {' or '.join(ACTIVATIONS)}"
            )
        if self.scale != "rtn":
            raise QuantizationError(f"unknown scale method {self.scale!r}; the one there is: rtn")

    @property
    def packs(self) -> bool:
        """Whether weights become 4-bit codes (false for bf16)."""
        return self.weight_format != "bf16"

    def excludes(self, module: str) -> bool:
        """Whether the linear called `module` stays bf16."""
        return any(fnmatch.fnmatchcase(module, pattern) for pattern in self.exclude)

    def to_json(self) -> dict[str, Any]:
        """Plain values, as a checkpoint's configuration stores them."""
        return {**asdict(self), "exclude": list(self.exclude)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Recipe:
        """Inverse of `to_json`; `QuantizationError` names unknown or missing keys."""
        try:
            return cls(**{**data, "exclude": tuple(data.get("exclude", ()))})
        except TypeError as error:
            raise QuantizationError(f"not a recipe: {error}") from None


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("bf16", "bf16", "bf16"),
        Recipe("nvfp4", "nvfp4", "int8-g32"),
        Recipe("mxfp4", "mxfp4", "int8-g32"),
        Recipe("w4a8", "int4-g128", "int8-g32"),
        Recipe("nvfp4-a16", "nvfp4", "bf16"),
        Recipe("mxfp4-a16", "mxfp4", "bf16"),
    )
}


def get_recipe(recipe: str | Recipe) -> Recipe:
    """A recipe by name, or the one given; `UsageError` lists the names."""
    if isinstance(recipe, Recipe):
        return recipe
    if recipe not in RECIPES:
        raise UsageError(f"unknown recipe {recipe!r}; recipes are {', '.join(RECIPES)}")
    return RECIPES[recipe]
