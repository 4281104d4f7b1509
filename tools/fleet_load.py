"""Robots that ask a fleet, each with canaries that nobody else has: for tools/fleet_check.py."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from wmrt.client import connect
from wmrt.core.errors import DeadlineError, ServiceError

#: How near an answer is to its canary, which goes as float32.
NEAR = 1e-6
_STATE = {"gap": 5.0, "pose": [1.0, 1.0], "lane": "left", "wet": False}


@dataclass
class Robot:
    """What one robot has seen since `fresh`.

    Attributes:
        answers: in seconds, when each came. wrong: answers that were not its own, or of a memory
            that is not its own. refusals: calls that ended without an answer, by name.
        steps: of its memory, by the last answer.
    """

    name: str
    answers: list[float] = field(default_factory=list)
    wrong: list[Any] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)
    steps: int = 0

    def fresh(self) -> dict[str, Any]:
        """The figures since the last call."""
        answers, self.answers = self.answers, []
        gaps = np.diff(answers) if len(answers) > 1 else np.zeros(1)
        refusals, self.refusals = self.refusals, []
        wrong, self.wrong = self.wrong, []
        return {
            "answers": len(answers),
            "longest_gap_s": float(gaps.max()),
            "wrong": wrong[:10],
            "wrong_count": len(wrong),
            "refusals": {name: refusals.count(name) for name in set(refusals)},
        }


class Load:
    """``robots`` threads, each a client at ``rate`` steps a second, over `tests.service.doubles`
    canary seats: an answer holds the canary of the observation, and how many steps the robot's
    memory has."""

    def __init__(self, address: str, robots: int, rate: float, seed: int) -> None:
        self.robots = [Robot(f"robot-{i:02d}") for i in range(robots)]
        self._address, self._rate, self._seed = address, rate, seed
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._drive, args=(r,)) for r in self.robots]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End every client."""
        self._over.set()
        for thread in self._threads:
            thread.join(60.0)

    def counters(self) -> dict[str, int]:
        """Of all clients together."""
        total: dict[str, int] = {}
        for robot in self.robots:
            for name, count in robot.counters.items():
                total[name] = total.get(name, 0) + count
        return total

    def lost(self) -> dict[str, int]:
        """How often each robot's connection was lost."""
        return {robot.name: robot.counters.get("lost", 0) for robot in self.robots}

    def phase(self, seconds: float = 0.0) -> dict[str, Any]:
        """Wait, and give the figures since the last phase, of all robots."""
        time.sleep(seconds)
        told = {robot.name: robot.fresh() for robot in self.robots}
        refusals: dict[str, int] = {}
        for one in told.values():
            for name, count in one["refusals"].items():
                refusals[name] = refusals.get(name, 0) + count
        return {
            "answers": sum(one["answers"] for one in told.values()),
            "robots_answered": sum(one["answers"] > 0 for one in told.values()),
            "longest_gap_s": max(one["longest_gap_s"] for one in told.values()),
            "median_of_longest_gaps_s": float(
                np.median([one["longest_gap_s"] for one in told.values()])
            ),
            "mixed": sum(one["wrong_count"] for one in told.values()),
            "mixed_examples": [w for one in told.values() for w in one["wrong"]][:10],
            "calls_without_answer": refusals,
        }

    def _drive(self, robot: Robot) -> None:
        rng = np.random.default_rng([self._seed, int(robot.name[-2:])])
        with connect(self._address, robot.name, deadline=30.0, opening=120.0) as client:
            robot.counters = client.counters
            wait, due = 1.0 / self._rate, time.monotonic() + rng.uniform(0.0, 1.0 / self._rate)
            while not self._over.wait(max(0.0, due - time.monotonic())):
                due = max(due + wait, time.monotonic())
                canary = float(np.float32(rng.uniform(-1, 1)))
                lost = client.counters["steps_lost"]
                try:
                    answer = client.act({**_STATE, "canary": round(canary, 4)})
                except (ServiceError, DeadlineError) as error:
                    robot.refusals.append(getattr(error, "name", "deadline"))
                    robot.steps = -1  # whether it was stepped is not known
                    continue
                robot.answers.append(time.monotonic())
                self._check(robot, round(canary, 4), answer, client.counters["steps_lost"] - lost)

    def _check(self, robot: Robot, canary: float, answer: Any, lost: int) -> None:
        """The answer is this observation's, and the memory behind it this robot's."""
        steps = round(float(answer.action[1]) * 1e4)
        if abs(float(answer.action[0]) - canary) > NEAR:
            robot.wrong.append([robot.name, canary, answer.action.tolist()])
        elif robot.steps >= 0 and steps != robot.steps - lost + 1:
            robot.wrong.append([robot.name, "steps", robot.steps, lost, steps])
        robot.steps = steps
