"""A network's small weights as `state_fusion` and `transition_select` read them on a GPU.

Matrices and tables are bfloat16 where that holds their values, which for a stored model it does:
half the bytes to read, and the same products, since the kernels multiply in float32. Where it does
not, after training in float32 for example, they stay float32.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from wmrt.core.errors import UnsupportedError
from wmrt.kernels.state_arguments import FusionSizes, FusionWeights, SelectorWeights
from wmrt.model.network import Network


def fusion_weights(network: Network) -> tuple[list[Tensor], list[int]]:
    """Weights and sizes for ``torch.ops.wmrt.state_fusion``, on the network's device.

    Contiguous; what is stored in the right type and order is the network's own tensor, not a copy.

    Raises:
        UnsupportedError: a schema whose cells cannot be counted in 32 bits.
    """
    fusion = network.fusion
    fields, memory, norm = fusion.fields, fusion.memory, fusion.norm
    first, second = cast(nn.Linear, fusion.mlp[0]), cast(nn.Linear, fusion.mlp[2])
    weights = FusionWeights(
        fields=_matrix(fields.weight),
        knots=fields.knots.contiguous(),
        columns=_columns(network),
        multipliers=_low32(memory.multipliers),
        first=_matrix(first.weight),
        first_bias=_vector(first.bias),
        second=_matrix(second.weight),
        embed_rows=torch.stack(
            [_vector(v) for v in (second.bias, norm.weight, norm.bias, fusion.gate.weight[0])]
        ),
        gate_bias=_vector(fusion.gate.bias),
        out=_matrix(fusion.out.weight),
        out_bias=_vector(fusion.out.bias),
        memory=_matrix(memory.table),
        action_in=_matrix(fusion.action_in.weight),
        action_table=_matrix(network.action_embedding.weight),
    )
    return list(weights), list(_fusion_sizes(network))


def _columns(network: Network) -> Tensor:
    """int32[F, 4], see `FusionWeights`."""
    fields, memory = network.fusion.fields, network.fusion.memory
    number = fields.is_numeric.long()
    if bool((memory.cells * memory.buckets >= 2**31).any()):
        raise UnsupportedError(
            f"a numeric field of {int((memory.buckets * number).max())} buckets with "
            f"{network.config.table_cells} cells: state_fusion counts in 32 bits; use fewer "
            "buckets or cells, or executor=eager"
        )
    table = torch.stack([fields.row_offset, number, memory.cells, memory.buckets], 1)
    return table.to(torch.int32).contiguous()


def _fusion_sizes(network: Network) -> FusionSizes:
    config = network.config
    return FusionSizes(
        columns=len(network.schema.columns),
        field_dim=config.field_dim,
        widest=network.fusion.fields.knots.shape[1],
        mlp_hidden=config.mlp_hidden,
        embed=config.embed,
        d_model=config.d_model,
        table_rows=config.table_rows,
        table_groups=config.table_groups,
        actions=len(network.actions),
        action_knots=config.action_knots,
        action_embed=config.action_embed,
    )


def selector_weights(network: Network) -> list[Tensor]:
    """Weights for ``torch.ops.wmrt.transition_select``, as `fusion_weights` gives them.

    Raises:
        UnsupportedError: a network that draws its past slots at random.
    """
    selector = network.selector
    if selector.kind == "random":
        raise UnsupportedError(
            "the selector 'random' draws slots anew in every step, which no GPU kernel does; use "
            "executor=eager"
        )
    lstm = selector.lstm
    weights = SelectorWeights(
        lstm_in=_matrix(lstm.weight_ih),
        lstm_hidden=_matrix(lstm.weight_hh),
        lstm_bias=torch.stack([_vector(lstm.bias_ih), _vector(lstm.bias_hh)]),
        query=_matrix(selector.query.weight),
        query_bias=_vector(selector.query.bias),
        key=_matrix(selector.key.weight),
        key_bias=_vector(selector.key.bias),
        age_bias=_vector(selector.age_bias),
        increments=network.increments.to(torch.int32),
    )
    return list(weights)


def _matrix(weight: Tensor) -> Tensor:
    """bfloat16 if that holds every value, else float32."""
    given = weight.detach()
    narrow = given.to(torch.bfloat16)
    exact = given.dtype == torch.bfloat16 or torch.equal(narrow.to(given.dtype), given)
    return (narrow if exact else given.float()).contiguous()


def _vector(weight: Tensor) -> Tensor:
    return weight.detach().float().contiguous()


def _low32(values: Tensor) -> Tensor:
    """The low 32 bits of int64, as int32."""
    low = values & 0xFFFFFFFF
    return torch.where(low < 2**31, low, low - 2**32).to(torch.int32).contiguous()
