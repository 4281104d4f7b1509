"""Open-loop errors: zero for a model that knows the world, persistence as computed by hand."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.model.networks import build
from tests.train.toys import ACTIONS, HORIZON, SCHEMA, episode, episodes, network_for
from wmrt.core.errors import UsageError
from wmrt.model.heads import Prediction
from wmrt.model.network import Network, Ring
from wmrt.model.schema import StateSchema, category, numeric
from wmrt.train.dataset import Episode, Recording
from wmrt.train.evaluate import HORIZONS, open_loop, starts

COUNTER = StateSchema(
    {
        "x": numeric("m", -100, 100, decimals=2, buckets=16),
        "still": numeric("m", 0, 10, decimals=1, buckets=4),
        "side": category(["left", "right"]),
    },
    neutral=[0.0],
)


def counter(seed: int, steps: int, terminated: bool = False) -> Episode:
    """x moves by exactly the action, a multiple of 0.25; side is the sign of x."""
    rng = np.random.default_rng(seed)
    action = rng.integers(-4, 5, (steps, 1)) / 4
    x = np.concatenate([[0.0], np.cumsum(action)]) + rng.integers(-4, 5)
    q = np.stack([np.round(x * 100), np.full(steps + 1, 42), 1 + (x > 0)], 1).astype(np.int64)
    chunks = np.zeros((steps, 1, HORIZON, 1), np.float32)
    ones = np.ones((steps, 1), np.float32)
    return Episode(q, action.astype(np.float32), chunks, ones, ones[:, 0], terminated, seed, 0)


@dataclass
class Told(Prediction):
    """A prediction that only carries the action."""

    action: Tensor = None  # type: ignore[assignment]


class Knowing(Network):
    """Knows that x moves by the action, or with ``wrong`` by that much more."""

    wrong = 0.0

    def step(self, codes: Tensor, values: Tensor, previous: Tensor, ring: Ring,
             generator: torch.Generator | None = None) -> Tensor:  # fmt: skip
        return values

    def predict(self, hidden: Tensor, action: Tensor) -> Prediction:
        following = hidden[:, 0] + action[:, 0] + self.wrong
        side = torch.stack([torch.full_like(following, -9.0), -following + 1e-3, following], 1)
        self.dynamics.truth = torch.stack([following, hidden[:, 1]], 1)
        zero = torch.zeros(len(action))
        return Prediction(zero[:, None, None].expand(-1, 2, 21), zero[:, None].expand(-1, 2),
                          side, zero[:, None].expand(-1, 11), zero)  # fmt: skip


def knowing(wrong: float = 0.0) -> Network:
    network = build(0, replace_actions(COUNTER))
    network.__class__ = Knowing
    network.wrong = wrong  # type: ignore[assignment]

    def decode(p: Prediction, now: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
        return network.dynamics.truth, torch.ones_like(known)

    network.dynamics.decode_state = decode  # type: ignore[method-assign]
    return network


def replace_actions(schema: StateSchema) -> StateSchema:
    """`build` makes networks of two actions; its neutral needs two numbers."""
    return StateSchema(schema.fields, neutral=[0.0, 0.0])


def test_a_model_that_knows_the_world_has_no_error() -> None:
    data = Recording.build([counter(s, 70) for s in range(4)], COUNTER)
    rows = open_loop(knowing(), data)
    assert [r.steps for r in rows] == list(HORIZONS) == [1, 5, 15]
    for row in rows:
        assert row.model < 1e-6 and row.category_model == 0.0
        assert row.persistence > 0.01 and row.category_persistence >= 0.0
        assert row.windows == 4 * len(range(0, 70 - 47 + 1, 20))
    assert rows[0].persistence < rows[1].persistence < rows[2].persistence


def by_hand(made: list[Episode], context: int, stride: int, steps: int) -> tuple[float, float]:
    """Persistence error of x in standard deviations over both columns, and of the side."""
    windows = [(e, s) for e in made for s in range(0, len(e) - context - 15 + 1, stride)]
    seen = np.concatenate([e.q[s : s + context + 16, 0] for e, s in windows]) / 100
    now = np.array([e.q[s + context - 1] for e, s in windows])
    then = np.array([e.q[s + context - 1 + steps] for e, s in windows])
    error = (now[:, 0] - then[:, 0]) / 100 / seen.std(ddof=1)
    return float(np.sqrt((error**2).sum() / (2 * len(error)))), float(
        (now[:, 2] != then[:, 2]).mean()
    )


@pytest.mark.parametrize("context", [4, 32])
def test_persistence_equals_the_hand_computation(context: int, seed: int) -> None:
    made = [counter(seed % 1000 + s, n) for s, n in enumerate((70, 48, 90))]
    rows = open_loop(knowing(), Recording.build(made, COUNTER), context=context, stride=7)
    for row in rows:
        numbers, sides = by_hand(made, context, 7, row.steps)
        assert abs(row.persistence - numbers) < 1e-4
        assert abs(row.category_persistence - sides) < 1e-6


def test_a_model_that_drifts_has_its_drift_as_error(seed: int) -> None:
    made = [counter(seed % 1000 + s, 80) for s in range(3)]
    rows = open_loop(knowing(wrong=0.5), Recording.build(made, COUNTER), stride=7)
    windows = [(e, s) for e in made for s in range(0, 80 - 47 + 1, 7)]
    spread = np.concatenate([e.q[s : s + 48, 0] for e, s in windows]).std(ddof=1) / 100
    for row in rows:
        assert abs(row.model - 0.5 * row.steps / spread / np.sqrt(2)) < 1e-3


def test_windows_lie_within_drives_and_end_before_a_crash() -> None:
    made = [counter(0, 50), counter(1, 50, terminated=True), counter(2, 46), counter(3, 47)]
    episode_of, first = starts(Recording.build(made, COUNTER), 32, 15, 1)
    got = list(zip(episode_of.tolist(), first.tolist(), strict=True))
    assert got == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2), (3, 0)]


def test_too_short_drives_and_no_numbers_are_said_so() -> None:
    with pytest.raises(UsageError, match="no episode is 47 steps long"):
        open_loop(knowing(), Recording.build([counter(0, 46)], COUNTER))
    sides = StateSchema({"side": category(["left", "right"])}, neutral=[0.0, 0.0])
    made = replace(counter(0, 60), q=counter(0, 60).q[:, 2:])
    with pytest.raises(UsageError, match="no numbers"):
        open_loop(build(0, sides), Recording.build([made], sides))


def test_a_real_network_gives_finite_errors_also_for_what_never_moves(seed: int) -> None:
    made = episodes(4, 60)
    for e in made:
        e.q[:, 1] = 0
    network = network_for(made, seed)
    rows = open_loop(network, Recording.build(made, network.schema), context=8)
    for row in rows:
        assert np.isfinite([row.model, row.persistence]).all()
        assert 0 <= row.category_model <= 1
    assert len(ACTIONS) == 1 and episode(0, 3).q.shape == (4, len(SCHEMA.columns))
