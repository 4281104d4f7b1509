"""What can grow into what: the rules, and the axes of every tensor outside the trunk's layers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from wmrt.core.errors import UsageError
from wmrt.model.config import ModelConfig
from wmrt.train.grow_axes import Axis, expand, reading, shares, writing

#: Sizes that are part of the function, or of its schema: the source's are kept.
KEPT = (
    "window",
    "past",
    "selector",
    "field_dim",
    "embed",
    "table_groups",
    "table_cells",
    "chunk",
    "action_bins",
    "state_bins",
    "reward_bins",
    "rope_base",
    "dropout",
)
_MULTIPLES = (
    "d_model",
    "heads",
    "kv_heads",
    "head_dim",
    "ffn",
    "mlp_hidden",
    "table_rows",
    "action_embed",
    "lstm",
    "select_dim",
    "head_hidden",
    "dyn_hidden",
)


@dataclass(frozen=True)
class Plan:
    """Growing ``source`` into ``target``; ``actions`` is the number of action dimensions.

    Make it with `plan`, which checks the rules.
    """

    source: ModelConfig
    target: ModelConfig
    actions: int

    def times(self, name: str) -> int:
        """How many copies of the source's ``name`` the target holds."""
        return int(getattr(self.target, name)) // int(getattr(self.source, name))

    def kept(self, preset: ModelConfig) -> dict[str, list[Any]]:
        """What of ``preset`` the function does not allow: name to [its value, the one kept]."""
        pairs = {name: [getattr(preset, name), getattr(self.target, name)] for name in KEPT}
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}

    def layer_of(self, layer: int) -> int:
        """Where the source's ``layer`` goes: evenly spread, the last one last."""
        return (layer + 1) * self.target.layers // self.source.layers - 1

    # -- axes ----------------------------------------------------------------------------------

    def writes(self, name: str) -> Axis:
        return writing(getattr(self.source, name), self.times(name))

    def reads(self, name: str) -> Axis:
        return reading(getattr(self.source, name), self.times(name))

    @cached_property
    def pairs(self) -> int:
        """Pairs of copies of the residual stream."""
        return self.times("d_model") // 2

    @cached_property
    def stream(self) -> Axis:
        """Reading the residual stream: both copies of a pair count the same."""
        weights = [share / 2 for share in shares(self.pairs) for _ in range(2)]
        return reading(self.source.d_model, 2 * self.pairs, weights)

    @cached_property
    def action(self) -> Axis:
        """Reading an embedded action: the copies lie within each action dimension."""
        width = self.source.action_embed // self.actions
        return reading(width, self.times("action_embed")).blocks(self.actions, width)

    def rest(self) -> dict[str, tuple[Axis | None, ...]]:
        """Axes of every tensor that changes its size outside the layers and the action knots."""
        d, mlp, dyn = self.writes("d_model"), self.writes("mlp_hidden"), self.writes("dyn_hidden")
        gates = self.writes("lstm").blocks(4, self.source.lstm)
        select = self.writes("select_dim")
        # A score is q k / sqrt(dim): n copies of every dimension give sqrt(n) times as much.
        query = select.times(1 / math.isqrt(self.times("select_dim")))
        body = self.stream.then(self.action, self.source.d_model)
        outputs = ("change", "missing", "category", "reward", "proceed")
        return {
            "fusion.mlp.0.weight": (mlp, None),
            "fusion.mlp.0.bias": (mlp,),
            "fusion.mlp.2.weight": (None, self.reads("mlp_hidden")),
            "fusion.out.weight": (d, None),
            "fusion.out.bias": (d,),
            "fusion.memory.table": (self.writes("table_rows"), d),
            "fusion.action_in.weight": (d, self.action),
            "selector.lstm.weight_ih": (gates, self.action),
            "selector.lstm.weight_hh": (gates, self.reads("lstm")),
            "selector.lstm.bias_ih": (gates,),
            "selector.lstm.bias_hh": (gates,),
            "selector.query.weight": (query, self.reads("lstm")),
            "selector.query.bias": (query,),
            "selector.key.weight": (select, self.stream),
            "selector.key.bias": (select,),
            "norm.weight": (d,),
            "action_head.hidden.weight": (self.writes("head_hidden"), self.stream),
            "action_head.out.weight": (None, self.reads("head_hidden")),
            "dynamics.body.0.weight": (dyn, body),
            "dynamics.body.0.bias": (dyn,),
            "dynamics.body.2.weight": (dyn, self.reads("dyn_hidden")),
            "dynamics.body.2.bias": (dyn,),
            **{f"dynamics.{name}.weight": (None, self.reads("dyn_hidden")) for name in outputs},
        }

    def knots(self, stored: Tensor) -> Tensor:
        """Action knots [A, K, w] -> [A, m (K - 1) + 1, n w], interpolating exactly as before.

        Knot k + r/m lies between two of the source's: a share r/m of the copies holds the upper
        one, the others the lower one. Their mean is the interpolated value, which bf16 could not
        hold.
        """
        copies, finer = self.times("action_embed"), _finer(self.source, self.target)
        grid = torch.arange(self.target.action_knots)
        upper = (grid % finer).unsqueeze(1) * copies > finer * torch.arange(copies)
        knot = (grid // finer).unsqueeze(1) + upper.long()  # [K', n]
        picked = stored[:, knot]  # [A, K', n, w]
        return expand("action_embedding.weight", picked.flatten(2), ())


def plan(source: ModelConfig, preset: ModelConfig, actions: int) -> Plan:
    """The plan that grows ``source`` into ``preset``, but for what has to be `KEPT`.

    Raises `UsageError` naming the size that cannot be reached, and the rule.
    """
    target = preset.with_(**{name: getattr(source, name) for name in KEPT})
    for name in _MULTIPLES:
        small, large = getattr(source, name), getattr(target, name)
        if large < small:
            raise UsageError(f"{name} {large} is below the source's {small}; a model only grows")
        if large % small:
            raise UsageError(f"{name} {large} must be a multiple of the source's {small}")
    made = Plan(source, target, actions)
    _require_trunk(made)
    _require_actions(made)
    times = made.times("select_dim")
    if math.isqrt(times) ** 2 != times or not _power_of_two(times):
        raise UsageError(
            f"select_dim {target.select_dim} must be 1, 4, 16, ... times the source's "
            f"{source.select_dim}: scores are divided by its square root"
        )
    return made


def _require_trunk(made: Plan) -> None:
    source, target = made.source, made.target
    if target.layers < source.layers:
        raise UsageError(
            f"layers {target.layers} is below the source's {source.layers}; a model only grows"
        )
    if made.times("d_model") % 4:
        raise UsageError(
            f"d_model {target.d_model} must be 4, 8, 12, ... times the source's {source.d_model}: "
            "what is added writes to pairs of copies"
        )
    if not _power_of_two(made.times("head_dim")):
        raise UsageError(
            f"head_dim {target.head_dim} must be 1, 2, 4, ... times the source's "
            f"{source.head_dim}, so that its frequencies are among the new ones"
        )
    small, large = source.heads // source.kv_heads, target.heads // target.kv_heads
    if large % small:
        raise UsageError(f"heads per KV head, {large}, must be a multiple of the source's {small}")


def _require_actions(made: Plan) -> None:
    source, target, copies = made.source, made.target, made.times("action_embed")
    steps = (source.action_knots - 1, target.action_knots - 1)
    if min(steps) < 1 or steps[1] % steps[0]:
        raise UsageError(
            f"action_knots - 1 = {steps[1]} must be a multiple of the source's {steps[0]}"
        )
    finer = _finer(source, target)
    if copies % finer or not _power_of_two(copies):
        raise UsageError(
            f"action_embed has {copies} times the source's width, for knots {finer} times as "
            f"fine: it must be a power of two and a multiple of {finer}"
        )


def _finer(source: ModelConfig, target: ModelConfig) -> int:
    return (target.action_knots - 1) // (source.action_knots - 1)


def _power_of_two(number: int) -> bool:
    return number & (number - 1) == 0
