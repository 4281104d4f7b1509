"""A network's weights as the native step reads them: addresses of tensors that are kept alive here.

Nothing is copied but vectors: biases, norms and small constants become float32. Matrices stay where
they are, which for a stored model is the mapped file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor, nn

from wmrt.core.errors import UnsupportedError
from wmrt.kernels.native import step as abi
from wmrt.kernels.native.library import ACTIVATIONS, FORMATS, Matrix
from wmrt.model.heads import REWARD_RANGE
from wmrt.model.linear import Linear
from wmrt.model.network import Network
from wmrt.model.trunk import Block
from wmrt.model.twohot import bin_centers

#: What packed linears of the native step are laid out in.
LAYOUT = "cpu_interleaved"


class NativeModel:
    """``wmrt_model`` of a network in eval mode whose linears run the implementation ``native``.

    Attributes:
        struct: to pass to native functions; valid as long as this object.
        names: of the matrices, in order: linear layers by module name.

    Raises `UnsupportedError` for weights that bfloat16 does not hold exactly.
    """

    def __init__(self, network: Network) -> None:
        self._kept: list[Tensor] = []
        self.names = (
            *abi.ONCE,
            *(f"blocks.{i}.{name}" for i in range(network.config.layers) for name in abi.LAYER),
        )
        matrices = [self._matrix(*parts) for parts in _parts(network)]
        self.matrices = (Matrix * len(matrices))(*matrices)
        self.struct = abi.Model(matrix=self.matrices)
        for name, size in _sizes(network).items():
            setattr(self.struct, name, size)
        self.struct.reward_scale = float(network.dynamics.reward_scale)
        for name, tensor in _constants(network).items():
            setattr(self.struct, name, self._keep(tensor))

    def own_bytes(self, network: Network) -> int:
        """Bytes of the copies that this object made: what it keeps and the network does not."""
        tensors = (*network.parameters(), *network.buffers())
        theirs = {t.untyped_storage().data_ptr() for t in tensors}
        own = (t.untyped_storage() for t in self._kept)
        return sum({s.data_ptr(): s.nbytes() for s in own if s.data_ptr() not in theirs}.values())

    def _keep(self, tensor: Tensor) -> int | None:
        whole = tensor
        if not tensor.is_contiguous() or tensor.data_ptr() % tensor.element_size():
            whole = tensor.detach().clone(memory_format=torch.contiguous_format)
        self._kept.append(whole)
        return whole.data_ptr() or None

    def _matrix(self, layer: Linear | None, weight: Tensor | None, bias: Tensor | None) -> Matrix:
        if layer is not None and layer.weight is None:
            return self._packed(layer)
        assert weight is not None
        if not weight.numel():
            return Matrix(global_scale=1.0)
        rows, columns = weight.shape
        return Matrix(
            rows=self._keep(exact_bf16(weight)),
            bias=None if bias is None else self._keep(bias.float()),
            stride=2 * columns,
            n=rows,
            k=columns,
            format=FORMATS["bf16"],
            activation=ACTIVATIONS["float32" if layer is None else "bf16"],
            global_scale=1.0,
        )

    def _packed(self, layer: Linear) -> Matrix:
        assert layer.recipe is not None  # it holds no float weight
        tensors = layer.tensors(LAYOUT)
        rows = tensors["interleaved"]
        return Matrix(
            rows=self._keep(rows),
            stride=rows.shape[1],
            n=layer.out_features,
            k=layer.in_features,
            format=FORMATS[layer.recipe.weight_format],
            activation=ACTIVATIONS[layer.recipe.activation],
            global_scale=float(tensors.get("global_scale", 1.0)),
        )


def exact_bf16(weight: Tensor) -> Tensor:
    """`weight` in bfloat16, itself if it is; `UnsupportedError` if that changes a value."""
    if weight.dtype == torch.bfloat16:
        return weight
    narrow = weight.detach().to(torch.bfloat16)
    if not torch.equal(narrow.float(), weight.detach()):
        raise UnsupportedError(
            "the native executor holds small weights in bfloat16, and this network's are not "
            "bfloat16 numbers; save and load it, or use executor=eager"
        )
    return narrow


def _parts(network: Network) -> Iterator[tuple[Linear | None, Tensor | None, Tensor | None]]:
    """Per matrix in order: the trunk linear it is, or else its weight and bias."""
    modules = dict(network.named_modules())
    lstm = network.selector.lstm
    for name in abi.ONCE:
        module = modules.get(name)
        if name == "selector.lstm.input":
            yield None, lstm.weight_ih, lstm.bias_ih
        elif name == "selector.lstm.hidden":
            yield None, lstm.weight_hh, lstm.bias_hh
        elif isinstance(module, Linear):
            yield module, module.weight, None
        else:
            assert isinstance(module, nn.Linear)  # abi.ONCE names nothing else
            yield None, module.weight, module.bias
    for layer in range(network.config.layers):
        for name in abi.LAYER:
            module = modules[f"blocks.{layer}.{name}"]
            assert isinstance(module, Linear)
            yield module, module.weight, None


def _sizes(network: Network) -> dict[str, int]:
    config, fields, dynamics = network.config, network.fusion.fields, network.dynamics
    same = (
        *("d_model", "layers", "heads", "kv_heads", "head_dim", "ffn", "window", "past"),
        *("field_dim", "mlp_hidden", "embed", "table_rows", "table_groups", "action_embed"),
        *("lstm", "select_dim", "chunk", "action_bins", "head_hidden", "dyn_hidden"),
        *("state_bins", "reward_bins"),
    )
    return {
        **{name: getattr(config, name) for name in same},
        "columns": len(network.schema.columns),
        "numbers": dynamics.numeric,
        "categories": len(dynamics.category_sizes),
        "category_logits": sum(dynamics.category_sizes),
        "actions": len(network.actions),
        "selector": abi.SELECTORS[config.selector],
        "widest": fields.knots.shape[1],
        "field_rows": fields.weight.shape[0],
        "knots": config.action_knots,
    }


def _constants(network: Network) -> dict[str, Tensor]:
    fusion, dynamics = network.fusion, network.dynamics
    blocks = [cast(Block, block) for block in network.blocks]
    layers = [norm for block in blocks for norm in (block.attention_norm, block.mlp_norm)]
    norms = torch.stack([norm.weight.detach().float() for norm in (*layers, network.norm)])
    sizes = torch.tensor(dynamics.category_sizes, dtype=torch.int64)
    return {
        "norms": norms,
        "field_table": exact_bf16(fusion.fields.weight),
        "memory": exact_bf16(fusion.memory.table),
        "action_table": exact_bf16(network.action_embedding.weight),
        "row_offset": fusion.fields.row_offset,
        "cells": fusion.memory.cells,
        "buckets": fusion.memory.buckets,
        "multipliers": fusion.memory.multipliers,
        "increments": network.increments,
        "numeric_index": network.numeric_index,
        "category_sizes": sizes,
        "is_numeric": fusion.fields.is_numeric,
        "field_knots": fusion.fields.knots,
        "embed_weight": fusion.norm.weight.detach().float(),
        "embed_bias": fusion.norm.bias.detach().float(),
        "age_bias": network.selector.age_bias.detach().float(),
        "action_centers": network.action_head.centers,
        "state_centers": dynamics.bins,
        "reward_centers": bin_centers(*REWARD_RANGE, network.config.reward_bins),
        **{
            name: getattr(dynamics, name).float()
            for name in ("delta_scale", "delta_limit", "fill", "low", "high")
        },
    }
