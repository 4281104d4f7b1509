"""The environments as Gymnasium sees them: spaces, determinism, timing, errors, rendering."""

from __future__ import annotations

import hashlib
import math
import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

pytest.importorskip("highway_env", reason="pip install 'wmrt[drive]'")

from wmrt.core.errors import StateError
from wmrt.envs.state import GROUPS, LANES, NUMERIC_NAMES, state_from_observation

IDS = ["wmrt/Highway-v0", "wmrt/HighwayOccluded-v0"]


def make(name: str, **kwargs):
    return gymnasium.make(f"wmrt.envs:{name}", **kwargs)


@pytest.mark.parametrize("name", IDS)
def test_check_env(name):
    """Warnings are errors in this test run."""
    check_env(make(name, render_mode="rgb_array").unwrapped)


@pytest.mark.parametrize("name", IDS)
def test_schema_accepts_every_state(name, seed):
    env = make(name)
    unwrapped = env.unwrapped
    schema = unwrapped.state_schema
    assert [c.field for c in schema.columns] == list(unwrapped.state())
    rng = np.random.default_rng(seed)
    unknown = 0
    for _ in range(3):
        _, info = env.reset(seed=int(rng.integers(10**5)))
        for _ in range(60):
            encoded = schema.encode(info["state"])
            assert {issue.kind for issue in encoded.issues} <= {"range", "empty"}
            unknown += sum(value is None for value in info["state"].values())
            assert info["state"] == unwrapped.state()
            action = (0.1 * rng.standard_normal(), 0.3 * rng.standard_normal())
            _, _, terminated, _, info = env.step(action)
            if terminated:
                break
    assert (unknown > 0) == (name == IDS[1])


def test_observation_holds_the_state(seed):
    env = make(IDS[1])
    observed, info = env.reset(seed=seed)
    for _ in range(20):
        assert env.observation_space.contains(observed)
        back = state_from_observation(observed)
        assert list(back) == list(info["state"])
        for name, value in info["state"].items():
            if name == "lane" or value is None:
                assert back[name] == value
            else:
                assert back[name] == pytest.approx(value, rel=1e-6, abs=1e-6)
        observed, _, _, _, info = env.step(np.zeros(2, np.float32))


def test_episode_is_30_seconds_of_exactly_10_hz():
    env = make(IDS[0]).unwrapped
    assert env.period == 0.1
    env.reset(seed=7)
    total, steps, truncated = 0.0, 0, False
    while not truncated:
        _, reward, terminated, truncated, _info = env.step(
            env.rule_action(env.state(), env.executed)
        )
        assert not terminated
        assert 0.0 <= reward <= 0.1 + 1e-12
        total += reward
        steps += 1
    assert steps == 300
    assert 15.0 < total <= 30.0
    assert env.config["simulation_frequency"] == env.config["policy_frequency"] == 10


def test_action_is_physical_steering_then_acceleration():
    env = make(IDS[0]).unwrapped
    env.reset(seed=1)
    before = env.telemetry()
    env.step((0.0, 0.5))
    after = env.telemetry()
    assert after["speed"] - before["speed"] == pytest.approx(0.1 * 2.5)
    assert after["heading"] == 0.0
    env.step((1.0, 0.0))
    slip = math.atan(0.5 * math.tan(0.06))
    assert env.telemetry()["heading"] == pytest.approx(after["speed"] * math.sin(slip) / 2.5 * 0.1)
    env.step((7.0, -9.0))
    assert env.executed.tolist() == [1.0, -1.0]


@pytest.mark.parametrize("action", [(math.nan, 0.0), (0.0, math.inf), (0.0, -math.inf)])
def test_non_finite_action_is_refused_and_changes_nothing(action):
    env = make(IDS[1]).unwrapped
    env.reset(seed=1)
    before = env.telemetry(), env.state()
    with pytest.raises(StateError, match="not finite"):
        env.step(action)
    after = env.telemetry(), env.state()
    assert before[0]["x"] == after[0]["x"]
    assert before[1] == after[1]


@pytest.mark.parametrize("action", [None, (0.0,), (0.0, 0.0, 0.0), ("a", 0.0), 3])
def test_malformed_action_is_refused(action):
    env = make(IDS[0]).unwrapped
    with pytest.raises(StateError, match="expected 2 numbers"):
        env.step(action)


def test_leaving_the_road_terminates():
    env = make(IDS[0], config={"vehicles_count": 0}).unwrapped
    env.reset(seed=2)
    for _ in range(60):
        _, reward, terminated, _, info = env.step((-0.5, 0.0))
        if terminated:
            break
    assert terminated and info["offroad"] and not info["crashed"]
    assert reward == 0.0


def test_collision_terminates():
    env = make(IDS[0]).unwrapped
    for episode in range(5):
        env.reset(seed=episode)
        for _ in range(300):
            _, _, terminated, _, info = env.step((0.0, 0.3))
            if terminated:
                break
        assert terminated and info["crashed"] and not info["offroad"]
        assert env.telemetry()["crashed"]


def trace(name: str, seed: int, steps: int = 80) -> str:
    """A digest of everything that a fixed drive produces."""
    env = make(name).unwrapped
    digest = hashlib.sha256()
    for episode in (seed, seed + 1):
        env.reset(seed=episode)
        rng = np.random.default_rng(episode)
        for _ in range(steps):
            action = env.rule_action(env.state(), env.executed)
            action = action + 0.02 * rng.standard_normal(2).astype(np.float32)
            _, reward, terminated, _, info = env.step(action)
            t = env.telemetry()
            digest.update(repr((reward, info["state"], t["x"], t["y"], t["heading"])).encode())
            digest.update(t["others"].tobytes())
            if terminated:
                break
    return digest.hexdigest()


@pytest.mark.parametrize("name", IDS)
def test_same_seed_same_drive_in_any_process(name, seed):
    seed %= 10**5
    first = trace(name, seed)
    assert trace(name, seed) == first
    assert trace(name, seed + 50) != first
    code = (
        f"import importlib.util as u; s = u.spec_from_file_location('t', {__file__!r}); "
        f"m = u.module_from_spec(s); s.loader.exec_module(m); print(m.trace({name!r}, {seed}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == first


def test_occlusion_leaves_the_traffic_alone_and_hides_half(seed):
    """1.0 s dwell, off half the time: 120 s x 6 groups; bounds are 5 sigma of the process."""
    clear, occluded = make(IDS[0]).unwrapped, make(IDS[1]).unwrapped
    rng = np.random.default_rng(seed)
    off, switches, steps = 0, 0, 0
    for _ in range(4):
        episode = int(rng.integers(10**5))
        clear.reset(seed=episode)
        occluded.reset(seed=episode)
        last = None
        done = False
        while not done:
            state, seen = clear.state(), occluded.state()
            hidden = [seen[f"{group}_gap"] is None for group in GROUPS]
            for group, is_off in zip(GROUPS, hidden, strict=True):
                for field in (f"{group}_gap", f"{group}_dv"):
                    assert seen[field] == (None if is_off else state[field])
            assert [seen[n] for n in ("ego_speed", "lane_offset", "heading", "lane")] == [
                state[n] for n in ("ego_speed", "lane_offset", "heading", "lane")
            ]
            off += sum(hidden)
            switches += (
                0 if last is None else sum(a != b for a, b in zip(hidden, last, strict=True))
            )
            last = hidden
            steps += 1
            action = clear.rule_action(state, clear.executed)
            _, _, terminated, truncated, _ = clear.step(action)
            occluded.step(action)
            done = terminated or truncated
    groups = len(GROUPS) * steps
    # Correlation time 0.5 s: about groups / 10 independent samples of a fair coin.
    assert abs(off / groups - 0.5) < 5 * 0.5 / math.sqrt(groups / 10)
    assert abs(switches / groups - 0.1) < 5 * math.sqrt(0.1 * 0.9 / groups)


def test_side_without_a_lane_and_nobody_in_range():
    env = make(IDS[0], config={"vehicles_count": 0, "initial_lane_id": 0}).unwrapped
    env.reset(seed=0)
    state = env.state()
    assert state["lane"] == LANES[0]
    assert (state["left_front_gap"], state["left_front_dv"]) == (0.0, 0.0)
    assert (state["right_rear_gap"], state["right_rear_dv"]) == (100.0, 0.0)
    assert (state["front_gap"], state["front_dv"]) == (100.0, 0.0)


@pytest.mark.parametrize("driver", [None, "dummy"])
def test_rgb_frames_show_the_road(driver, monkeypatch):
    """Without a screen, and also where the user already chose SDL's dummy driver."""
    monkeypatch.delenv("SDL_VIDEODRIVER", raising=False)
    if driver:
        monkeypatch.setenv("SDL_VIDEODRIVER", driver)
    env = make(IDS[0], render_mode="rgb_array")
    env.reset(seed=4)
    frame = env.render()
    for _ in range(5):
        env.step(np.array([0.0, 0.5], np.float32))
    later = env.render()
    env.close()
    assert frame.shape == (150, 600, 3) and frame.dtype == np.uint8
    assert len(np.unique(frame.reshape(-1, 3), axis=0)) > 3
    assert (frame != later).any()


def test_numeric_names_are_the_schemas():
    columns = make(IDS[0]).unwrapped.state_schema.columns
    assert tuple(c.name for c in columns if c.kind == "numeric") == NUMERIC_NAMES
