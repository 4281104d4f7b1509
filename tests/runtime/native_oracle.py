"""A native step judged part by part: what went into every matrix, and what came out of it, against
the network in float64.

Every part is given what the native step itself made before it, so that no difference grows and
nothing depends on a rounding that tips over: tolerances are those of one part's arithmetic.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from wmrt.kernels import linear as pick
from wmrt.model.checkpoint import Checkpoint
from wmrt.model.network import Network, Ring
from wmrt.model.rope import rope_table, rotate
from wmrt.model.transition import Selection, jump_softmax
from wmrt.model.trunk import Block
from wmrt.runtime.build import float_network, linears
from wmrt.runtime.native_session import NativeSession
from wmrt.runtime.native_watch import Looking

ULP = 2.0**-24


class Oracle:
    """Compares every step of a native session of `checkpoint` as it runs."""

    def __init__(self, checkpoint: Checkpoint, session: NativeSession) -> None:
        self.session, self.state = session, session.state
        self.network: Network = float_network(checkpoint).double().eval()
        self.looking = Looking(self.state)
        config = self.network.config
        self.trace = torch.zeros(config.layers + 1, 1, config.d_model)
        names = self.state.model.names
        self.state.look(
            inputs=[self.looking.inputs[name] for name in names],
            outputs=[self.looking.outputs[name] for name in names],
            trace=self.trace,
        )
        self.chosen = 0  # steps whose choice of slots was clear, and judged

    def step(self, *args: Any) -> None:
        """Step the session, then judge what it did."""
        before = self.session.ring.clone()
        self.session.step(*args)
        with torch.no_grad():
            self._products()
            self._token(before)
            chosen = self._selection(before)
            for layer in range(self.network.config.layers):
                self._layer(layer, before, chosen)
            self._heads()

    def _in(self, name: str) -> Tensor:
        return self.looking.inputs[name].double()

    def _out(self, name: str) -> Tensor:
        return self.looking.outputs[name].double()

    def _products(self) -> None:
        """Every matrix: within K roundings of the sum of its terms' magnitudes. Packed ones are
        given the same activations as the reference, so their codes are the same."""
        packed = linears(self.session.network)
        lstm = self.network.selector.lstm
        own: dict[str, tuple[Tensor, Tensor | None]] = {
            "selector.lstm.input": (lstm.weight_ih, lstm.bias_ih),
            "selector.lstm.hidden": (lstm.weight_hh, lstm.bias_hh),
        }
        for name in self.state.model.names:
            x, y = self.looking.inputs[name], self._out(name)
            if not y.numel():
                continue  # a schema without numbers, or without categories
            if name in packed:
                module = packed[name]
                assert module.recipe is not None
                op = pick(module.recipe.weight_format, module.recipe.activation)
                weight: Any = module.weight if module.weight is not None else module.quantized()
                expected = op(x, weight).double()
                wide = weight.double() if module.weight is not None else weight.dequantize()
                bias = torch.zeros(())
            else:
                module_ = self.network.get_submodule(name) if name not in own else None
                wide, bias_ = own.get(name) or (module_.weight, module_.bias)  # type: ignore
                bias = torch.zeros(()) if bias_ is None else bias_
                expected = x.double() @ wide.double().t() + bias
            limit = (x.double().abs() @ wide.double().abs().t() + bias.abs()) * ULP
            assert bool(((y - expected).abs() <= (x.shape[1] + 8) * limit).all()), name

    def _token(self, before: Ring) -> None:
        n, codes, values = self.network, self.session.codes, self.session.values.double()
        action = n.action_embedding(self.session.previous.double())
        near("fields", self._in("fusion.mlp.0"), n.fusion.fields(codes, values))
        near("gelu", self._in("fusion.mlp.2"), F.gelu(self._out("fusion.mlp.0")))
        near("norm", self._in("fusion.out"), n.fusion.norm(self._out("fusion.mlp.2")))
        for name in ("fusion.action_in", "selector.lstm.input"):
            near("action", self._in(name), action)
        near("before", self._in("selector.lstm.hidden"), before.hidden)
        gate = torch.sigmoid(self._out("fusion.gate"))
        token = self._out("fusion.out") + gate * n.fusion.memory(codes)
        near("token", self.trace[0], token + self._out("fusion.action_in"))
        gates = self._out("selector.lstm.input") + self._out("selector.lstm.hidden")
        i, f, g, o = gates.chunk(4, -1)
        cell = f.sigmoid() * before.cell + i.sigmoid() * g.tanh()
        near("cell", self.session.ring.cell, cell)
        near("hidden", self.session.ring.hidden, o.sigmoid() * cell.tanh())
        near("intent", self._in("selector.query"), self.session.ring.hidden)
        near("key of", self._in("selector.key"), self.trace[0])

    def _selection(self, before: Ring) -> Selection | None:
        """What the selector chooses from the native step's own intent and keys; None where two
        scores are too close to tell which comes first."""
        selector, window = self.network.selector, self.network.config.window
        slot = before.step % window
        near("key", self.session.ring.select_keys[0, slot[0]], self._out("selector.key")[0])
        age = (slot.unsqueeze(1) - torch.arange(window)) % window
        age = torch.where(age <= before.step.unsqueeze(1), age, -1)
        query = self._out("selector.query")
        keys = self.session.ring.select_keys.double()
        scores = torch.einsum("bs,bws->bw", query, keys) * selector.scale
        scores = scores + selector.age_bias[age.clamp(min=0)]
        past = scores[age > 0].sort(descending=True).values
        k = selector.past
        if selector.kind == "learned" and 0 < k < len(past) and past[k - 1] - past[k] < 1e-4:
            return None
        self.chosen += 1
        return selector.select(self.session.ring.hidden.double(), keys, age, None)

    def _layer(self, index: int, before: Ring, chosen: Selection | None) -> None:
        config, ring = self.network.config, self.session.ring
        block, name = cast(Block, self.network.blocks[index]), f"blocks.{index}"
        x = self.trace[index].double()
        near(f"{name} norm", self._in(f"{name}.qkv"), block.attention_norm(x))
        heads = self._out(f"{name}.qkv").unflatten(-1, (-1, config.head_dim))
        q, k, v = heads.split([config.heads, config.kv_heads, config.kv_heads], dim=-2)
        cos, sin = (t.double().unsqueeze(-2) for t in rope_table(before.step, network_turns(self)))
        slot = before.step % config.window
        near(f"{name} key", ring.keys[index, 0, slot[0]], rotate(k, cos, sin)[0])
        near(f"{name} value", ring.values[index, 0, slot[0]], v[0])
        if chosen is not None:
            slots = torch.cat([slot.unsqueeze(1), chosen.slots], 1)[0]
            keys, values = (t[index, 0, slots].double() for t in (ring.keys, ring.values))
            query = rotate(q, cos, sin)[0].view(config.kv_heads, -1, config.head_dim)
            logits = torch.einsum("ghd,ngd->ghn", query, keys) / config.head_dim**0.5
            weights = jump_softmax(logits, F.pad(chosen.bias, (1, 0))[0])
            attended = torch.einsum("ghn,ngd->ghd", weights, values).flatten()
            near(f"{name} attention", self._in(f"{name}.out")[0], attended)
        x = x + self._out(f"{name}.out")
        near(f"{name} mlp norm", self._in(f"{name}.gate_up"), block.mlp_norm(x))
        gate, up = self._out(f"{name}.gate_up").chunk(2, -1)
        near(f"{name} swiglu", self._in(f"{name}.down"), F.silu(gate) * up)
        near(f"{name} x", self.trace[index + 1], x + self._out(f"{name}.down"))

    def _heads(self) -> None:
        n, out, rows = self.network, self.session.output, self.state.arrays
        assert out is not None
        near("last norm", out.hidden, n.norm(self.trace[-1].double()))
        near("head", self._in("action_head.hidden"), out.hidden)
        near("gelu", self._in("action_head.out"), F.gelu(self._out("action_head.hidden")))
        assert torch.equal(out.logits.flatten(1), self.looking.outputs["action_head.out"])
        near("chunk", out.chunk, n.action_head.decode(out.logits.double()))
        joined = torch.cat([out.hidden.double(), n.action_embedding(out.action.double())], -1)
        near("joined", self._in("dynamics.body.0"), joined)
        near("gelu", self._in("dynamics.body.2"), F.gelu(self._out("dynamics.body.0")))
        near("gelu", self._in("dynamics.reward"), F.gelu(self._out("dynamics.body.2")))
        known = n.split(self.session.codes, self.session.values.double())
        wide = type(out.prediction)(**{k: t.double() for k, t in vars(out.prediction).items()})
        following = n.dynamics.decode_state(wide, *known)[0]
        near("following", rows["following"], following, 256)  # symexp: e^5 of a change
        assert torch.equal(rows["category_code"], n.dynamics.decode_category(out.prediction))
        near("reward", rows["expected"], n.dynamics.decode_reward(wide))
        near("proceed", rows["continues"], out.prediction.proceed.double().sigmoid())


def network_turns(oracle: Oracle) -> Tensor:
    """Integer turns per step of each frequency; `double()` leaves integers as they are."""
    return oracle.network.increments


def near(what: str, got: Tensor, expected: Tensor, roundings: int = 32) -> None:
    """A chain of elementwise operations and short sums: `roundings` of float32, of the largest
    magnitude in question."""
    assert got.shape == expected.shape or got.numel() == expected.numel(), what
    if not got.numel():
        return
    expected = expected.detach().double().reshape(got.shape)
    limit = roundings * ULP * float(expected.abs().max().clamp(min=1.0))
    worst = float((got.double() - expected).abs().max())
    assert worst <= limit, f"{what}: off by {worst:.2e}, allowed {limit:.2e}"
