"""Drives one episode and keeps what the results and the report need of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from wmrt.core import measure
from wmrt.core.types import ActionSpec

if TYPE_CHECKING:
    from wmrt.cli.driving.reel import Reel

#: Breaker levels: validity, range, rate, consensus.
LEVELS = (0, 1, 2, 3)
#: Other vehicles are kept in the trace from 70 m behind to 130 m ahead: what a screen shows.
BEHIND, AHEAD = 70.0, 130.0


@dataclass(frozen=True)
class Outcome:
    """One step of an arm.

    Attributes:
        action: float32[A] in [-1, 1], what is sent to the environment.
        step_ns: duration of the policy's own step; None when it was not asked.
        act_ns: duration from state to action, everything included.
        tripped: breaker levels that tripped; source: where the action came from.
        state: of the breakers after the step; None without breakers.
        late: the deadline was missed; None when there is none.
    """

    action: NDArray[np.float32]
    step_ns: int | None
    act_ns: int
    tripped: tuple[int, ...] = ()
    source: str = "policy"
    state: str | None = None
    late: bool | None = None


class Arm(Protocol):
    """Something that drives: a policy, behind breakers or not."""

    @property
    def controlled(self) -> bool:
        """Whether breakers stand between the policy and the car."""
        ...

    def reset(self, seed: int) -> None: ...

    def act(self, state: Mapping[str, Any]) -> Outcome: ...

    def told(self) -> dict[str, Any]:
        """What ``channels`` did and cost, and what the ``monitor`` found, since `reset`; see
        `Controller.stats`. Empty without breakers."""
        ...


@dataclass
class Episode:
    """What happened under one seed.

    Attributes:
        row: the seed's line of ``results.episodes``.
        step_ns, act_ns: durations of every step.
        trace: per-step columns for the report, plain data.
        reel: what a film needs, if one was asked for.
    """

    row: dict[str, Any]
    step_ns: list[int] = field(default_factory=list)
    act_ns: list[int] = field(default_factory=list)
    trace: dict[str, Any] = field(default_factory=dict)
    reel: Reel | None = field(default=None, compare=False)


#: Gets the number of steps driven and the last one's outcome.
OnStep = Callable[[int, Outcome], object]


def drive_episode(env: Any, arm: Arm, seed: int, on_step: OnStep | None = None) -> Episode:
    """Drive from ``reset(seed)`` to the end of the episode."""
    _, info = env.reset(seed=seed)
    arm.reset(seed)
    outcomes: list[Outcome] = []
    rewards: list[float] = []
    views = [_view(env.telemetry())]
    ended = False
    while not ended:
        outcome = arm.act(info["state"])
        _, reward, terminated, truncated, info = env.step(outcome.action)
        outcomes.append(outcome)
        rewards.append(float(reward))
        views.append(_view(env.telemetry()))
        ended = bool(terminated or truncated)
        if on_step is not None:
            on_step(len(outcomes), outcome)
    crashed, offroad = bool(info.get("crashed")), bool(info.get("offroad"))
    return Episode(
        row=_row(seed, views, rewards, outcomes, arm, crashed, offroad),
        step_ns=[o.step_ns for o in outcomes if o.step_ns is not None],
        act_ns=[o.act_ns for o in outcomes],
        trace=_trace(views, rewards, outcomes, env.action_spec),
    )


def milliseconds(durations_ns: Sequence[int]) -> list[float]:
    return [duration / 1e6 for duration in durations_ns]


def _view(telemetry: Mapping[str, Any]) -> dict[str, Any]:
    """Position and surroundings at one instant; others as flat decimetres relative to the car."""
    x, y = float(telemetry["x"]), float(telemetry["y"])
    near = []
    for other in np.asarray(telemetry["others"], np.float64).reshape(-1, 4):
        if -BEHIND < other[0] - x < AHEAD:
            near += [round((other[0] - x) * 10), round(other[1] * 10)]
    return {
        "x": x,
        "y": y,
        "speed": float(telemetry["speed"]),
        "heading": float(telemetry["heading"]),
        "others": near,
    }


def _row(
    seed: int,
    views: Sequence[Mapping[str, Any]],
    rewards: Sequence[float],
    outcomes: Sequence[Outcome],
    arm: Arm,
    crashed: bool,
    offroad: bool,
) -> dict[str, Any]:
    timing = measure.summary(milliseconds([o.step_ns for o in outcomes if o.step_ns is not None]))
    speeds = [view["speed"] for view in views[1:]]
    row = {
        "seed": seed,
        "return": math.fsum(rewards),
        "steps": len(outcomes),
        "crashed": crashed,
        "offroad": offroad,
        "mean_speed": math.fsum(speeds) / len(speeds),
        "distance_m": views[-1]["x"] - views[0]["x"],
        "trips": None,
        "deadline_misses": None,
        "fallback_steps": None,
        "degraded_steps": None,
        "openings": None,
        "latched": None,
        "channels": None,
        "monitor": None,
        "step_ms": {key: timing[key] for key in ("p50", "p99", "max")},
    }
    if arm.controlled:
        row["trips"] = {str(n): sum(n in o.tripped for o in outcomes) for n in LEVELS}
        late = [o.late for o in outcomes if o.late is not None]
        row["deadline_misses"] = sum(late) if late else None
        row["fallback_steps"] = sum(o.source == "fallback" for o in outcomes)
        row["degraded_steps"] = sum(o.state == "degraded" for o in outcomes)
        row["openings"] = _openings([o.state for o in outcomes])
        row["latched"] = any(o.state == "latched" for o in outcomes)
        row.update(arm.told())
    return row


def _openings(states: Sequence[str | None]) -> int:
    """How often the breakers opened or latched while the policy drove."""
    stopped = [state in ("open", "latched") for state in states]
    before = [False, *stopped[:-1]]
    return sum(now and not then for now, then in zip(stopped, before, strict=True))


def _trace(
    views: Sequence[Mapping[str, Any]],
    rewards: Sequence[float],
    outcomes: Sequence[Outcome],
    actions: ActionSpec,
) -> dict[str, Any]:
    """N + 1 instants of position, N steps of everything else; rounded to what a plot can show."""
    sent = [list(actions.to_physical(outcome.action.tolist()).values()) for outcome in outcomes]
    return {
        "x": [round(view["x"], 1) for view in views],
        "y": [round(view["y"], 2) for view in views],
        "speed": [round(view["speed"], 2) for view in views],
        "heading": [round(view["heading"], 3) for view in views],
        "others": [view["others"] for view in views],
        "reward": [round(reward, 4) for reward in rewards],
        "actions": [[round(a[i], 4) for a in sent] for i in range(len(actions))],
        "tripped": [sum(1 << level for level in outcome.tripped) for outcome in outcomes],
        "source": [outcome.source for outcome in outcomes],
        "state": [outcome.state for outcome in outcomes],
        "late": [int(outcome.late or 0) for outcome in outcomes],
        "ms": [None if o.step_ns is None else round(o.step_ns / 1e6, 2) for o in outcomes],
    }
