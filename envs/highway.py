"""`wmrt/Highway-v0` and `wmrt/HighwayOccluded-v0`: dense traffic on three lanes at exactly 10 Hz.

highway-env 1.12 (Leurent, "An Environment for Autonomous Driving Decision-Making") simulates; this
module fixes the control period, the continuous actions and what the car perceives. Reward per step
is highway-env's normalised reward (speed between 20 and 30 m/s weighs 0.4, the right lane 0.1, a
collision -1, mapped to 0..1) times 0.1 s: 30 s without a collision earn at most 30.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from wmrt.core.extras import require
from wmrt.core.types import ActionSpec
from wmrt.envs.expert import Expert, ExpertLabel, Scene
from wmrt.envs.rules import rule_action
from wmrt.envs.sensors import SensorDropout
from wmrt.envs.state import (
    ACTIONS,
    GROUPS,
    LANES,
    PERIOD,
    Car,
    highway_schema,
    observation,
    observation_space,
    perceive,
    require_action,
)
from wmrt.model.schema import StateSchema

require("highway_env", "drive")

from highway_env.envs.common.action import ContinuousAction  # type: ignore[import-untyped]  # noqa: E402
from highway_env.envs.common.observation import ObservationType  # type: ignore[import-untyped]  # noqa: E402
from highway_env.envs.highway_env import HighwayEnvFast  # type: ignore[import-untyped]  # noqa: E402

from wmrt.envs.road import straight_road  # noqa: E402
from wmrt.envs.traffic import EgoVehicle  # noqa: E402

EPISODE_STEPS = 300  # 30 s


class _Perception(ObservationType):  # type: ignore[misc]
    """Hands highway-env the observation that the environment computes."""

    def space(self) -> spaces.Dict:
        space: spaces.Dict = self.env.space_of_observation
        return space

    def observe(self) -> dict[str, np.ndarray]:
        return self.env.observe()  # type: ignore[no-any-return]


class _Pedals(ContinuousAction):  # type: ignore[misc]
    """(steering, acceleration) in [-1, 1], in wmrt's order and physical ranges."""

    @property
    def vehicle_class(self) -> type[EgoVehicle]:
        return EgoVehicle

    def get_action(self, action: Sequence[float]) -> dict[str, float]:
        return ACTIONS.to_physical(action)


class HighwayEnv(HighwayEnvFast):  # type: ignore[misc]
    """Drive for 30 s among 20 vehicles; a collision or leaving the road ends the episode.

    Action: float32[2], (steering, acceleration) in [-1, 1], see `ACTIONS`; clipped to the box, and
    refused with `StateError` when not finite. Observation: `state.observation_space`; the plain
    typed state is ``info["state"]``.
    """

    period = PERIOD
    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["human", "rgb_array"], "render_fps": 10}

    def __init__(
        self, config: Mapping[str, Any] | None = None, render_mode: str | None = None
    ) -> None:
        self.space_of_observation = observation_space()
        self.space_of_action = spaces.Box(-1.0, 1.0, (len(ACTIONS),), np.float32)
        self.executed = np.zeros(len(ACTIONS), np.float32)
        self._expert = Expert(ACTIONS, PERIOD)
        super().__init__(config=dict(config or {}), render_mode=render_mode)

    @classmethod
    def default_config(cls) -> dict[str, Any]:
        config: dict[str, Any] = super().default_config()
        config.update(
            simulation_frequency=round(1 / PERIOD),
            policy_frequency=round(1 / PERIOD),
            duration=EPISODE_STEPS * PERIOD,
            lanes_count=len(LANES),
            vehicles_count=20,
            vehicles_density=1.0,
            offroad_terminal=True,
            other_vehicles_type="wmrt.envs.traffic.FastIDMVehicle",
        )
        return config

    # What training and the controller need (`EnvProtocol`).

    @property
    def state_schema(self) -> StateSchema:
        return highway_schema()

    @property
    def action_spec(self) -> ActionSpec:
        return ACTIONS

    @property
    def sensor_groups(self) -> tuple[tuple[str, ...], ...]:
        """Fields that one sensor gives, and that are lost together with it."""
        return tuple((f"{group}_gap", f"{group}_dv") for group in GROUPS)

    def state(self) -> dict[str, Any]:
        """The current typed state: field name to float, str or None (unknown)."""
        return dict(self._state)

    def expert_label(self, horizon: int = 8) -> ExpertLabel:
        """What the privileged expert would do now; see `Expert.label`."""
        return self._expert.label(self.scene(), self.executed, horizon)

    def rule_action(
        self, state: Mapping[str, Any], previous_action: Sequence[float] | np.ndarray
    ) -> np.ndarray:
        """IDM + MOBIL from the state dict alone; float32[2]. See `rules.rule_action`."""
        return rule_action(state, previous_action)

    def scene(self) -> Scene:
        """The true scene (privileged): nothing hidden, and where every driver wants to go."""
        ego = self.vehicle
        rows = [
            (v.position[0], v.position[1], v.speed * math.cos(v.heading), v.target_lane_index[2])
            for v in self.road.vehicles
            if v is not ego
        ]
        return Scene(
            x=float(ego.position[0]),
            y=float(ego.position[1]),
            speed=float(ego.speed),
            heading=float(ego.heading),
            others=np.array(rows, np.float64).reshape(-1, 4),
        )

    def telemetry(self) -> dict[str, Any]:
        """For plots: x, y (m), speed (m/s), heading (rad), lane, crashed, on_road, executed action,
        and ``others`` float64[N, 4] of x, y, speed, heading."""
        ego = self.vehicle
        others = [
            (v.position[0], v.position[1], v.speed, v.heading)
            for v in self.road.vehicles
            if v is not ego
        ]
        return {
            "x": float(ego.position[0]),
            "y": float(ego.position[1]),
            "speed": float(ego.speed),
            "heading": float(ego.heading),
            "lane": int(ego.lane_index[2]),
            "crashed": bool(ego.crashed),
            "on_road": bool(ego.on_road),
            "action": self.executed.copy(),
            "others": np.array(others, np.float64).reshape(-1, 4),
        }

    def poses(self) -> np.ndarray:
        """Every vehicle as float64[N, 4]: x, y (m), heading (rad), crashed (0 or 1)."""
        rows = [(*v.position, v.heading, v.crashed) for v in self.road.vehicles]
        return np.array(rows, np.float64)

    def frame(self, poses: np.ndarray) -> np.ndarray:
        """uint8[height, width, 3] of a moment that `poses` gave, after ``reset`` to its seed. It
        moves the vehicles; needs ``render_mode="rgb_array"``."""
        for vehicle, (x, y, heading, crashed) in zip(self.road.vehicles, poses, strict=True):
            vehicle.position = np.array([x, y])
            vehicle.heading, vehicle.crashed = float(heading), bool(crashed)
        image: np.ndarray = self.render()
        return image

    # highway-env's hooks.

    def define_spaces(self) -> None:
        self.observation_type = _Perception(self)
        self.action_type = _Pedals(self, acceleration_range=None, steering_range=None)
        self.observation_space = self.space_of_observation
        self.action_space = self.space_of_action

    def _create_road(self) -> None:
        self.road = straight_road(
            self.config["lanes_count"], self.np_random, self.config["show_trajectories"]
        )

    def _reset(self) -> None:
        super()._reset()
        self.executed = np.zeros(len(ACTIONS), np.float32)
        # Drawn in both environments, after the traffic, so that one seed is one traffic in both.
        self._start_sensors(int(self.np_random.integers(2**63)))

    def _start_sensors(self, seed: int) -> None:
        """Begin the sensor process of an episode; nothing to do when all sensors always work."""

    def _hidden(self) -> frozenset[str]:
        return frozenset()

    def observe(self) -> dict[str, np.ndarray]:
        """Perceive the scene once: stores the typed state and returns its arrays."""
        ego = self.vehicle
        x, y, heading = float(ego.position[0]), float(ego.position[1]), float(ego.heading)
        car = Car(x, y, ego.speed * math.cos(heading), heading, int(ego.lane_index[2]))
        others = [
            (float(v.position[0]), float(v.position[1]), v.speed * math.cos(v.heading))
            for v in self.road.vehicles
            if v is not ego
        ]
        self._state = perceive(car, float(ego.speed), others, self._hidden())
        return observation(self._state)

    def step(self, action: Any) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        executed = require_action(action)
        self.executed = np.array(executed, np.float32)
        observed, reward, terminated, truncated, info = super().step(executed)
        return observed, float(reward) * PERIOD, bool(terminated), bool(truncated), info

    def _is_truncated(self) -> bool:
        # Steps, not the sum of 0.1 s: the sum is off by 2e-13 after 300 steps.
        return bool(self.steps >= round(self.config["duration"] / PERIOD))

    def _info(self, obs: Any, action: Any = None) -> dict[str, Any]:
        ego = self.vehicle
        return {
            "state": self.state(),
            "speed": float(ego.speed),
            "x": float(ego.position[0]),
            "crashed": bool(ego.crashed),
            "offroad": not ego.on_road,
        }

    def render(self) -> Any:
        if self.render_mode != "rgb_array" or self.viewer is not None:
            return super().render()
        with _dummy_display():
            return super().render()


class OccludedHighwayEnv(HighwayEnv):
    """`HighwayEnv` whose six lane/side sensor groups switch off and on, 1.0 s each way on average.

    The traffic of a seed is that of `HighwayEnv`. A group that is off reads None in both fields;
    the expert's labels see the true scene.
    """

    def __init__(
        self, config: Mapping[str, Any] | None = None, render_mode: str | None = None
    ) -> None:
        self._sensors = SensorDropout(GROUPS, dwell=1.0, period=PERIOD)
        super().__init__(config=config, render_mode=render_mode)

    def _start_sensors(self, seed: int) -> None:
        self._sensors.reset(seed)

    def _hidden(self) -> frozenset[str]:
        return self._sensors.hidden

    def step(self, action: Any) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        require_action(action)
        self._sensors.advance()
        return super().step(action)


@contextlib.contextmanager
def _dummy_display() -> Iterator[None]:
    """Start pygame's display on SDL's dummy driver, for machines without a screen.

    highway-env draws nothing when it finds that driver in the environment, so the variable is there
    only while SDL starts, and is put back as it was once highway-env's viewer exists.
    """
    import pygame

    before = os.environ.get("SDL_VIDEODRIVER")
    try:
        if not pygame.display.get_init():
            os.environ["SDL_VIDEODRIVER"] = "dummy"
            pygame.display.init()
        os.environ.pop("SDL_VIDEODRIVER", None)
        yield
    finally:
        if before is not None:
            os.environ["SDL_VIDEODRIVER"] = before
