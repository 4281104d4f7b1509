"""The ledger of a whole model: every tensor of a network, stored, held in memory and read a step.

Estimates come from the configuration and the recipe alone: a network on the meta device holds no
numbers, and its tensors have the shapes and dtypes of the real ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from wmrt.core.errors import UnsupportedError, WmrtError
from wmrt.core.types import ActionSpec
from wmrt.model.checkpoint import Checkpoint, check_tensors
from wmrt.model.checkpoint_config import TensorSpecs
from wmrt.model.config import ModelConfig
from wmrt.model.fusion import ActionEmbedding, BucketEmbedding, HashedMemory
from wmrt.model.linear import Linear
from wmrt.model.network import Network, Ring
from wmrt.model.schema import StateSchema
from wmrt.model.weight_file import expected_overhead
from wmrt.quant import Recipe, get_recipe
from wmrt.quant.layouts import from_layout
from wmrt.quant.layouts import stored as stored_tensors
from wmrt.quant.ledger import (
    NOTHING,
    Entry,
    Figure,
    How,
    Ledger,
    excluded_entry,
    stored_bytes,
    weight_entry,
)
from wmrt.runtime.build import linears, plan_recipes, read_as_stored
from wmrt.runtime.executor import check_executor, native_refusal

#: Calls of the action embedding in one step: the action before, and the one whose consequences are
#: predicted.
_ACTIONS_A_STEP = 2


def blueprint(
    schema: StateSchema,
    config: ModelConfig,
    actions: ActionSpec,
    recipe: Recipe,
    layout: str = "canonical",
    implementation: str = "reference",
) -> Network:
    """The network as a checkpoint packed by ``recipe`` in ``layout`` stores it, without numbers, on
    the meta device, ready for one implementation of its linear layers."""
    network = Network.hollow(schema, config, actions).to("meta")
    plan = plan_recipes(network, recipe)
    for name, module in linears(network).items():
        module.expect(plan[name], implementation, layout)
    kept = read_as_stored(network) if implementation == "native" else set()
    for name, parameter in network.named_parameters():
        if name in kept:
            parameter.data = parameter.data.to(torch.bfloat16)
    return network


def estimate(
    checkpoint: Checkpoint,
    recipe: str | Recipe,
    layout: str = "canonical",
    executor: str = "auto",
) -> Ledger:
    """What ``checkpoint``'s network takes under ``recipe``, its packed weights stored in
    ``layout``, stepped on this machine's CPU by ``executor``; reads none of its tensors.

    ``bf16`` is what a float checkpoint stores.
    """
    config, chosen = ModelConfig.from_json(checkpoint.model), get_recipe(recipe)
    own = _implementation(executor, chosen, config)
    return ledger(blueprint(checkpoint.schema, config, checkpoint.actions, chosen, layout, own))


def _implementation(executor: str, recipe: Recipe, config: ModelConfig) -> str:
    """Of the linear layers under an executor; ``auto`` as `WorldModel.from_checkpoint` decides."""
    check_executor(executor, None)
    if executor == "eager":
        return "reference"
    if executor == "triton":
        return executor  # counting its bytes needs no GPU
    refused = native_refusal(recipe, config.selector, torch.device("cpu"))
    if refused is not None and executor == "native":
        raise UnsupportedError(f"executor=native cannot be had: {refused}")
    return "native" if refused is None else "reference"


def measure(checkpoint: Checkpoint, executor: str = "auto") -> Ledger:
    """What the checkpoint's tensors take. One that does not fit its own configuration is an error.

    Bytes in memory and bytes read stay estimates: nothing runs here.
    """
    config, recipe = ModelConfig.from_json(checkpoint.model), stored_recipe(checkpoint)
    layout, own = stored_layout(checkpoint), _implementation(executor, recipe, config)
    network = blueprint(checkpoint.schema, config, checkpoint.actions, recipe, layout, own)
    check_tensors(stored_specs(network), checkpoint.tensors)
    for name, module in linears(network).items():
        if module.weight is None:
            _check_packed(name, module, checkpoint.tensors)
    return ledger(network, checkpoint.tensors)


def _check_packed(name: str, module: Linear, tensors: Mapping[str, Tensor]) -> None:
    """Refuse codes and scales that loading would refuse. One weight at a time: building the whole
    network for it would take 5.2 GB for the 1.3B preset."""
    assert module.recipe is not None and module.stored_layout is not None  # packed
    shape = (module.out_features, module.in_features)
    own = {part: tensors[f"{name}.{part}"] for part, _ in module.named_buffers("", False)}
    try:
        from_layout(module.recipe.weight_format, shape, module.stored_layout, own)
    except WmrtError as error:
        raise type(error)(f"{name}: {error}") from None


def stored_specs(network: Network) -> TensorSpecs:
    """Shape and dtype of every tensor that a checkpoint of ``network`` stores: parameters in
    bfloat16, everything else as it is."""
    parameters = dict(network.named_parameters())
    return {
        name: (tuple(t.shape), torch.bfloat16 if name in parameters else t.dtype)
        for name, t in network.state_dict().items()
    }


def stored_recipe(checkpoint: Checkpoint) -> Recipe:
    """The recipe a checkpoint stores its weights in; bf16 for a float one."""
    if checkpoint.quantization is None:
        return get_recipe("bf16")
    return Recipe.from_json(checkpoint.quantization.get("recipe"))


def stored_layout(checkpoint: Checkpoint) -> str:
    """The layout a checkpoint stores its packed weights in; canonical where it has none."""
    return str((checkpoint.quantization or {}).get("layout", "canonical"))


def ledger(network: Network, stored: Mapping[str, Tensor] | None = None) -> Ledger:
    """Ledger of ``network``; with the tensors ``stored`` in its checkpoint, those are measured."""
    specs = stored_specs(network)
    entries: list[Entry] = []
    for prefix, module in network.named_modules():
        entries += _packed(prefix, module, stored) or _plain(prefix, module, specs, stored)
    ring = network.new_ring()
    return Ledger(
        tuple(sorted(entries, key=lambda entry: entry.name)),
        ring=Figure(ring.nbytes, "estimated"),
        overhead=Figure(expected_overhead(specs), "estimated"),
        originals=Figure(_originals(network, specs), "estimated"),
        ring_read=Figure(_ring_read(network, ring), "estimated"),
    )


def _packed(prefix: str, module: nn.Module, stored: Mapping[str, Tensor] | None) -> list[Entry]:
    if not isinstance(module, Linear) or module.weight is not None:
        return []
    assert module.recipe is not None  # a float or bf16 linear has a weight
    size, how = module.packed_bytes(), _how(stored)
    if stored is not None:
        size = sum(_bytes(t) for name, t in stored.items() if name.startswith(f"{prefix}."))
    form, shape = module.recipe.weight_format, (module.out_features, module.in_features)
    entry = weight_entry(prefix, form, shape, size, how)
    held = Figure(stored_bytes(stored_tensors(module.read_layout, form, shape)), "estimated")
    return [replace(entry, held=held, read=held)]


def _plain(
    prefix: str, module: nn.Module, specs: TensorSpecs, stored: Mapping[str, Tensor] | None
) -> list[Entry]:
    """One entry per tensor that is not packed; what is made at load takes nothing in the file."""
    own = {**dict(module.named_parameters(recurse=False)), **dict(module.named_buffers("", False))}
    entries = []
    for name, tensor in own.items():
        full = f"{prefix}.{name}" if prefix else name
        held = Figure(_bytes(tensor), "estimated")
        read = Figure(min(_read(full, module, tensor), _bytes(tensor)), "estimated")
        if full in specs:
            shape, dtype = specs[full]
            kept = torch.empty(shape, dtype=dtype, device="meta")
            kept = kept if stored is None else stored[full]
            entries.append(excluded_entry(full, kept, held=held, read=read))
        else:
            kind = str(tensor.dtype).removeprefix("torch.")
            made = (NOTHING, NOTHING, NOTHING, NOTHING)
            entries.append(Entry(full, kind, *made, held=held, read=read))
    return entries


def _originals(network: Network, specs: TensorSpecs) -> int:
    """Bytes of the stored forms of tensors that are widened at load. Weights that are read where
    they are stored keep the file mapped, and with it the pages of everything read from it."""
    packed = [m for m in linears(network).values() if m.weight is None]
    if any(m.stored_layout != m.read_layout for m in packed):
        return 0
    own = network.state_dict()
    widened = {name: dtype for name, (_, dtype) in specs.items() if own[name].dtype != dtype}
    return sum(own[name].numel() * dtype.itemsize for name, dtype in widened.items())


def _how(stored: object) -> How:
    return "estimated" if stored is None else "measured"


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _read(name: str, module: nn.Module, tensor: Tensor) -> int:
    """Bytes of a tensor that one step reads: the rows looked up of a table, all of anything else.

    Decoding a transported chunk is its receiver's work, so a step reads nothing of ActionQuant.
    """
    if name.startswith("action_quant."):
        return 0
    if isinstance(module, BucketEmbedding) and tensor is module.weight:
        rows = 2 * len(module.is_numeric)  # two neighbours; the same one twice in a category
    elif isinstance(module, HashedMemory) and tensor is module.table:
        rows = module.multipliers.shape[1]
    elif isinstance(module, ActionEmbedding):
        rows = 2 * len(tensor) * _ACTIONS_A_STEP
    else:
        return _bytes(tensor)
    return rows * tensor.shape[-1] * tensor.element_size()


def _ring_read(network: Network, ring: Ring) -> int:
    """The slots a step attends to, every slot key, and the recurrent state."""
    config = network.config
    slots = config.window if config.selector == "full" else config.past + 1
    attended = (_bytes(ring.keys) + _bytes(ring.values)) // config.window * slots
    return attended + sum(_bytes(t) for t in (ring.select_keys, ring.hidden, ring.cell, ring.step))
