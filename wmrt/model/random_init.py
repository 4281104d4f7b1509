"""Checkpoints of random weights, for speed and memory only: they drive no better than chance.

Every tensor is what its module draws at construction, but for what writes to the residual stream:
those are scaled by 1 / sqrt(2 layers), so that the stream's RMS stays near that of a token whatever
the depth (GPT-2, Radford et al. 2019, section 2.3).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from wmrt.core.types import ActionSpec
from wmrt.model.checkpoint import Checkpoint
from wmrt.model.config import ModelConfig
from wmrt.model.network import Network
from wmrt.model.schema import StateSchema
from wmrt.model.trunk import Block

#: What a checkpoint's provenance says of random weights.
LABEL = "random, for speed only"
#: Buffers that a schema and its data fix, taken from the checkpoint whose schema is used.
FITTED = ("delta_scale", "delta_limit", "fill", "reward_scale")


def is_random(checkpoint: Checkpoint) -> bool:
    """Whether the checkpoint says that its weights are random."""
    return checkpoint.provenance.get("weights") == LABEL


def random_checkpoint(
    preset: str,
    config: ModelConfig,
    like: Checkpoint,
    seed: int,
    store: Callable[[str, Tensor], Mapping[str, Tensor]] = lambda name, tensor: {name: tensor},
) -> Checkpoint:
    """A checkpoint of random bf16 weights with the schema and actions of ``like``.

    Args:
        preset: name of ``config``, for the provenance.
        like: its schema, actions, environment, and the scales fitted to its data.
        seed: the same seed gives the same bits, on one version of torch.
        store: what is kept of each tensor, one at a time as they are drawn: all of it, or a packed
            form under names of its own.

    Memory: all tensors once as they are kept (in bfloat16), and one layer in float32.

    Raises:
        UsageError: a configuration that does not fit the schema or actions.
    """
    tensors: dict[str, Tensor] = {}
    parameters = 0
    for drawn, tensor in random_tensors(like.schema, config, like.actions, seed):
        parameters += tensor.numel() if tensor.dtype == torch.bfloat16 else 0
        tensors.update(store(drawn, tensor))
    for name in FITTED:
        fitted = like.tensors.get(f"dynamics.{name}")
        if fitted is not None:
            tensors[f"dynamics.{name}"] = fitted.clone()
    provenance = {
        "weights": LABEL,
        "preset": preset,
        "seed": seed,
        "schema_of": like.weights_sha256,
        "parameters": parameters,
    }
    if isinstance(like.provenance.get("env"), str):
        provenance["env"] = like.provenance["env"]
    return Checkpoint(like.schema, config.to_json(), like.actions, None, provenance, tensors)


def random_tensors(
    schema: StateSchema, config: ModelConfig, actions: ActionSpec, seed: int
) -> Iterator[tuple[str, Tensor]]:
    """Name and value of every tensor that a checkpoint stores, one layer at a time.

    The global generator is used and put back; each part has a seed of its own.
    """
    with _seeded(seed, "rest"):
        rest = Network(schema, config.with_(layers=1), actions)
    rest.blocks = nn.ModuleList()
    yield from _stored("", rest)
    del rest
    for layer in range(config.layers):
        with _seeded(seed, f"layer {layer}"):
            block = Block(config)
        with torch.no_grad():
            for module in (block.out, block.down):
                assert module.weight is not None  # a new linear is float
                module.weight.mul_(1.0 / math.sqrt(2 * config.layers))
        yield from _stored(f"blocks.{layer}.", block)


@contextmanager
def _seeded(seed: int, part: str) -> Iterator[None]:
    digest = hashlib.blake2b(f"{seed}/{part}".encode(), digest_size=8).digest()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int.from_bytes(digest, "little", signed=True))
        yield


def _stored(prefix: str, module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    parameters = dict(module.named_parameters())
    for name, tensor in module.state_dict().items():
        value = tensor.to(torch.bfloat16) if name in parameters else tensor.clone()
        yield prefix + name, value
