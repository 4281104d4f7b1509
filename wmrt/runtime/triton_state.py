"""What the fused step keeps per group of robots: their ring, static arrays, and the step itself."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from wmrt.core.errors import UsageError
from wmrt.kernels.state_arguments import MOST_ROBOTS
from wmrt.kernels.triton.variants import varied
from wmrt.model.network import Network, Ring
from wmrt.model.trunk import RMS_EPS
from wmrt.runtime.gpu_weights_heads import DenseWeight, split_outputs
from wmrt.runtime.triton_arrays import block_of, inner_of, inputs_of, results_of, views_of
from wmrt.runtime.triton_model import TritonModel

#: Stages of a step.
TRUNK, HEAD, PREDICT, DECODE = 1, 2, 4, 8
ALL = TRUNK | HEAD | PREDICT | DECODE


class TritonState:
    """Memory of up to 16 robots on a network's device, and one step of all of them; or one step of
    so many robots of a group, whose memory others step too.

    Attributes:
        ring: plain tensors, which a step writes in place.
        arrays: static tensors on the device, one row per robot: inputs, what heads and predictions
            give, and what is read off them.
        host: inputs and results in memory of the host, pinned where the device is a GPU. A step
            begins by copying the inputs to the device and ends by copying the results back, one
            copy each.

    Args:
        ops: where the operators are, `torch.ops.wmrt` unless given.
        group: the memory of as many robots or more, of which a step takes those in the input
            ``robots`` int32[B], each at most once, at first the first ones. None: one of its own.
    """

    def __init__(
        self,
        network: Network,
        model: TritonModel,
        robots: int = 1,
        ops: Any = None,
        group: Ring | None = None,
    ) -> None:
        if not 1 <= robots <= MOST_ROBOTS:
            raise UsageError(f"robots={robots}: 1 to {MOST_ROBOTS} share one step")
        self.network, self.model, self.robots = network, model, robots
        self._ops = torch.ops.wmrt if ops is None else ops
        self.device = network.increments.device
        self.ring: Ring = network.new_ring(robots) if group is None else group
        self._one = torch.ones(robots, dtype=torch.int64, device=self.device)
        taken = inputs_of(network, robots, some=group is not None)
        self.sent, self.sent_host, inputs = block_of(taken, self.device)
        self.got, self.got_host, results = block_of(results_of(network, robots), self.device)
        inner = {
            name: torch.zeros(shape, dtype=dtype, device=self.device)
            for name, (shape, dtype) in inner_of(network, model, robots).items()
        }
        self.arrays = {**inputs, **results, **inner}
        given = views_of(self.sent_host, taken)
        told = views_of(self.got_host, results_of(network, robots))
        self.host = {**given, **told}
        if group is not None:
            given["robots"].copy_(torch.arange(robots))
            inputs["robots"].copy_(given["robots"])
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

    def run_in_turn(self) -> None:
        """`run` where every launch begins after the one before has ended: what dependent launches
        have to be equal to."""
        with varied(dependent=False):
            self.run()

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
        x, turn, some = a["x"], (a["cos"], a["sin"]), a.get("robots")
        # Where some robots step, slots count over the rings of all.
        rings = [t if some is None else t.flatten(1, 2) for t in (ring.keys, ring.values)]
        ops.state_fusion(
            *(a["codes"], a["values"], a["previous"], model.fusion, model.fusion_sizes),
            *(a["before"], a["work"], x),
        )
        ops.transition_select(
            *(x, a["before"], ring.step, model.selector, self.network.config.selector),
            *(ring.hidden, ring.cell, ring.select_keys, a["work"], a["slots"], a["bias"], *turn),
            some,
        )
        behind = [layer.qkv.tensors for layer in model.layers[1:]] + [()]
        for layer, keys, values, after in zip(model.layers, *rings, behind, strict=True):
            ops.norm_qkv_rope_store(
                *(x, layer.attention_norm, RMS_EPS, *layer.qkv, *turn, a["slots"]),
                *(a["normed"], a["q"], keys, values, *layer.out.tensors),
            )
            attended = (a["attended"], a["attended_factors"])
            ops.transition_attention_int8(a["q"], keys, values, a["slots"], a["bias"], *attended)
            ops.gemv_residual(*attended, *layer.out, x, *layer.gate_up.tensors)
            gated = (a["gated"], a["gated_factors"])
            ops.norm_gate_up(
                *(x, layer.mlp_norm, RMS_EPS, *layer.gate_up, a["normed"], *gated),
                *layer.down.tensors,
            )
            ops.gemv_residual(*gated, *layer.down, x, *after)
        ops.rms_norm_to(x, model.heads.norm, model.heads.eps, a["hidden"])
        if some is None:
            ring.step.add_(1)
        else:
            ring.step.index_add_(0, some, self._one)

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
