"""`state_fusion` and `transition_select` for tests: small networks, states, float64 and its bounds.

Bounds follow a rounding of float32, 2^-24, through the arithmetic: a sum of n products is off by at
most n + 2 roundings of the sum of their magnitudes, whatever its order.
"""

from __future__ import annotations

import copy
import math
from typing import NamedTuple

import torch
from torch import Tensor

from tests.model.networks import ACTIONS
from wmrt.kernels.state_arguments import FusionSizes, fusion_work, select_work
from wmrt.model.config import preset
from wmrt.model.network import Network
from wmrt.model.rope import rope_table
from wmrt.model.schema import StateSchema, category, flag, numeric
from wmrt.runtime.gpu_weights_state import fusion_weights, selector_weights

U = 2.0**-24
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
#: Neither a power of two nor a multiple of what a program takes.
ODD = {
    "d_model": 100, "field_dim": 6, "mlp_hidden": 40, "embed": 24, "table_rows": 61,
    "table_groups": 3, "table_cells": 5, "action_embed": 10, "action_knots": 5, "lstm": 20,
    "select_dim": 10, "window": 13, "past": 5, "head_dim": 12, "heads": 2, "kv_heads": 1,
}  # fmt: skip
#: Widths of preset 1.3b, so that kernels divide their work as there.
WIDE = {
    "d_model": 2048, "field_dim": 16, "mlp_hidden": 512, "embed": 64, "table_groups": 16,
    "action_embed": 64, "action_knots": 65, "lstm": 256, "select_dim": 128, "window": 64,
    "past": 8, "head_dim": 128,
}  # fmt: skip


def schema(numbers: int = 3) -> StateSchema:
    """Numbers of several bucket counts, then a category and a flag."""
    fields = {
        f"n{i}": numeric("m", -5, 20, decimals=2, buckets=(7, 16, 33)[i % 3])
        for i in range(numbers)
    }
    more = {"lane": category(["left", "middle", "right"]), "on": flag()}
    return StateSchema({**fields, **more}, neutral=[0.0, 0.0])


def network(seed: int, numbers: int = 3, narrow: bool = True, **changes: object) -> Network:
    """`narrow`: every parameter a bfloat16 number, as in a stored model."""
    torch.manual_seed(seed)
    config = preset("tiny").with_(dropout=0.0, layers=1, **{**ODD, **changes})
    made = Network(schema(numbers), config, ACTIONS).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(1.5).add_(torch.randn(parameter.shape) * 0.02)
            if narrow:
                parameter.copy_(parameter.bfloat16())
    return made.requires_grad_(False)


def states(net: Network, batch: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, values and previous actions: unknown ones, ends of ranges and values on knots too."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.tensor([column.size for column in net.schema.columns])
    codes = (torch.rand(batch, len(sizes), generator=generator) * sizes).int()
    values = torch.rand(batch, len(sizes), generator=generator) * 25 - 5
    codes[0], values[-1] = sizes - 1, 20.0
    previous = torch.rand(batch, 2, generator=generator) * 2.4 - 1.2
    previous[-1] = torch.tensor([1.0, -1.0])
    return codes, values, previous


class Fused(NamedTuple):
    """Buffers of `state_fusion`."""

    action: Tensor
    work: Tensor
    token: Tensor


def fuse(op: object, net: Network, *given: Tensor) -> Fused:
    """Run ``op`` on codes, values and previous actions with fresh buffers; results on the CPU."""
    weights, sizes = fusion_weights(net)
    s, batch = FusionSizes(*sizes), len(given[0])
    shapes = ((batch, s.action_embed), (fusion_work(sizes, batch),), (batch, s.d_model))
    out = Fused(*(torch.full(shape, math.nan, device=DEVICE) for shape in shapes))
    op(*moved(given), moved(weights), sizes, *out)  # type: ignore[operator]
    return Fused(*(t.cpu() for t in out))


def moved(tensors: object) -> list[Tensor]:
    return [t.to(DEVICE) for t in tensors]  # type: ignore[attr-defined]


def fused(
    net: Network, codes: Tensor, values: Tensor, previous: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Action embedding and token in float64, and how far off float32 may be of the token."""
    wide = copy.deepcopy(net).double()
    f, mlp = wide.fusion, wide.fusion.mlp
    acted = wide.action_embedding(previous.double())
    token, y = f(codes, values.double(), acted)
    x = f.fields(codes, values.double())
    e = torch.full_like(x, 12 * U * float(f.fields.weight.abs().max()))
    a, e = _linear(mlp[0], x, e)
    h, e = mlp[1](a), 1.13 * e + 6 * U * a.abs()  # the slope of GELU is at most 1.13
    a, e = _linear(mlp[2], h, e)
    deviation = a.var(-1, correction=0, keepdim=True).add(1e-5).sqrt()
    n = (a - a.mean(-1, keepdim=True)) / deviation
    off = 2 * e.amax(-1, keepdim=True) + (a.shape[-1] + 4) * U * a.abs().amax(-1, keepdim=True)
    e = off / deviation * (1 + n.abs()) + 8 * U * n.abs()
    e = f.norm.weight.abs() * e + 2 * U * ((n * f.norm.weight).abs() + f.norm.bias.abs())
    (out, e_out), (gate, e_gate) = _linear(f.out, y, e), _linear(f.gate, y, e)
    share, e_share = gate.sigmoid(), e_gate / 4 + (8 + gate.abs()) * U
    rows = f.memory.table[f.memory.row_index(codes)]
    memory, e_memory = rows.sum(-2), (rows.shape[-2] + 1) * U * rows.abs().sum(-2)
    added, e_added = _linear(f.action_in, acted, torch.full_like(acted, embedding_bound(net)))
    bound = e_out + share * e_memory + memory.abs() * e_share + e_added
    return acted, token, bound + 4 * U * (out.abs() + (share * memory).abs() + added.abs())


def embedding_bound(net: Network) -> float:
    """Of an embedded action: a position of up to `action_knots`, and an interpolation."""
    return (8 + 2 * net.config.action_knots) * U * float(net.action_embedding.weight.abs().max())


def _linear(layer: torch.nn.Module, x: Tensor, e: Tensor) -> tuple[Tensor, Tensor]:
    """A layer's output, and its error for inputs that are off by ``e``."""
    size, bias = layer.weight.abs(), layer.bias
    sums = x.abs() @ size.T + (0 if bias is None else bias.abs())
    return layer(x), e @ size.T + (x.shape[-1] + 2) * U * sums


class Selected(NamedTuple):
    """What `transition_select` changes: the state, scratch, the choice and the phases."""

    hidden: Tensor
    cell: Tensor
    select_keys: Tensor
    work: Tensor
    slots: Tensor
    bias: Tensor
    cos: Tensor
    sin: Tensor


class Scene(NamedTuple):
    """A step of several robots: token, action embedding, steps taken, LSTM and ring before it.
    Slots that are not written yet hold NaN."""

    token: Tensor
    action: Tensor
    step: Tensor
    hidden: Tensor
    cell: Tensor
    select_keys: Tensor

    def of(self, robot: int) -> Scene:
        return Scene(*(t[robot : robot + 1] for t in self))


def scene(net: Network, steps: list[int], seed: int) -> Scene:
    generator = torch.Generator().manual_seed(seed)
    c, batch = net.config, len(steps)

    def draw(*shape: int) -> Tensor:
        return torch.randn(batch, *shape, generator=generator)

    keys, step = draw(c.window, c.select_dim), torch.tensor(steps)
    keys[torch.arange(c.window) >= step[:, None]] = math.nan
    hidden, cell = draw(c.lstm).tanh(), draw(c.lstm)
    return Scene(draw(c.d_model), draw(c.action_embed), step, hidden, cell, keys)


def select(
    op: object,
    net: Network,
    given: Scene,
    kind: str = "learned",
    count: int | None = None,
    robots: Tensor | None = None,
) -> Selected:
    """Run ``op`` on a copy of the scene with fresh buffers; results on the CPU. With `robots` only
    token and action are of those that step."""
    c, batch = net.config, len(given.token)
    count = c.past if count is None else count
    state = [t.clone().to(DEVICE) for t in given[3:]]
    work = torch.full((select_work(c.lstm, batch),), math.nan, device=DEVICE)
    slots = torch.full((batch, count + 1), -7, dtype=torch.int32, device=DEVICE)
    floats = [
        torch.full((batch, n), math.nan, device=DEVICE)
        for n in (count + 1, c.head_dim // 2, c.head_dim // 2)
    ]
    out = Selected(*state, work, slots, *floats)
    weights = moved(selector_weights(net))
    some = () if robots is None else (robots.to(DEVICE),)
    op(*moved(given[:3]), weights, kind, *out, *some)  # type: ignore[operator]
    return Selected(*(t.cpu() for t in out))


class Exact(NamedTuple):
    """The same in float64, with bounds: LSTM, keys of the present, scores [B, W] and phases.
    ``age`` is 0 for the present slot and -1 for one that is not written."""

    hidden: Tensor
    hidden_bound: Tensor
    cell: Tensor
    cell_bound: Tensor
    key: Tensor
    key_bound: Tensor
    scores: Tensor
    scores_bound: Tensor
    age: Tensor
    cos: Tensor
    sin: Tensor


def selected(net: Network, given: Scene) -> Exact:
    s = copy.deepcopy(net).double().selector
    token, action, hidden, cell = (
        t.double() for t in (given.token, given.action, given.hidden, given.cell)
    )
    new_hidden, new_cell = s.lstm(action, (hidden, cell))
    sums = action.abs() @ s.lstm.weight_ih.abs().T + hidden.abs() @ s.lstm.weight_hh.abs().T
    sums = sums + s.lstm.bias_ih.abs() + s.lstm.bias_hh.abs()
    terms = action.shape[1] + hidden.shape[1] + 6
    # Sigmoids change by a quarter of that and tanh by all of it; each is off by some roundings.
    enter, keep, new, show = (terms * U * sums + 10 * U).chunk(4, 1)
    cell_bound = keep * cell.abs() / 4 + enter / 4 + new + 4 * U * (1 + cell.abs())
    hidden_bound = show / 4 + cell_bound + 8 * U
    key, key_bound = _linear(s.key, token, torch.zeros_like(token))
    query, e = _linear(s.query, new_hidden, hidden_bound)
    step, window = given.step, net.config.window
    age = (step.unsqueeze(1) - torch.arange(window)) % window
    age = torch.where(age <= step.unsqueeze(1), age, -1)
    keys = given.select_keys.double()
    products = query.unsqueeze(1) * keys
    aged = s.age_bias[age.clamp(min=0)]
    scores = products.sum(-1) * s.scale + aged
    bound = (e.unsqueeze(1) * keys.abs() + (keys.shape[-1] + 4) * U * products.abs()).sum(-1)
    bound = bound * s.scale + 4 * U * (scores.abs() + aged.abs())
    cos, sin = rope_table(step, net.increments)
    return Exact(
        new_hidden, hidden_bound, new_cell, cell_bound, key, key_bound, scores, bound, age, cos, sin
    )
