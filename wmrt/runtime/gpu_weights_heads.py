"""A network's heads as `dense`, `rms_norm_to` and `action_decode` read them on a GPU.

Matrices are bfloat16 where that holds their values, which for a stored model it does: half the
bytes to read. Where it does not, after training in float32 for example, they stay float32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wmrt.core.errors import UnsupportedError
from wmrt.kernels.triton.checks_heads import ALIGNED
from wmrt.model.heads import Prediction
from wmrt.model.linear import Linear
from wmrt.model.network import Network
from wmrt.model.trunk import RMS_EPS

#: Outputs of the dynamics head in the order of their rows, by their names in `Prediction`.
OUTPUTS = ("change", "missing", "category", "reward", "proceed")


@dataclass(frozen=True)
class DenseWeight:
    """A layer as `dense` takes it.

    Attributes:
        weight: bfloat16 or float32 [N, K'], K' being K rounded up to a multiple of 8 with zeros.
        bias: float32[N] or None.
        wide: whether bfloat16 weights multiply float32 x.
    """

    weight: Tensor
    bias: Tensor | None
    wide: bool


@dataclass(frozen=True)
class HeadWeights:
    """Everything behind the trunk.

    Attributes:
        norm: float32[d], the norm before all heads; with `eps`.
        action_hidden, action_out: the action head; GELU between them.
        centers: float32[bins] of the action's bins.
        embedding: bfloat16 or float32 [A, knots, E / A] of actions.
        body: both layers of the dynamics head, of the normed state and the embedded action [d + E];
            GELU after each.
        outputs: its last layers as one matrix, whose rows are those of `slices`, without gaps.
        slices: columns of what `outputs` gives, by the names of `OUTPUTS`; some may be empty.
    """

    norm: Tensor
    eps: float
    action_hidden: DenseWeight
    action_out: DenseWeight
    centers: Tensor
    embedding: Tensor
    body: tuple[DenseWeight, DenseWeight]
    outputs: DenseWeight
    slices: Mapping[str, slice]


def head_weights(network: Network) -> HeadWeights:
    """The heads of a network, on its device; what is stored as it is read is no copy.

    Raises:
        UnsupportedError: the action head is packed to 4 bits.
    """
    head, dynamics = network.action_head, network.dynamics
    layers = [cast(nn.Linear, getattr(dynamics, name)) for name in OUTPUTS]
    ends = torch.tensor([layer.out_features for layer in layers]).cumsum(0).tolist()
    return HeadWeights(
        norm=_vector(network.norm.weight),
        eps=RMS_EPS,
        action_hidden=_linear("hidden", head.hidden),
        action_out=_linear("out", head.out),
        centers=_vector(head.centers),
        embedding=_narrow(network.action_embedding.weight),
        body=(_dense([dynamics.body[0]]), _dense([dynamics.body[2]])),
        outputs=_dense(layers),
        slices={
            name: slice(end - layer.out_features, end)
            for name, layer, end in zip(OUTPUTS, layers, ends, strict=True)
        },
    )


def split_outputs(y: Tensor, weights: HeadWeights, network: Network) -> Prediction:
    """What `outputs` gave, y float32[B, N], as `DynamicsHead.forward` gives them."""
    head = network.dynamics
    parts = {name: y[:, columns] for name, columns in weights.slices.items()}
    parts["change"] = parts["change"].reshape(len(y), head.numeric, head.state_bins)
    parts["proceed"] = parts["proceed"].squeeze(-1)
    return Prediction(**parts)


def _linear(name: str, layer: Linear) -> DenseWeight:
    """A layer of the action head, which multiplies as its recipe says."""
    if layer.weight is None:
        raise UnsupportedError(
            f"action_head.{name} is packed as {layer.recipe.name if layer.recipe else '?'}; the "
            "GPU step reads the heads in bfloat16: leave them out of the recipe, or use "
            "executor=eager"
        )
    return DenseWeight(_padded(_narrow(layer.weight)), None, wide=layer.recipe is None)


def _dense(layers: Sequence[nn.Module]) -> DenseWeight:
    """Layers of one input below each other; torch multiplies them by float32 x."""
    given = [cast(nn.Linear, layer) for layer in layers]
    weight = torch.cat([layer.weight.detach() for layer in given])
    bias = torch.cat([_vector(layer.bias) for layer in given])
    return DenseWeight(_padded(_narrow(weight)), bias, wide=True)


def _narrow(weight: Tensor) -> Tensor:
    """`weight` in bfloat16 where that changes no value, else in float32; contiguous."""
    given = weight.detach()
    narrow = given.to(torch.bfloat16)
    exact = torch.equal(narrow.float(), given.float())
    return (narrow if exact else given.float()).contiguous()


def _padded(weight: Tensor) -> Tensor:
    """Columns of zeros up to a multiple of `ALIGNED`; at a multiple of 16 bytes."""
    extra = -weight.shape[1] % ALIGNED
    whole = F.pad(weight, (0, extra)) if extra else weight
    return whole.clone() if whole.data_ptr() % 16 else whole


def _vector(tensor: Tensor) -> Tensor:
    return tensor.detach().float().contiguous()
