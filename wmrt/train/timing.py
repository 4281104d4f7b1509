"""Two models timed side by side: in turns, in one run, so that both see the same machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from wmrt.core import measure
from wmrt.runtime import WorldModel

ROUNDS, STEPS = 40, 25


def side_by_side(
    bf16: WorldModel,
    packed: WorldModel,
    states: Sequence[Mapping[str, Any]],
    rounds: int = ROUNDS,
    steps: int = STEPS,
) -> dict[str, Any]:
    """Median step times in ms of both, and per round the ratio bf16 / packed (5th, 50th, 95th
    percentile). A round is ``steps`` steps of one and then of the other, who goes first in turns;
    one round before the first is not counted. Only the network's part of a step is timed."""
    both: dict[str, tuple[WorldModel, list[float]]] = {"bf16": (bf16, []), "packed": (packed, [])}
    for turn in range(rounds + 1):
        order = list(both.values())
        for model, times in order if turn % 2 else reversed(order):
            taken = _block(model, states, turn * steps, steps)
            if turn:
                times.append(taken)
    ratios = sorted(b / p for b, p in zip(both["bf16"][1], both["packed"][1], strict=True))
    return {
        "rounds": rounds,
        "steps_per_round": steps,
        **{f"{name}_ms": measure.summary(times) for name, (_, times) in both.items()},
        **{f"ratio_p{q}": measure.percentile(ratios, q) for q in (5, 50, 95)},
    }


def _block(model: WorldModel, states: Sequence[Mapping[str, Any]], start: int, steps: int) -> float:
    """Median duration in ms of the network's part of ``steps`` steps."""
    taken = [
        model.step(states[(start + i) % len(states)]).timing_ns["network"] / 1e6
        for i in range(steps)
    ]
    return measure.percentile(sorted(taken), 50)
