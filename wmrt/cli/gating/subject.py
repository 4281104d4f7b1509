"""What is gated: a stored checkpoint, its recipe, and the bf16 checkpoint it stands against."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from wmrt.core.errors import UsageError, WmrtError
from wmrt.model.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from wmrt.model.config import ModelConfig
from wmrt.model.random_init import is_random
from wmrt.quant import Recipe, get_recipe
from wmrt.runtime.build import build_network, plan_recipes, to_checkpoint
from wmrt.runtime.capacity import blueprint


@dataclass(frozen=True)
class Subject:
    """``stored`` is what runs, packed unless the recipe packs nothing. ``bf16`` is None where the
    original is not to be had, or is another one (``other``); ``bf16_reason`` then says why."""

    stored: Checkpoint
    recipe: Recipe
    bf16: Checkpoint | None
    bf16_reason: str = ""
    other: bool = False

    @property
    def random(self) -> bool:
        """Whether its weights are random, so that what it does means nothing."""
        return is_random(self.stored)

    @property
    def folder(self) -> Path:
        assert self.stored.path is not None  # loaded from a folder, see `prepare`
        return self.stored.path

    def plan(self) -> dict[str, Recipe]:
        """Recipe of each linear layer."""
        config = ModelConfig.from_json(self.stored.model)
        network = blueprint(self.stored.schema, config, self.stored.actions, self.recipe)
        return plan_recipes(network, self.recipe)

    def left_out(self) -> dict[str, str]:
        """Reason of each linear that the recipe packs in general and not here."""
        if not self.recipe.packs:
            return {}
        return {
            name: "the recipe excludes it" if self.recipe.excludes(name) else "every recipe does"
            for name, recipe in self.plan().items()
            if not recipe.packs
        }


def prepare(model: str, recipe: str | None, against: str | None, folder: Path) -> Subject:
    """Load ``model``; float weights are packed to nearest and stored in ``folder``, as
    ``wmrt quantize`` stores them.

    Raises:
        UsageError: no recipe for a float checkpoint, another recipe than a packed one stores,
            ``against`` for a float one.
        WmrtError: a checkpoint that cannot be loaded or packed.
    """
    source = load_checkpoint(model)
    if source.quantization is not None:
        built = build_network(source, recipe, torch.device("cpu"))
        return _packed(source, built.recipe, against)
    if against is not None:
        raise UsageError(f"{model} is not packed; it stands against itself, leave out --against")
    if recipe is None:
        raise UsageError(f"{model} is not packed; give the --recipe to judge, such as nvfp4")
    chosen = get_recipe(recipe)
    if not chosen.packs:
        return Subject(source, chosen, source)
    network = build_network(source, chosen, torch.device("cpu")).network
    target = folder / "packed"
    card = f"# {chosen.name}, rounded to nearest, to be judged\n"
    save_checkpoint(target, to_checkpoint(network, chosen, source.provenance), card=card)
    return Subject(load_checkpoint(target), chosen, source)


def _packed(source: Checkpoint, recipe: Recipe, against: str | None) -> Subject:
    """A checkpoint that is packed already: find the one it was packed from."""
    origin = source.provenance.get("packed_from")
    origin = origin if isinstance(origin, dict) else {}
    name = against or origin.get("model")
    if not isinstance(name, str):
        return Subject(source, recipe, None, "no bf16 checkpoint: give it as --against")
    try:
        bf16 = load_checkpoint(name)
    except WmrtError as error:
        if against is not None:
            raise
        return Subject(source, recipe, None, f"no bf16 checkpoint ({error}): give it as --against")
    if bf16.quantization is not None or bf16.weights_sha256 != origin.get("weights_sha256"):
        return Subject(source, recipe, None, f"it was not packed from {name}", other=True)
    return Subject(source, recipe, bf16)
