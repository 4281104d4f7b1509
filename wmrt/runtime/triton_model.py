"""A network's weights as the fused operators of `torch.ops.wmrt` read them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import Tensor

from wmrt.core.errors import UnsupportedError
from wmrt.model.linear import Linear
from wmrt.model.network import Network
from wmrt.model.trunk import Block
from wmrt.runtime.gpu_weights_decode import decode_weights
from wmrt.runtime.gpu_weights_heads import head_weights
from wmrt.runtime.gpu_weights_state import fusion_weights, selector_weights

#: What packed linears of the fused step are laid out in.
LAYOUT = "gpu_gemv"
#: Activations that it multiplies by.
ACTIVATION = "int8-g32"


class Packed(NamedTuple):
    """A 4-bit matrix, as the arguments of an operator: words int32[N, K/8] and ``lane_scales`` of
    layout ``gpu_gemv``, format and global scale."""

    words: Tensor
    lane_scales: Tensor
    format: str
    global_scale: float

    @property
    def tensors(self) -> tuple[Tensor, Tensor]:
        """What a launch asks for that comes before this matrix's."""
        return self.words, self.lane_scales

    @property
    def width(self) -> int:
        """Columns with their padding."""
        return self.words.shape[1] * 8


@dataclass(frozen=True)
class Layer:
    """One layer of the trunk."""

    attention_norm: Tensor
    qkv: Packed
    out: Packed
    mlp_norm: Tensor
    gate_up: Packed
    down: Packed


class TritonModel:
    """Weights of a network in eval mode whose trunk is packed with int8 activations.

    Matrices of the trunk stay where the network has them if they are in layout ``gpu_gemv``; the
    rest is small and copied where an operator wants another order or type.

    Raises:
        UnsupportedError: a trunk that is not packed, or is multiplied by other activations.
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        self.layers = [_layer(cast(Block, block), i) for i, block in enumerate(network.blocks)]
        self.fusion, self.fusion_sizes = fusion_weights(network)
        self.selector = selector_weights(network)
        self.heads = head_weights(network)
        self.decode = decode_weights(network)

    def own_bytes(self) -> int:
        """Bytes of the copies made here: what this object keeps and the network does not."""
        theirs = {
            t.untyped_storage().data_ptr()
            for t in (*self.network.parameters(), *self.network.buffers())
        }
        heads = self.heads
        dense = (heads.action_hidden, heads.action_out, *heads.body, heads.outputs)
        vectors = [t for d in dense for t in (d.weight, d.bias) if t is not None]
        kept = [*self.fusion, *self.selector, *self.decode[0], *vectors, heads.embedding]
        own = {s.data_ptr(): s.nbytes() for s in (t.untyped_storage() for t in kept)}
        return sum(size for at, size in own.items() if at not in theirs)


def _layer(block: Block, index: int) -> Layer:
    return Layer(
        block.attention_norm.weight.detach().float(),
        _packed(block.qkv, f"blocks.{index}.qkv"),
        _packed(block.out, f"blocks.{index}.out"),
        block.mlp_norm.weight.detach().float(),
        _packed(block.gate_up, f"blocks.{index}.gate_up"),
        _packed(block.down, f"blocks.{index}.down"),
    )


def _packed(layer: Linear, name: str) -> Packed:
    recipe = layer.recipe
    if recipe is None or layer.weight is not None or recipe.activation != ACTIVATION:
        held = "float" if recipe is None else f"{recipe.weight_format} with {recipe.activation}"
        raise UnsupportedError(
            f"{name} is {held}; the fused step multiplies 4-bit weights by {ACTIVATION} "
            "activations: take recipe nvfp4, mxfp4 or w4a8, or executor=eager"
        )
    tensors = layer.tensors(LAYOUT)
    scale = float(tensors.get("global_scale", torch.ones(())))
    return Packed(tensors["words"], tensors["lane_scales"], recipe.weight_format, scale)
