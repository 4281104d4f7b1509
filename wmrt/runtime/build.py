"""Checkpoint <-> network: strict in both directions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
from wmrt.quant.formats import block_format
from wmrt.quant.layouts import get_layout

#: Linear layers that every recipe leaves in bf16: the action head decides the action to a fraction
#: of a bin.
KEEP_BF16 = ("action_head.*",)

_CONTRACT = {"recipe", "layout"}


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


def pack_network(network: Network, recipe: Recipe, implementation: str = "reference") -> Network:
    """Pack the float linear layers of ``network`` in place."""
    _pack(linears(network), plan_recipes(network, recipe), implementation)
    return network.eval()


def _pack(modules: Mapping[str, Linear], plan: Mapping[str, Recipe], implementation: str) -> None:
    for name, module in modules.items():
        try:
            module.pack(plan[name], implementation)
        except WmrtError as error:
            raise type(error)(f"{name}: {error}") from None


def to_checkpoint(
    network: Network,
    recipe: Recipe | None,
    provenance: dict[str, Any],
    layout: str | None = None,
) -> Checkpoint:
    """The network's tensors as stored: parameters in bf16, fitted scales as they are, packed
    weights in ``layout`` (None: the one they were loaded in, canonical if packed since).

    `QuantizationError` if the layout does not take the recipe's format.
    """
    packs = recipe is not None and recipe.packs
    if layout is not None and not packs:
        raise UsageError(f"layout {layout} is one of packed weights; the recipe packs nothing")
    chosen = layout or _stored_layout(network)
    contract = None
    if recipe is not None and packs:
        require_layout(recipe, chosen)
        contract = {"recipe": recipe.to_json(), "layout": chosen}
    tensors: dict[str, Tensor] = {}
    parameters = dict(network.named_parameters())
    for name, tensor in _in_layout(network, chosen):
        kept = tensor.detach().cpu()
        if name in parameters and kept.dtype == torch.float32:
            kept = kept.to(torch.bfloat16)
        tensors[name] = kept.contiguous()
    return Checkpoint(
        network.schema, network.config.to_json(), network.actions, contract, provenance, tensors
    )


def require_layout(recipe: Recipe, layout: str) -> None:
    """Raise `QuantizationError` unless weights as ``recipe`` packs them have this layout."""
    get_layout(layout).require(block_format(recipe.weight_format), (1, 1))


def _stored_layout(network: Network) -> str:
    packed = (m.stored_layout for m in linears(network).values() if m.weight is None)
    return next(packed, None) or "canonical"


def _in_layout(network: Network, layout: str) -> Iterator[tuple[str, Tensor]]:
    """Name and tensor of everything to store; those of a packed linear together, at the end."""
    packed = {name: m for name, m in linears(network).items() if m.weight is None}
    for name, tensor in network.state_dict().items():
        if name.rpartition(".")[0] not in packed:
            yield name, tensor
    for name, module in packed.items():
        for key, tensor in module.tensors(layout).items():
            yield f"{name}.{key}", tensor


@dataclass(frozen=True)
class Built:
    """A network ready to run and the recipe it runs."""

    network: Network
    recipe: Recipe


def running_recipe(checkpoint: Checkpoint, recipe: str | Recipe | None) -> Recipe:
    """What ``checkpoint`` runs under ``recipe`` (None: as stored).

    A packed checkpoint runs its own recipe and no other: there is no way back to the float weights.
    """
    contract = _contract(checkpoint)
    stored = None if contract is None else contract.recipe
    wanted = stored or get_recipe("bf16") if recipe is None else get_recipe(recipe)
    if stored is not None and not wanted.executes(stored):
        raise UsageError(
            f"the checkpoint is packed as {stored.name}; it cannot run {wanted.name}: "
            f"load the bf16 checkpoint for that, or ask for {stored.name}"
        )
    return stored or wanted


def build_network(
    checkpoint: Checkpoint,
    recipe: str | Recipe | None,
    device: torch.device,
    implementation: str = "reference",
) -> Built:
    """Network of ``checkpoint`` under ``recipe``, see `running_recipe`.

    With the implementation ``native`` only `Linear` layers and ActionQuant can be called: all other
    parameters stay bfloat16 as stored, for the native step to read.
    """
    chosen, contract = running_recipe(checkpoint, recipe), _contract(checkpoint)
    network, layout = _hollow(checkpoint), contract.layout if contract else "canonical"
    modules, plan = linears(network), plan_recipes(network, chosen)
    to_pack = {n: m for n, m in modules.items() if contract is None and plan[n].packs}
    for name in modules.keys() - to_pack.keys():
        modules[name].expect(plan[name], implementation, layout)
    passing = _converted(network) | {f"{name}.weight" for name in to_pack}
    kept = passing | (read_as_stored(network) if implementation == "native" else set())
    _fill(network, checkpoint, kept, passing)
    _pack(to_pack, plan, implementation)
    return Built(network.to(device).eval(), chosen)


def float_network(checkpoint: Checkpoint) -> Network:
    """The trainable float32 network of a checkpoint that is not packed."""
    contract = _contract(checkpoint)
    if contract is not None:
        raise UsageError(
            f"the checkpoint is packed as {contract.recipe.name}; training needs a float one"
        )
    network = _hollow(checkpoint)
    _fill(network, checkpoint, set(), {f"{name}.weight" for name in linears(network)})
    return network


@dataclass(frozen=True)
class _Contract:
    """How a checkpoint's packed weights are stored: ``quantization`` of its configuration."""

    recipe: Recipe
    layout: str


def _contract(checkpoint: Checkpoint) -> _Contract | None:
    data = checkpoint.quantization
    if data is None:
        return None
    where = f"{checkpoint.path or 'checkpoint'}: quantization"
    missing, unknown = sorted(_CONTRACT - data.keys()), sorted(data.keys() - _CONTRACT)
    if missing or unknown:
        raise CheckpointError(
            f"{where}: missing {missing}, unknown {unknown}; it records recipe and layout"
        )
    try:
        contract = _Contract(Recipe.from_json(data["recipe"]), str(data["layout"]))
        if contract.recipe.packs:
            require_layout(contract.recipe, contract.layout)
    except WmrtError as error:
        raise CheckpointError(f"{where}: {error}") from None
    if not contract.recipe.packs:
        raise CheckpointError(
            f"{where}: {contract.recipe.name} packs nothing; a float checkpoint records no "
            "quantization"
        )
    return contract


def _expected(network: Network) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    parameters = dict(network.named_parameters())
    return {
        name: (tuple(t.shape), torch.bfloat16 if name in parameters else t.dtype)
        for name, t in network.state_dict().items()
    }


def _hollow(checkpoint: Checkpoint) -> Network:
    """The checkpoint's network without values."""
    try:
        config = ModelConfig.from_json(checkpoint.model)
    except UsageError as error:
        raise CheckpointError(f"{checkpoint.path or 'checkpoint'}: {error}") from None
    return Network.hollow(checkpoint.schema, config, checkpoint.actions)


def _fill(network: Network, checkpoint: Checkpoint, kept: set[str], passing: set[str]) -> None:
    """Give a hollow network the checkpoint's tensors, checked by name, shape, dtype and value.

    Those that `kept` names stay as stored; others become what the network has them in: float32, but
    for what `Linear.expect` says. What is not converted stays a view of the mapped file.

    `passing` are tensors that are read now and not kept. One view keeps all of the file's mapping,
    so where there are any the others are copied out of it.
    """
    check_tensors(_expected(network), checkpoint.tensors)
    own, left = network.state_dict(), bool(passing) and checkpoint.path is not None

    def held(name: str, stored: Tensor) -> Tensor:
        if name not in kept and stored.dtype != own[name].dtype:
            return stored.to(own[name].dtype)
        return stored.clone() if left and name not in passing else stored

    tensors = {name: held(name, tensor) for name, tensor in checkpoint.tensors.items()}
    network.load_state_dict(tensors, strict=True, assign=True)


def _converted(network: Network) -> set[str]:
    """Stored tensors of packed linears whose operator reads another layout."""
    return {
        f"{name}.{part}"
        for name, module in linears(network).items()
        if module.weight is None and module.stored_layout != module.read_layout
        for part, _ in module.named_buffers()
    }


def read_as_stored(network: Network) -> set[str]:
    """Parameters that the native step reads in bfloat16: all but the trunk linears', and those of
    ActionQuant, which belong to whoever receives a chunk."""
    apart = {f"{name}.weight" for name in linears(network)}
    return {
        name
        for name, _ in network.named_parameters()
        if name not in apart and not name.startswith("action_quant.")
    }
