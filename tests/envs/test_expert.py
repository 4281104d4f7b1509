"""The expert's labels: shapes, limits, purity, and that it drives well."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("highway_env", reason="pip install 'wmrt[drive]'")

from wmrt.envs.drivers import evaluate_driver
from wmrt.envs.expert import RATE_SHARE, Expert
from wmrt.envs.highway import HighwayEnv, OccludedHighwayEnv
from wmrt.envs.planner import MANOEUVRES, Planner, Scene
from wmrt.envs.state import ACTIONS

DELTAS = np.array([dim.max_delta(0.1) for dim in ACTIONS.dims])
UP, DOWN = RATE_SHARE * DELTAS[:, 0], RATE_SHARE * DELTAS[:, 1]


def scene(lane=1, speed=25.0, others=(), y=None, heading=0.0) -> Scene:
    rows = np.array(others, np.float64).reshape(-1, 4)
    return Scene(x=0.0, y=4.0 * lane if y is None else y, speed=speed, heading=heading, others=rows)


def random_scene(rng: np.random.Generator) -> Scene:
    count = int(rng.integers(0, 21))
    lanes = rng.integers(0, 3, count)
    y = 4.0 * lanes + rng.uniform(-2, 2, count) * (rng.random(count) < 0.2)
    others = np.stack((rng.uniform(-150, 250, count), y, rng.uniform(0, 30, count), lanes), axis=1)
    return Scene(
        x=float(rng.uniform(0, 1000)),
        y=float(rng.uniform(-2, 10)),
        speed=float(rng.choice([0.0, rng.uniform(0, 40)])),
        heading=float(rng.uniform(-0.5, 0.5)),
        others=others,
    )


def test_labels_of_any_scene_are_finite_and_within_limits(seed):
    """Whoever drove before: each chunk starts within 60% of the rate limits of any last action."""
    rng = np.random.default_rng(seed)
    expert = Expert(ACTIONS, 0.1)
    for _ in range(150):
        at = random_scene(rng)
        previous = rng.uniform(-1, 1, 2).astype(np.float32)
        label = expert.label(at, previous, 8)
        assert label.action.shape == (2,) and label.action.dtype == np.float32
        assert label.chunks.shape == (len(MANOEUVRES), 8, 2) and label.chunks.dtype == np.float32
        assert label.weights.shape == (len(MANOEUVRES),) and label.weights.dtype == np.float32
        assert np.isfinite(label.chunks).all() and (np.abs(label.chunks) <= 1).all()
        assert label.weights.sum() == pytest.approx(1.0, abs=1e-6)
        assert (label.weights >= 0).all()
        start = np.broadcast_to(previous, (len(MANOEUVRES), 1, 2))
        change = np.diff(np.concatenate((start, label.chunks), axis=1).astype(np.float64), axis=1)
        assert (change <= UP + 1e-6).all() and (change >= -DOWN - 1e-6).all()
        np.testing.assert_array_equal(label.action, label.chunks[label.weights.argmax(), 0])
        again = expert.label(at, previous, 8)
        np.testing.assert_array_equal(label.chunks, again.chunks)
        np.testing.assert_array_equal(label.weights, again.weights)


@pytest.mark.parametrize(("lane", "missing"), [(0, -1), (2, 1)])
def test_no_lane_no_weight(lane, missing):
    label = Expert(ACTIONS, 0.1).label(scene(lane), np.zeros(2, np.float32), 8)
    weights = dict(zip(MANOEUVRES, label.weights, strict=True))
    assert all(weight == 0 for (shift, _), weight in weights.items() if shift == missing)


def test_decisions_in_plain_situations():
    slow_ahead = (30.0, 4.0, 15.0, 1.0)
    beside = [(d, 4.0 * lane, 25.0, float(lane)) for d in (-12.0, 0.0, 12.0) for lane in (0, 2)]
    decide = Planner().scores

    def best(*others):
        return MANOEUVRES[int(np.argmax(decide(scene(others=others))))]

    assert best() in [(0, 30.0), (1, 30.0)]  # open road: fast, and the right lane pays a little
    assert best(slow_ahead)[0] != 0
    assert best(slow_ahead, (0.0, 0.0, 25.0, 0.0))[0] == 1
    assert best(slow_ahead, (0.0, 8.0, 25.0, 2.0))[0] == -1
    assert best(slow_ahead, *beside)[0] == 0


def test_brakes_when_boxed_in():
    others = [(25.0, 4.0, 10.0, 1.0)]
    others += [(d, 4.0 * lane, 25.0, float(lane)) for d in (-12.0, 0.0, 12.0) for lane in (0, 2)]
    label = Expert(ACTIONS, 0.1).label(scene(others=others), np.zeros(2, np.float32), 8)
    chunk = label.chunks[label.weights.argmax()]
    assert chunk[-1, 1] < -0.9
    assert np.abs(chunk[:, 0]).max() < 0.05


def test_heading_for_follows_the_motion():
    assert scene(1).heading_for == 1
    assert scene(1, heading=0.15).heading_for == 2
    assert scene(1, y=5.5, heading=-0.05).heading_for == 1


def test_chunk_is_what_the_car_does(seed):
    """Without traffic the simulated chunk and its execution give the same next chunk."""
    env = HighwayEnv({"vehicles_count": 0})
    env.reset(seed=seed % 10**5)
    chunk = env.expert_label(horizon=8)
    best, lane = int(chunk.weights.argmax()), env.scene().lane
    for step in range(8):
        again = env.expert_label(horizon=1)
        assert env.scene().lane == lane  # 0.8 s is too short to leave a lane from its centre
        np.testing.assert_allclose(again.chunks[best, 0], chunk.chunks[best, step], atol=1e-5)
        env.step(chunk.chunks[best, step])


def test_labels_disturb_nothing(seed):
    seed %= 10**5
    quiet, labelled = HighwayEnv(), HighwayEnv()
    quiet.reset(seed=seed)
    labelled.reset(seed=seed)
    for _ in range(30):
        labelled.expert_label()
        action = quiet.rule_action(quiet.state(), quiet.executed)
        quiet.step(action)
        labelled.step(action)
    assert quiet.telemetry()["x"] == labelled.telemetry()["x"]
    np.testing.assert_array_equal(quiet.telemetry()["others"], labelled.telemetry()["others"])


def test_expert_sees_through_occlusion(seed):
    seed %= 10**5
    clear, occluded = HighwayEnv(), OccludedHighwayEnv()
    clear.reset(seed=seed)
    occluded.reset(seed=seed)
    for _ in range(20):
        a, b = clear.expert_label(), occluded.expert_label()
        np.testing.assert_array_equal(a.chunks, b.chunks)
        np.testing.assert_array_equal(a.weights, b.weights)
        clear.step(a.action)
        occluded.step(b.action)


def test_recovers_from_noise(seed):
    """Labels asked for while noise drives lead the car back to a lane's centre."""
    rng = np.random.default_rng(seed)
    env = HighwayEnv({"vehicles_count": 0, "initial_lane_id": 1})
    for _ in range(5):
        env.reset(seed=int(rng.integers(10**5)))
        for _ in range(6):
            env.step(rng.uniform(-0.6, 0.6, 2))
        for _ in range(45):
            _, _, terminated, _, _ = env.step(env.expert_label(1).action)
            assert not terminated
        state = env.state()
        assert abs(state["lane_offset"]) < 0.3 and abs(state["heading"]) < 0.03


def test_drives_better_than_rules_and_never_breaks_a_rate_limit():
    """100 seeds: expert 25.8 +-0.3, rules 22.8 +-0.2, random 3.9 +-0.5; here a few of them."""
    seeds = range(600_000, 600_004)
    expert = evaluate_driver("expert", seeds, processes=2)
    rule = evaluate_driver("rule", seeds, processes=1)
    returns = {
        name: np.mean([r["return"] for r in rows])
        for name, rows in (("expert", expert), ("rule", rule))
    }
    assert returns["expert"] > returns["rule"] + 1.0
    speeds = [np.mean([r["mean_speed"] for r in rows]) for rows in (expert, rule)]
    assert speeds[0] > 0.95 * speeds[1]
    assert sum(r["crashed"] or r["offroad"] for r in expert) == 0
    assert all(r["over_rate"] == 0.0 for r in expert + rule)
    assert all(math.isfinite(r["return"]) and r["steps"] == 300 for r in expert)
