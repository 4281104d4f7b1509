"""Drives of a robot of one's own, written as a recording that training reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wmrt.core.errors import StateError, UsageError
from wmrt.core.files import require_writable
from wmrt.core.types import ActionSpec
from wmrt.model.schema import StateSchema
from wmrt.train.dataset import META, SHARD, Episode, Meta, save_shard, shard_path


@dataclass(frozen=True)
class Log:
    """One drive, by whoever is to be imitated: a person, a planner, a controller.

    Attributes:
        states: n + 1 states, the last one after the last action.
        actions: n actions that were sent, float[A] each in [-1, 1] (`ActionDim.to_normalised`).
        rewards: n rewards, or None where nobody counted.
        terminated: the last action ended the drive (a crash), not the end of the recording.
    """

    states: Sequence[Mapping[str, Any]]
    actions: Sequence[Sequence[float]] | NDArray[np.float32]
    rewards: Sequence[float] | None = None
    terminated: bool = False


def record(
    folder: Path,
    schema: StateSchema,
    actions: ActionSpec,
    period: float,
    logs: Iterable[Log],
    *,
    name: str = "robot",
    horizon: int = 8,
) -> int:
    """Write ``logs`` to ``folder`` for `wmrt train`; returns the number of steps.

    Args:
        folder: must not hold a recording yet.
        period: seconds between two states.
        name: of the robot or the task; stands in the model card.
        horizon: actions ahead that the model learns to plan, `ModelConfig.chunk`. What was sent is
            what should have been sent: the plan of a step is what followed it.

    Raises:
        UsageError: a log with other numbers of states, actions and rewards, an action out of its
            range, or a state that the schema finds unfit; the message says where. Also a folder
            that holds a recording, or cannot be written.
    """
    require_writable(folder)
    if (folder / META).exists():
        raise UsageError(f"{folder} holds a recording already; give another folder")
    if horizon < 1:
        raise UsageError(f"horizon must be at least 1, got {horizon}")
    episodes = [_episode(schema, actions, log, number, horizon) for number, log in enumerate(logs)]
    if not episodes:
        raise UsageError("logs: none given; a recording needs at least one drive")
    folder.mkdir(parents=True, exist_ok=True)
    for start in range(0, len(episodes), SHARD):
        block = episodes[start : start + SHARD]
        save_shard(shard_path(folder, start, len(block)), block)
    # Last: without it there is no recording.
    Meta(name, schema, actions, period, horizon, ("log",), ()).write(folder)
    return sum(len(episode) for episode in episodes)


def _episode(
    schema: StateSchema, actions: ActionSpec, log: Log, number: int, horizon: int
) -> Episode:
    where = f"log {number}"
    sent = _sent(where, actions, log.actions)
    steps = len(sent)
    rewards = np.zeros(steps) if log.rewards is None else np.asarray(log.rewards, np.float64)
    if len(log.states) != steps + 1 or rewards.shape != (steps,):
        raise UsageError(
            f"{where}: {len(log.states)} states, {steps} actions and {rewards.size} rewards; a "
            "drive of n actions has n + 1 states and n rewards"
        )
    if not np.isfinite(rewards).all():
        raise UsageError(f"{where}: rewards must be finite")
    ahead = np.minimum(np.arange(steps)[:, None] + np.arange(horizon), steps - 1)
    return Episode(
        q=np.stack([_q(f"{where}, state {i}", schema, s) for i, s in enumerate(log.states)]),
        action=sent,
        chunks=sent[ahead][:, None],
        weights=np.ones((steps, 1), np.float32),
        reward=rewards.astype(np.float32),
        terminated=bool(log.terminated),
        seed=number,
        driver=0,
    )


def _sent(where: str, spec: ActionSpec, given: Any) -> NDArray[np.float32]:
    try:
        sent = np.asarray(given, np.float32)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{where}: actions are no array of numbers: {error}") from None
    if sent.ndim != 2 or sent.shape[1] != len(spec) or not len(sent):
        raise UsageError(
            f"{where}: actions of shape {list(sent.shape)}; expected [n, {len(spec)}] for "
            f"{', '.join(spec.names)}, n at least 1"
        )
    if not np.all(np.abs(sent) <= 1):  # also for NaN
        raise UsageError(
            f"{where}: actions must be in [-1, 1]; ActionDim.to_normalised makes them so"
        )
    return sent


def _q(where: str, schema: StateSchema, state: Mapping[str, Any]) -> NDArray[np.int64]:
    try:
        q, issues = schema.quantize(state)
    except StateError as error:
        raise UsageError(f"{where}: {error}") from None
    unfit = [issue.message for issue in issues if issue.invalid]
    if unfit:
        raise UsageError(f"{where}: {'; '.join(unfit[:3])}")
    return q
