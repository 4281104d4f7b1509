"""What a recipe does to a model on recorded drives: the bf16 network and the packed one compared.

Both see the same recorded states and actions. A layer's output error is the RMS of (packed layer
minus bf16 layer) over that of the bf16 layer, both fed what the layer gets in the bf16 network:
what this one layer loses.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from wmrt.core.errors import UsageError
from wmrt.model.linear import Linear
from wmrt.model.network import Network
from wmrt.quant import Recipe
from wmrt.runtime.build import linears
from wmrt.train.dataset import Batch, Recording, window_batch
from wmrt.train.evaluate import Horizon, open_loop, starts

CONTEXT, AHEAD, STRIDE = 32, 15, 20


@dataclass(frozen=True)
class LayerError:
    """One packed linear: relative RMS of the change of its weight, the same in dB (None where
    nothing changed), and relative RMS of the change of its output."""

    layer: str
    format: str
    weight_error: float
    sqnr_db: float | None
    output_error: float


@dataclass(frozen=True)
class ActionError:
    """Change of the decoded actions, which lie in [-1, 1]: RMS and largest, of the whole chunk and
    of its first action, the one that is sent."""

    chunk_rms: float
    chunk_max: float
    first_rms: float
    first_max: float


@dataclass(frozen=True)
class OpenLoop:
    """All of it. ``layers`` is None, with ``layers_reason``, where weights are not comparable one
    by one; next-state errors are `Horizon` of either network."""

    windows: int
    layers: tuple[LayerError, ...] | None
    layers_reason: str | None
    action: ActionError
    bf16: tuple[Horizon, ...]
    packed: tuple[Horizon, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@torch.inference_mode()
def compare(bf16: Network, packed: Network, recipe: Recipe, data: Recording) -> OpenLoop:
    """Open-loop errors of ``packed`` (under ``recipe``) against ``bf16`` on ``data``.

    Raises `UsageError` when no recorded drive is long enough for a window.
    """
    episode, first = starts(data, CONTEXT, AHEAD, STRIDE)
    batch = window_batch(data, episode, first, CONTEXT + AHEAD)
    reason = not_comparable(recipe)
    layers = None if reason else tuple(_layers(bf16, packed, batch))
    return OpenLoop(
        len(episode),
        layers,
        reason,
        action_error(bf16, packed, batch),
        tuple(open_loop(bf16, data, context=CONTEXT, stride=STRIDE)),
        tuple(open_loop(packed, data, context=CONTEXT, stride=STRIDE)),
    )


#: What a transform does to the numbers of a layer, so that those of bf16 are others.
_MOVES = {
    "hadamard": "hadamard turned what every layer reads or writes into another basis",
    "awq": "awq moved searched scales between each layer and what feeds it",
    "smoothquant": "smoothquant moved searched scales between each layer and what feeds it",
}


def not_comparable(recipe: Recipe) -> str | None:
    """Why packed weights and layer outputs cannot be set against those of bf16 one by one; None
    where they can be. Actions and predictions always can: no transform changes the function."""
    moved = [_MOVES[step.kind] for step in recipe.steps if step.phase == 1]
    if not moved:
        return None
    return f"{', and '.join(moved)}; `wmrt quantize` measured them there, see the model's card"


def chunks(network: Network, batch: Batch) -> Tensor:
    """Decoded action chunks float32[B, T, H, A] along recorded drives."""
    steps = batch.action.shape[1]
    hidden, _ = network(batch.codes[:, :steps], batch.values[:, :steps], batch.previous)
    return network.action_head.decode(network.action_head(hidden))


def action_error(bf16: Network, packed: Network, batch: Batch) -> ActionError:
    """Change of the actions on the same recorded states."""
    change = chunks(packed, batch) - chunks(bf16, batch)
    first = change[:, :, 0]
    return ActionError(
        _rms(change), float(change.abs().max()), _rms(first), float(first.abs().max())
    )


def _layers(bf16: Network, packed: Network, batch: Batch) -> Iterator[LayerError]:
    """Errors of every packed linear, in the order of the network."""
    theirs = {name: m for name, m in linears(packed).items() if m.weight is None}
    sums: dict[str, Tensor] = {name: torch.zeros(2, dtype=torch.float64) for name in theirs}
    with _outputs(bf16, theirs, sums):
        chunks(bf16, batch)
    mine = linears(bf16)
    for name, module in theirs.items():
        original = mine[name].weight
        if original is None:
            raise UsageError(f"{name}: the reference is packed itself; give the bf16 checkpoint")
        weight = original.float()
        error = _ratio(module.quantized().dequantize() - weight, weight)
        changed, power = sums[name].tolist()
        yield LayerError(
            name,
            module.quantized().format,
            error,
            -20 * math.log10(error) if error > 0 else None,
            math.sqrt(changed / power) if power > 0 else 0.0,
        )


@contextmanager
def _outputs(bf16: Network, packed: dict[str, Linear], sums: dict[str, Tensor]) -> Iterator[None]:
    """While it lasts, adds squared change and squared output of every layer called to ``sums``."""

    def watch(name: str, module: Linear) -> Any:
        def look(_: Linear, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            change = module(inputs[0]) - output
            sums[name] += torch.stack([t.double().square().sum() for t in (change, output)])

        return look

    own = linears(bf16)
    hooks = [own[name].register_forward_hook(watch(name, m)) for name, m in packed.items()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _ratio(change: Tensor, of: Tensor) -> float:
    power = _rms(of)
    return _rms(change) / power if power > 0 else 0.0


def _rms(x: Tensor) -> float:
    return float(x.double().square().mean().sqrt())
