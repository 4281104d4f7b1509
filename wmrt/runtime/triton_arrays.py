"""Static arrays of the fused step: what they are called, how large they are, where they lie."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from wmrt.kernels.state_arguments import fusion_work, select_work
from wmrt.kernels.triton.plans import gate_up_work, qkv_work
from wmrt.model.network import Network
from wmrt.runtime.triton_model import Packed, TritonModel

#: Group of an int8 scale.
_GROUP = 32
_ALIGNED = 16

Shapes = Mapping[str, tuple[tuple[int, ...], torch.dtype]]


def inputs_of(network: Network, robots: int, some: bool = False) -> Shapes:
    """What the host writes before a step; with `some`, also which robots of a group step."""
    columns, actions = len(network.schema.columns), len(network.actions)
    given = {
        "codes": ((robots, columns), torch.int32),
        "values": ((robots, columns), torch.float32),
        "previous": ((robots, actions), torch.float32),
    }
    return {**given, "robots": ((robots,), torch.int32)} if some else given


def results_of(network: Network, robots: int) -> Shapes:
    """What is read off a step; floats but for the codes of categories."""
    config, dynamics, actions = network.config, network.dynamics, len(network.actions)
    floats = {
        "action": (robots, actions),
        "chunk": (robots, config.chunk, actions),
        "following": (robots, dynamics.numeric),
        "missing": (robots, dynamics.numeric),
        "expected": (robots,),
        "continues": (robots,),
    }
    codes = (robots, len(dynamics.category_sizes))
    return {
        **{name: (shape, torch.float32) for name, shape in floats.items()},
        "category_code": (codes, torch.int64),
    }


def inner_of(network: Network, model: TritonModel, robots: int) -> Shapes:
    """What operators hand one another; widths of packed matrices with their padding."""
    c, layer = network.config, model.layers[0]
    floats = {
        "before": (c.action_embed,),
        "x": (c.d_model,),
        "bias": (c.past + 1,),
        "cos": (c.head_dim // 2,),
        "sin": (c.head_dim // 2,),
        "q": (c.heads, c.head_dim),
        "joined": (c.d_model + c.action_embed,),
        "head": (c.head_hidden,),
        "logits": (c.chunk, len(network.actions), c.action_bins),
        "dyn": (c.dyn_hidden,),
        "dyn2": (c.dyn_hidden,),
        "outputs": (model.heads.outputs.weight.shape[0],),
    }
    work = max(fusion_work(model.fusion_sizes, robots), select_work(c.lstm, robots))
    return {
        **{name: ((robots, *shape), torch.float32) for name, shape in floats.items()},
        "slots": ((robots, _read(network)), torch.int32),
        "bias": ((robots, _read(network)), torch.float32),
        "work": ((work,), torch.float32),
        "normed": ((_normed(model, robots),), torch.int8),
        **_int8("attended", layer.out, robots),
        **_int8("gated", layer.down, robots),
    }


def _read(network: Network) -> int:
    """Slots that a layer reads: the current one and the chosen past ones."""
    config = network.config
    return config.window if config.selector == "full" else config.past + 1


def _normed(model: TritonModel, robots: int) -> int:
    """Bytes of scratch in which programs keep the normed activations."""
    layer = model.layers[0]
    first, second = ((m.words.shape[0], m.width, robots) for m in (layer.qkv, layer.gate_up))
    return max(qkv_work(*first), gate_up_work(*second))


def _int8(name: str, matrix: Packed, robots: int) -> Shapes:
    return {
        name: ((robots, matrix.width), torch.int8),
        f"{name}_factors": ((robots, matrix.width // _GROUP), torch.float32),
    }


def block_of(shapes: Shapes, device: torch.device) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Bytes on the device, as many on the host, and views of the first by name."""
    size = sum(_bytes(*one) for one in shapes.values())
    block = torch.zeros(size, dtype=torch.uint8, device=device)
    host = torch.zeros(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
    return block, host, views_of(block, shapes)


def views_of(block: Tensor, shapes: Shapes) -> dict[str, Tensor]:
    """Arrays by name that lie one behind the other in bytes."""
    views, at = {}, 0
    for name, (shape, dtype) in shapes.items():
        size = math.prod(shape) * dtype.itemsize
        views[name] = block[at : at + size].view(dtype).view(shape)
        at += _bytes(shape, dtype)
    return views


def _bytes(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    """Of one array, rounded up so that the next one is aligned."""
    return -(-math.prod(shape) * dtype.itemsize // _ALIGNED) * _ALIGNED
