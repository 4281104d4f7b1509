"""A large network that computes what a small one does: function-preserving expansion.

Nothing is learned: a grown checkpoint has the small one's policy and no added skill. It exists so
that a size nobody has trained really drives (Net2Net, Chen et al. 2016, on a transformer).

**Copies.** With c = D/d, the residual stream holds every source coordinate c times, copy after
copy. RMSNorm is blind to repetition: mean(x^2) and x / rms(x) are the source's. What writes to the
stream repeats its rows; what reads it takes a share of each copy, and the shares sum to 1. Hidden
units (FFN, MLPs, heads, the LSTM's, selector and query dimensions) repeat in the same way. Shares
are powers of two, so that every product is a bf16 number: 9 copies are read with seven shares of
1/8 and two of 1/16. A block of 16 or 32 along K lies within one copy, so its elements are a block
of the source's times a power of two, and 4-bit codes are the source's codes.

**Heads** r times as wide. Frequency i of the source is exactly frequency r i of the target, so its
dimensions go there. Logits are divided by sqrt(r hd), hence queries have to be sqrt(r) larger. For
r = 2 no bf16 matrix is; but a row reads c copies, and the sum of its c/2 different weights has the
precision that one lacks (`grow_blocks._split`): (1 + 1/2 - 0.0858 + rounding) W. Of the other
dimensions of queries and keys, both weigh the pairs of copies against each other (+w, -w, ...):
ordinary weights that see 0. Values have no phase and repeat. Queries, keys and values are packed as
one matrix, so their largest parts are brought to one factor (`grow_blocks._gain`). A score of the
selector is divided by sqrt(n) for n copies of its dimensions; n is a square, and the query takes
the factor.

**Action knots** between two of the source's need a mean that bf16 cannot hold. In the middle, half
of the copies hold the lower knot and half the upper one; readers weigh copies equally.

**Hashed memory.** mixed % (m R) % R = mixed % R: the table is m times the source's. The number of
groups is part of the hash, so the source's is kept, as is everything in `grow_plan.KEPT`.

**Depth.** The source's layers are spread evenly. A new layer reads like any random one, and writes
u to one copy of a pair and -u to the other (`grow_blocks.new_layer`). Every reader gives both
copies of a pair the same share, so it sees u - u = 0. RMSNorm sees u^2: all new layers together
write `HIDDEN_WRITES` of a token, which changes the norm by less than 2^-19, near float32's own
rounding. The weights are small as a whole matrix, so its blocks keep their precision in 4 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from wmrt.core.errors import CheckpointError, UsageError
from wmrt.model.checkpoint import Checkpoint
from wmrt.model.checkpoint_checks import some
from wmrt.model.config import ModelConfig
from wmrt.model.grown import NOTE
from wmrt.runtime.build import float_network
from wmrt.train.grow_axes import expand
from wmrt.train.grow_blocks import generator, new_layer, source_layer, write_size
from wmrt.train.grow_plan import Plan, plan

#: Called with (done, total, name of the part just done).
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Grown:
    """A grown checkpoint, in memory, and how it was made."""

    checkpoint: Checkpoint
    plan: Plan


def grow(
    source: Checkpoint, preset: str, config: ModelConfig, seed: int, progress: Progress
) -> Grown:
    """Grow ``source`` into ``config``, on its own schema.

    Args:
        source: a float checkpoint.
        preset: name of ``config``, for the provenance.
        seed: of the weights that are new; the same seed gives the same bits on one version of
            torch.

    Memory: all tensors once in bfloat16, and one layer in float32.

    Raises:
        UsageError: a packed source, or a size it cannot grow into; the message gives the rule.
        CheckpointError: a tensor is missing or misshapen, or cannot be divided among copies.
    """
    made = prepare(source, config)
    tensors = _tensors(source, made, seed, progress)
    origin = {
        "weights_sha256": source.weights_sha256,
        "preset": preset,
        "seed": seed,
        "layers": [made.layer_of(layer) for layer in range(made.source.layers)],
        "kept": made.kept(config),
    }
    provenance: dict[str, Any] = {
        **source.provenance,
        "parameters": sum(t.numel() for t in tensors.values() if t.dtype == torch.bfloat16),
        "grown": NOTE,
        "grown_from": origin,
    }
    target = made.target.to_json()
    grown = Checkpoint(source.schema, target, source.actions, None, provenance, tensors)
    return Grown(grown, made)


def prepare(source: Checkpoint, config: ModelConfig) -> Plan:
    """How ``source`` grows into ``config``; raises what `grow` does, before the work."""
    if source.quantization is not None:
        raise UsageError(
            "the source is packed; growing divides float weights: give the checkpoint it was "
            "packed from"
        )
    made = plan(ModelConfig.from_json(source.model), config, len(source.actions))
    with torch.random.fork_rng(devices=[]):
        float_network(source)
    bad = [name for name, t in source.tensors.items() if not bool(torch.isfinite(t).all())]
    if bad:
        raise CheckpointError(f"{some(bad)}: NaN or infinity; repair the checkpoint")
    return made


def _tensors(source: Checkpoint, made: Plan, seed: int, progress: Progress) -> dict[str, Tensor]:
    stored, total = source.tensors, made.target.layers + 1
    axes = made.rest()
    tensors: dict[str, Tensor] = {}
    for name, tensor in stored.items():
        if name == "action_embedding.weight":
            tensors[name] = made.knots(tensor)
        elif name in axes:
            tensors[name] = expand(name, tensor, axes[name])
        elif not name.startswith("blocks."):
            tensors[name] = tensor.clone()
    progress(1, total, "outside the layers")
    size = write_size(made, stored)
    origins = {made.layer_of(layer): layer for layer in range(made.source.layers)}
    for layer in range(made.target.layers):
        draw = generator(seed, f"layer {layer}")
        if layer in origins:
            prefix = f"blocks.{origins[layer]}."
            parts = source_layer(made, prefix, _under(stored, prefix), draw)
        else:
            parts = new_layer(made, size, draw)
        tensors.update({f"blocks.{layer}.{name}": tensor for name, tensor in parts.items()})
        progress(layer + 2, total, f"layer {layer}")
    return tensors


def _under(stored: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): t for k, t in stored.items() if k.startswith(prefix)}
