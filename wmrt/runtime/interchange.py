"""Checkpoints of ours <-> packed weights in files of other tools (`wmrt.quant.interchange`).

A linear layer keeps its module name there, every other tensor its own, and its bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from wmrt.core.errors import CheckpointError, QuantizationError, UnsupportedError, UsageError
from wmrt.model.checkpoint import Checkpoint, check_tensors
from wmrt.model.checkpoint_checks import some
from wmrt.model.config import ModelConfig
from wmrt.model.linear import Linear
from wmrt.model.network import Network
from wmrt.quant import RECIPES, QuantizedTensor, Recipe, get_recipe
from wmrt.quant.interchange import Interchanged
from wmrt.runtime.build import KEEP_BF16, build_network, linears, plan_recipes, to_checkpoint

RECORD = "wmrt"  # our entry in config.json, beside quantization_config


@dataclass(frozen=True)
class Exported:
    """What `write_compressed_tensors` takes, in its order."""

    weights: dict[str, QuantizedTensor]
    others: dict[str, Tensor]
    ignore: tuple[str, ...]
    recipe: Recipe


def export(checkpoint: Checkpoint) -> Exported:
    """The packed linear layers of a checkpoint by module name, and every other tensor as it is.

    Raises `UsageError` for a checkpoint that is not packed.
    """
    built = build_network(checkpoint, None, torch.device("cpu"))
    packed = {n: m for n, m in linears(built.network).items() if m.recipe and m.recipe.packs}
    if not packed:
        raise UsageError(
            f"{checkpoint.path or 'the checkpoint'} is not packed; pack it first (wmrt quantize)"
        )
    others = {
        name: tensor
        for name, tensor in checkpoint.tensors.items()
        if name.rpartition(".")[0] not in packed
    }
    alone = [
        name
        for name, module in built.network.named_modules()
        if isinstance(module, (Linear, nn.Linear)) and name not in packed
    ]
    weights = {name: module.quantized() for name, module in packed.items()}
    return Exported(weights, others, tuple(alone), built.recipe)


def recipe_of(file: Interchanged, name: str | None = None) -> Recipe:
    """The recipe that weights from a file run under: the one called `name`, else the one recorded
    there by `wmrt export`, else the first of ours with their format.

    Raises `UnsupportedError` for weights of several formats, `UsageError` for a recipe of another.
    """
    formats = sorted({q.format for q in file.weights.values()})
    if len(formats) != 1:
        raise UnsupportedError(
            f"the file mixes {', '.join(formats)}; a checkpoint holds one weight format"
        )
    if name is not None:
        chosen = get_recipe(name)
        if chosen.weight_format != formats[0]:
            raise UsageError(
                f"recipe {name} has {chosen.weight_format} weights, the file has {formats[0]}"
            )
        return chosen
    record = file.config.get(RECORD)
    if isinstance(record, dict) and "recipe" in record:
        recorded = Recipe.from_json(record["recipe"])
        if recorded.weight_format == formats[0]:
            return recorded
    ours = [recipe for recipe in RECIPES.values() if recipe.weight_format == formats[0]]
    return ours[0] if ours else Recipe(formats[0], formats[0], "int8-g32")


def import_weights(
    file: Interchanged, like: Checkpoint, recipe: Recipe, provenance: dict[str, Any]
) -> Checkpoint:
    """A checkpoint with the schema, configuration and actions of `like` and every tensor of `file`.

    Linear layers that the file leaves float stay bf16; the recipe's exclusions become those.

    Raises `CheckpointError` when the names, shapes or dtypes are not exactly those of `like`'s
    network, `UnsupportedError` for a layer packed in the file that no recipe packs.
    """
    network = Network.hollow(like.schema, ModelConfig.from_json(like.model), like.actions)
    modules = linears(network)
    unknown = sorted(file.weights.keys() - modules.keys())
    if unknown:
        raise CheckpointError(
            f"packed weights that the model has no linear layer for: {some(unknown)}; "
            f"its layers: {some(modules)}"
        )
    recipe = _excluding(recipe, network, {name for name in modules if name not in file.weights})
    _load_others(network, file)
    plan = plan_recipes(network, recipe)
    for name, module in modules.items():
        try:
            module.pack(plan[name], quantized=file.weights.get(name))
        except QuantizationError as error:
            raise CheckpointError(f"{name}: {error}") from None
    return to_checkpoint(network.eval(), recipe, provenance)


def _excluding(recipe: Recipe, network: Network, alone: set[str]) -> Recipe:
    """`recipe`, leaving exactly the layers `alone` in bf16."""
    always = _bf16(recipe.with_(exclude=()), network)
    for candidate in (recipe, recipe.with_(exclude=tuple(sorted(alone - always)))):
        if _bf16(candidate, network) == alone:
            return candidate
    raise UnsupportedError(
        f"packed in the file, but always bf16 here ({', '.join(KEEP_BF16)}): {some(always - alone)}"
    )


def _bf16(recipe: Recipe, network: Network) -> set[str]:
    return {name for name, own in plan_recipes(network, recipe).items() if not own.packs}


def _load_others(network: Network, file: Interchanged) -> None:
    packed = {f"{name}.weight" for name in file.weights}
    own = {name: t for name, t in network.state_dict().items() if name not in packed}
    parameters = dict(network.named_parameters())
    check_tensors(
        {
            name: (tuple(t.shape), torch.bfloat16 if name in parameters else t.dtype)
            for name, t in own.items()
        },
        file.others,
    )
    converted = {name: tensor.to(own[name].dtype) for name, tensor in file.others.items()}
    network.load_state_dict(converted, strict=False, assign=True)
