"""The float versions of highway-env's road and traffic against highway-env's own classes."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("highway_env", reason="pip install 'wmrt[drive]'")

from highway_env.road.lane import StraightLane
from highway_env.road.road import Road, RoadNetwork
from highway_env.vehicle.behavior import IDMVehicle

from wmrt.envs.highway import HighwayEnv
from wmrt.envs.road import FastLane, FastNetwork, FastRoad, wrap_to_pi
from wmrt.envs.traffic import FastIDMVehicle


class PlainEnv(HighwayEnv):  # type: ignore[misc, unused-ignore]
    """The same environment on highway-env's unmodified road, lanes and drivers."""

    @classmethod
    def default_config(cls) -> dict:
        config = super().default_config()
        config["other_vehicles_type"] = "highway_env.vehicle.behavior.IDMVehicle"
        return config

    def _create_road(self) -> None:
        network = RoadNetwork.straight_road_network(self.config["lanes_count"], speed_limit=30)
        self.road = Road(network=network, np_random=self.np_random)


def test_types_in_use():
    fast, plain = HighwayEnv(), PlainEnv()
    assert isinstance(fast.road, FastRoad)
    assert all(isinstance(v, FastIDMVehicle) for v in fast.road.vehicles[1:])
    assert type(plain.road) is Road
    assert all(type(v) is IDMVehicle for v in plain.road.vehicles[1:])
    assert all(type(lane) is StraightLane for lane in plain.road.network.lanes_list())


def test_same_trajectories_as_highway_env(seed):
    """Positions agree to 1e-6 m after a whole episode: only libm and numpy roundings differ."""
    rng = np.random.default_rng(seed)
    fast, plain = HighwayEnv(), PlainEnv()
    steps = 0
    for episode in range(3):
        episode_seed = int(rng.integers(10**5))
        _, fast_info = fast.reset(seed=episode_seed)
        _, plain_info = plain.reset(seed=episode_seed)
        assert fast_info["state"] == plain_info["state"]
        done = False
        while not done:
            # Under the rules an episode runs to its end, under noise to a crash or off the road.
            action = fast.rule_action(fast.state(), fast.executed)
            if episode % 2:
                action = (0.05 * rng.standard_normal(), rng.uniform(0, 1))
            _, reward, terminated, truncated, _ = fast.step(action)
            other = plain.step(action)
            assert (terminated, truncated) == other[2:4]
            assert reward == pytest.approx(other[1], abs=1e-9)
            a, b = fast.telemetry(), plain.telemetry()
            np.testing.assert_allclose(a["others"], b["others"], rtol=0, atol=1e-6)
            assert (a["x"], a["y"]) == pytest.approx((b["x"], b["y"]), abs=1e-6)
            done = terminated or truncated
            steps += 1
    assert steps > 300


def test_lane_and_network_equal_highway_env(seed):
    rng = np.random.default_rng(seed)
    fast, plain = FastNetwork(3), RoadNetwork.straight_road_network(3, speed_limit=30)
    for a, b in zip(fast.lanes_list(), plain.lanes_list(), strict=True):
        assert isinstance(a, FastLane)
        assert (a.length, a.width, a.speed_limit) == (b.length, b.width, b.speed_limit)
        for _ in range(200):
            position = np.array([rng.uniform(-20, 10_020), rng.uniform(-8, 16)])
            heading, margin = rng.uniform(-7, 7), rng.uniform(0, 2)
            assert a.local_coordinates(position) == b.local_coordinates(position)
            assert a.on_lane(position, margin=margin) == bool(b.on_lane(position, margin=margin))
            assert a.after_end(position) == bool(b.after_end(position))
            assert fast.get_closest_lane_index(position, heading) == plain.get_closest_lane_index(
                position, heading
            )


def test_fast_lane_refuses_other_directions():
    with pytest.raises(ValueError, match=r"along \+x"):
        FastLane([0, 0], [0, 10])


def test_wrap_to_pi():
    assert wrap_to_pi(math.pi) == -math.pi
    assert wrap_to_pi(2 * math.pi + 0.5) == pytest.approx(0.5)


def test_ego_brakes_to_a_stop_and_never_reverses():
    env = HighwayEnv()
    env.reset(seed=3)
    for _ in range(120):
        _, _, terminated, truncated, info = env.step((0.0, -1.0))
        assert info["speed"] >= 0.0
        if terminated or truncated:
            break
    assert info["speed"] == 0.0


def test_ego_speed_stays_at_most_40():
    env = HighwayEnv({"vehicles_count": 0})
    env.reset(seed=3)
    for _ in range(100):
        _, _, _, _, info = env.step((0.0, 1.0))
    assert info["speed"] == pytest.approx(40.0)
