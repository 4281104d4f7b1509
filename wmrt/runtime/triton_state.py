"""What the fused step keeps per group of robots: their ring, static arrays, and the step itself."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from wmrt.core.errors import UsageError
from wmrt.kernels.state_arguments import MOST_ROBOTS, fusion_work, select_work
from wmrt.kernels.triton.plans import gate_up_work, qkv_work
from wmrt.model.network import Network, Ring
from wmrt.model.trunk import RMS_EPS
from wmrt.runtime.gpu_weights_heads import DenseWeight, split_outputs
from wmrt.runtime.triton_model import Packed, TritonModel

#: Stages of a step.
TRUNK, HEAD, PREDICT, DECODE = 1, 2, 4, 8
ALL = TRUNK | HEAD | PREDICT | DECODE
#: Group of an int8 scale, and what the fused operators pad activations to.
_GROUP, _STEP = 32, 256
_ALIGNED = 16

Shapes = Mapping[str, tuple[tuple[int, ...], torch.dtype]]


class TritonState:
    """Memory of up to 16 robots on a network's device, and one step of all of them.

    Attributes:
        ring: plain tensors, which a step writes in place.
        arrays: static tensors on the device, one row per robot: inputs, what heads and predictions
            give, and what is read off them.
        host: inputs and results in memory of the host, pinned where the device is a GPU. A step
            begins by copying the inputs to the device and ends by copying the results back, one
            copy each.

    Args:
        ops: where the operators are, `torch.ops.wmrt` unless given.
    """

    def __init__(
        self, network: Network, model: TritonModel, robots: int = 1, ops: Any = None
    ) -> None:
        if not 1 <= robots <= MOST_ROBOTS:
            raise UsageError(f"robots={robots}: 1 to {MOST_ROBOTS} share one step")
        self.network, self.model, self.robots = network, model, robots
        self._ops = torch.ops.wmrt if ops is None else ops
        self.device = network.increments.device
        self.ring: Ring = network.new_ring(robots)
        self.sent, self.sent_host, inputs = _block(_inputs(network, robots), self.device)
        self.got, self.got_host, results = _block(_results(network, robots), self.device)
        inner = {
            name: torch.zeros(shape, dtype=dtype, device=self.device)
            for name, (shape, dtype) in _inner(network, model, robots).items()
        }
        self.arrays = {**inputs, **results, **inner}
        given = _views(self.sent_host, _inputs(network, robots))
        told = _views(self.got_host, _results(network, robots))
        self.host = {**given, **told}
        self._name_parts()

    def _name_parts(self) -> None:
        """Views that operators take: of joined rows, hidden and the action's embedding."""
        config, arrays = self.network.config, self.arrays
        arrays["hidden"] = arrays["joined"][:, : config.d_model]
        arrays["embedded"] = arrays["joined"][:, config.d_model :]
        arrays["logits_flat"] = arrays["logits"].flatten(1)
        self.prediction = split_outputs(arrays["outputs"], self.model.heads, self.network)

    @functools.cached_property
    def rows(self) -> dict[str, NDArray[Any]]:
        """Numpy views of `host`."""
        return {name: tensor.numpy() for name, tensor in self.host.items()}

    @property
    def workspace_bytes(self) -> int:
        """Bytes of the static arrays, of the device and of the host."""
        held = [*self.arrays.values(), self.sent_host, self.got_host]
        whole = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in held}
        return sum(whole.values())

    @property
    def inputs(self) -> Mapping[str, Tensor]:
        """``codes`` int32[B, F], ``values`` float32[B, F], ``previous`` float32[B, A], in memory of
        the host: write here."""
        return {name: self.host[name] for name in ("codes", "values", "previous")}

    @property
    def buffers(self) -> Mapping[str, Tensor]:
        """What a step reads that changes and what it gives, by name; looked up anew each time."""
        return _Buffers(self)

    def run(self, stages: int = ALL) -> None:
        """Queue `stages`, with inputs from the host before and results to it after. On a GPU it
        returns before they have run."""
        self.sent.copy_(self.sent_host, non_blocking=True)
        self.compute(stages)
        self.got_host.copy_(self.got, non_blocking=True)

    def compute(self, stages: int = ALL) -> None:
        """`run` without the copies."""
        if stages & TRUNK:
            self._trunk()
        if stages & HEAD:
            self._head()
        if stages & PREDICT:
            self._predict()
        if stages & DECODE:
            self._decode()

    def _trunk(self) -> None:
        ops, a, model, ring = self._ops, self.arrays, self.model, self.ring
        x, turn = a["x"], (a["cos"], a["sin"])
        ops.state_fusion(
            *(a["codes"], a["values"], a["previous"], model.fusion, model.fusion_sizes),
            *(a["before"], a["work"], x),
        )
        ops.transition_select(
            *(x, a["before"], ring.step, model.selector, self.network.config.selector),
            *(ring.hidden, ring.cell, ring.select_keys, a["work"], a["slots"], a["bias"], *turn),
        )
        for layer, keys, values in zip(model.layers, ring.keys, ring.values, strict=True):
            ops.norm_qkv_rope_store(
                *(x, layer.attention_norm, RMS_EPS, *layer.qkv, *turn, a["slots"]),
                *(a["normed"], a["q"], keys, values),
            )
            attended = (a["attended"], a["attended_factors"])
            ops.transition_attention_int8(a["q"], keys, values, a["slots"], a["bias"], *attended)
            ops.gemv_residual(*attended, *layer.out, x)
            gated = (a["gated"], a["gated_factors"])
            ops.norm_gate_up(
                *(x, layer.mlp_norm, RMS_EPS, *layer.gate_up, a["normed"], *gated),
            )
            ops.gemv_residual(*gated, *layer.down, x)
        ops.rms_norm_to(x, model.heads.norm, model.heads.eps, a["hidden"])
        ring.step.add_(1)

    def _dense(self, x: str, layer: DenseWeight, activation: str, out: str) -> None:
        given = (self.arrays[x], None, 0.0, layer.weight, layer.bias, activation)
        self._ops.dense(*given, self.arrays[out], layer.wide)

    def _head(self) -> None:
        a, heads = self.arrays, self.model.heads
        self._dense("hidden", heads.action_hidden, "gelu", "head")
        self._dense("head", heads.action_out, "none", "logits_flat")
        self._ops.action_decode(
            *(a["logits"], heads.centers, heads.embedding),
            *(a["chunk"], a["action"], a["embedded"]),
        )

    def embed_action(self) -> None:
        """Embed ``action`` anew, where another one than the chunk's first is to be predicted
        from."""
        self.arrays["embedded"].copy_(self.network.action_embedding(self.arrays["action"]))

    def _predict(self) -> None:
        heads = self.model.heads
        self._dense("joined", heads.body[0], "gelu", "dyn")
        self._dense("dyn", heads.body[1], "gelu", "dyn2")
        self._dense("dyn2", heads.outputs, "none", "outputs")

    def _decode(self) -> None:
        a = self.arrays
        self._ops.consequences(
            *(a["outputs"], a["codes"], a["values"], *self.model.decode),
            *(a["following"], a["missing"], a["category_code"], a["expected"], a["continues"]),
        )


class _Buffers(Mapping[str, Tensor]):
    """The ring of a state, and its inputs and results on both sides."""

    def __init__(self, state: TritonState) -> None:
        self._state = state
        blocks = ("sent", "sent_host", "got", "got_host")
        self._where = {
            **{f"ring {name}": (True, name) for name in state.ring.tensors()},
            **{name: (False, name) for name in blocks},
        }

    def __getitem__(self, name: str) -> Tensor:
        of_ring, attribute = self._where[name]
        tensor: Tensor = getattr(self._state.ring if of_ring else self._state, attribute)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._where)

    def __len__(self) -> int:
        return len(self._where)


def _inputs(network: Network, robots: int) -> Shapes:
    columns, actions = len(network.schema.columns), len(network.actions)
    return {
        "codes": ((robots, columns), torch.int32),
        "values": ((robots, columns), torch.float32),
        "previous": ((robots, actions), torch.float32),
    }


def _results(network: Network, robots: int) -> Shapes:
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


def _inner(network: Network, model: TritonModel, robots: int) -> Shapes:
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


def _block(shapes: Shapes, device: torch.device) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Bytes on the device, as many on the host, and views of the first by name."""
    size = sum(_bytes(*one) for one in shapes.values())
    block = torch.zeros(size, dtype=torch.uint8, device=device)
    host = torch.zeros(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
    return block, host, _views(block, shapes)


def _views(block: Tensor, shapes: Shapes) -> dict[str, Tensor]:
    views, at = {}, 0
    for name, (shape, dtype) in shapes.items():
        size = math.prod(shape) * dtype.itemsize
        views[name] = block[at : at + size].view(dtype).view(shape)
        at += _bytes(shape, dtype)
    return views


def _bytes(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    """Of one array, rounded up so that the next one is aligned."""
    return -(-math.prod(shape) * dtype.itemsize // _ALIGNED) * _ALIGNED
