"""Recipes: which weights are quantized to what, and what the activations become."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass, fields, replace
from typing import Any

from wmrt.core.errors import QuantizationError, UsageError
from wmrt.quant.formats import block_format
from wmrt.quant.steps import Step, check_steps, step_from_json

ACTIVATIONS = ("int8-g32", "bf16", "fp8-token", "int8-token")


@dataclass(frozen=True)
class Recipe:
    """One complete choice of weight format, activation format and what stays out.

    * `weight_format`: a name in `formats.FORMATS`, or ``bf16``
    * `activation`: ``int8-g32`` (dynamic, one float32 scale per 32 along K), ``int8-token`` or
      ``fp8-token`` (dynamic, one per token), or ``bf16``
    * `steps`: how the codes are found (`wmrt.quant.steps`); none is round to nearest. They shape
      the numbers stored, not how they are read: the kernels are the same
    * `exclude`: globs over module names; a linear that matches stays bf16
    """

    name: str
    weight_format: str
    activation: str
    steps: tuple[Step, ...] = ()
    exclude: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.weight_format != "bf16":
            block_format(self.weight_format)
        if self.activation not in ACTIVATIONS:
            raise QuantizationError(
                f"unknown activation format {self.activation!r}; use {', '.join(ACTIVATIONS)}"
            )
        check_steps(self.steps, self.weight_format)

    @property
    def packs(self) -> bool:
        """Whether weights become codes with scales (false for bf16)."""
        return self.weight_format != "bf16"

    @property
    def needs_data(self) -> bool:
        """Whether a step reads recorded episodes."""
        return any(step.needs_data for step in self.steps)

    @property
    def method(self) -> str:
        """The steps as `parse_steps` reads them."""
        return ",".join(step.kind for step in self.steps) or "rtn"

    def executes(self, other: Recipe) -> bool:
        """Whether stored weights of `other` run under this name: same formats, whatever found the
        codes and whatever stayed bf16."""
        mine, theirs = (
            (self.weight_format, self.activation),
            (other.weight_format, other.activation),
        )
        return mine == theirs

    def with_(self, **changes: Any) -> Recipe:
        """A copy with some values changed."""
        return replace(self, **changes)

    def excludes(self, module: str) -> bool:
        """Whether the linear called `module` stays bf16."""
        return any(fnmatch.fnmatchcase(module, pattern) for pattern in self.exclude)

    def to_json(self) -> dict[str, Any]:
        """Plain values, as a checkpoint's configuration stores them."""
        return {
            "name": self.name,
            "weight_format": self.weight_format,
            "activation": self.activation,
            "steps": [step.to_json() for step in self.steps],
            "exclude": list(self.exclude),
        }

    @classmethod
    def from_json(cls, data: object) -> Recipe:
        """Inverse of `to_json`; `QuantizationError` names unknown or missing keys."""
        if not isinstance(data, dict):
            raise QuantizationError(f"not a recipe: {data!r:.200}")
        names = [field.name for field in fields(cls)]
        missing, unknown = set(names) - data.keys(), data.keys() - set(names)
        if missing or unknown:
            raise QuantizationError(
                f"not a recipe: missing {sorted(missing)}, unknown {sorted(unknown)}; "
                f"a recipe has {', '.join(names)}"
            )
        steps = tuple(step_from_json(step) for step in data["steps"])
        return cls(**{**data, "steps": steps, "exclude": tuple(data["exclude"])})


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("bf16", "bf16", "bf16"),
        Recipe("nvfp4", "nvfp4", "int8-g32"),
        Recipe("mxfp4", "mxfp4", "int8-g32"),
        Recipe("w4a8", "int4-g128", "int8-g32"),
        Recipe("w4a8-g64", "int4-g64", "int8-g32"),
        Recipe("w4a8-g32", "int4-g32", "int8-g32"),
        Recipe("w4a8-zp", "int4-g128-zp", "int8-g32"),
        Recipe("fp8", "fp8-channel", "fp8-token"),
        Recipe("int8", "int8-channel", "int8-token"),
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
