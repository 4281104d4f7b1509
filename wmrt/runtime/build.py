"""Checkpoint <-> network: strict in both directions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from wmrt.core.errors import CheckpointError, UsageError, WmrtError
from wmrt.model.checkpoint import Checkpoint, check_tensors
from wmrt.model.config import ModelConfig
from wmrt.model.linear import Linear
from wmrt.model.network import Network
from wmrt.quant import Recipe, get_recipe

#: Linear layers that every recipe leaves in bf16: the action head decides the action to a fraction
#: of a bin.
KEEP_BF16 = ("action_head.*",)


def linears(network: Network) -> dict[str, Linear]:
    """Every linear layer that a recipe applies to, by module name."""
    return {name: m for name, m in network.named_modules() if isinstance(m, Linear)}


def plan_recipes(network: Network, recipe: Recipe) -> dict[str, Recipe]:
    """Recipe of each linear layer: ``recipe``, or bf16 where it is excluded."""
    bf16 = get_recipe("bf16")
    keep = Recipe("keep", "bf16", "bf16", exclude=KEEP_BF16)
    return {
        name: bf16 if keep.excludes(name) or recipe.excludes(name) else recipe
        for name in linears(network)
    }


def pack_network(network: Network, recipe: Recipe) -> Network:
    """Pack the float linear layers of ``network`` in place."""
    plan = plan_recipes(network, recipe)
    for name, module in linears(network).items():
        try:
            module.pack(plan[name])
        except WmrtError as error:
            raise type(error)(f"{name}: {error}") from None
    return network.eval()


def to_checkpoint(
    network: Network, recipe: Recipe | None, provenance: dict[str, Any]
) -> Checkpoint:
    """The network's tensors as stored: parameters in bf16, packed codes and fitted scales as they
    are."""
    tensors: dict[str, Tensor] = {}
    parameters = dict(network.named_parameters())
    for name, tensor in network.state_dict().items():
        stored = tensor.detach().cpu()
        if name in parameters and stored.dtype == torch.float32:
            stored = stored.to(torch.bfloat16)
        tensors[name] = stored.contiguous()
    quantization = None if recipe is None or not recipe.packs else {"recipe": recipe.to_json()}
    return Checkpoint(
        network.schema, network.config.to_json(), network.actions, quantization, provenance, tensors
    )


@dataclass(frozen=True)
class Built:
    """A network ready to run and the recipe it runs."""

    network: Network
    recipe: Recipe


def build_network(
    checkpoint: Checkpoint, recipe: str | Recipe | None, device: torch.device
) -> Built:
    """Network of ``checkpoint`` under ``recipe`` (None: as stored).

    A packed checkpoint runs its own recipe and no other: there is no way back to the float weights.
    """
    stored = _stored_recipe(checkpoint)
    wanted = stored or get_recipe("bf16") if recipe is None else get_recipe(recipe)
    if stored is not None and not wanted.executes(stored):
        raise UsageError(
            f"the checkpoint is packed as {stored.name}; it cannot run {wanted.name}: "
            f"load the bf16 checkpoint for that, or ask for {stored.name}"
        )
    network = _load(checkpoint, stored)
    if stored is None:
        pack_network(network, wanted)
    return Built(network.to(device).eval(), stored or wanted)


def float_network(checkpoint: Checkpoint) -> Network:
    """The trainable float32 network of a checkpoint that is not packed."""
    stored = _stored_recipe(checkpoint)
    if stored is not None:
        raise UsageError(f"the checkpoint is packed as {stored.name}; training needs a float one")
    return _load(checkpoint, None)


def _stored_recipe(checkpoint: Checkpoint) -> Recipe | None:
    if checkpoint.quantization is None:
        return None
    where = f"{checkpoint.path or 'checkpoint'}: quantization"
    try:
        recipe = Recipe.from_json(checkpoint.quantization["recipe"])
    except KeyError:
        raise CheckpointError(f"{where}: it holds no recipe") from None
    except WmrtError as error:
        raise CheckpointError(f"{where}: {error}") from None
    if not recipe.packs:
        raise CheckpointError(
            f"{where}: {recipe.name} packs nothing; a float checkpoint records no quantization"
        )
    return recipe


def _expected(network: Network) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    parameters = dict(network.named_parameters())
    return {
        name: (tuple(t.shape), torch.bfloat16 if name in parameters else t.dtype)
        for name, t in network.state_dict().items()
    }


def _load(checkpoint: Checkpoint, stored: Recipe | None) -> Network:
    """Network with the checkpoint's tensors. Small weights are widened to float32; packed codes
    stay views of the mapped file."""
    try:
        config = ModelConfig.from_json(checkpoint.model)
    except UsageError as error:
        raise CheckpointError(f"{checkpoint.path or 'checkpoint'}: {error}") from None
    network = Network(checkpoint.schema, config, checkpoint.actions)
    if stored is not None:
        plan = plan_recipes(network, stored)
        for name, module in linears(network).items():
            module.expect(plan[name])
    check_tensors(_expected(network), checkpoint.tensors)
    own = network.state_dict()
    converted = {
        name: t if own[name].is_meta or own[name].dtype == t.dtype else t.to(own[name].dtype)
        for name, t in checkpoint.tensors.items()
    }
    network.load_state_dict(converted, strict=True, assign=True)
    return network
