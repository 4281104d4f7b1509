"""Stormy drives, recorded: every fault of `tests.control.faults`, and operators at work."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from types import MappingProxyType
from typing import Any

import numpy as np

from tests.control.faults import Weather, faulty_answer, good_answer
from tests.control.support import PERIOD, STATE, FakePolicy, FakeTimer
from wmrt.control import Channel, Controller, StepClock, TimedController
from wmrt.control.recording import FileRecorder
from wmrt.control.recording.reader import Item, Recording
from wmrt.core.clock import ManualClock
from wmrt.core.errors import SafetyError


class Habit(FakePolicy):
    """Its answers hang on all it has seen since its last reset, and now and then are no good."""

    def __init__(self, faults: float = 0.03) -> None:
        super().__init__(self._answer)
        self._faults = faults
        self.reset()

    def reset(self) -> None:
        self._past = 0

    def _answer(self, state: Mapping[str, Any], previous: Any) -> Any:
        seen = sorted(
            (key, self.schema.quantize({key: value})[0].tolist()) for key, value in state.items()
        )
        self._past = random.Random(repr((self._past, seen, previous.tolist()))).getrandbits(60)
        rng = random.Random(self._past)
        return (faulty_answer if rng.random() < self._faults else good_answer)(rng, previous)


class Late:
    """A policy that now and then takes a second of ``timer``."""

    def __init__(self, policy: Any, weather: Weather) -> None:
        self._policy, self._weather = policy, weather
        self.schema, self.actions, self.reset = policy.schema, policy.actions, policy.reset

    def step(self, state: Any, previous: Any) -> Any:
        if self._weather.fault(0.1):
            self._weather.timer.advance(1.0)
        return self._policy.step(state, previous)


def storm(
    path: Path, seed: int, steps: int, kind: type[Controller] = Controller, **options: Any
) -> dict[str, Any]:
    """Record ``steps`` steps; what the recorder says of them."""
    weather, clock = Weather(seed), ManualClock()
    channels = [Channel("a", weather.channel), Channel("b", weather.channel, 2)]
    with FileRecorder(path, **options) as recorder:
        controller = kind(
            Late(Habit(), weather), PERIOD, 0.5, None, weather.fallback, recorder, channels,
            clock=clock, timer=weather.timer, max_age=0.5, robot="sturm",
        )  # fmt: skip
        for _ in range(steps):
            weather.tick()
            interfere(controller, weather.rng)
            clock.advance(weather.seconds(PERIOD))
            now = clock.now_ns()
            captured = weather.rng.choice([None, None, now, now - 10**7, now + 5, "now", 1.5])
            controller.act(weather.observation(), captured)
    assert controller.stats()["record_failures"] == 0
    return recorder.stats()


class Begun:
    """Takes `TimedController`'s steps for `Controller.act`, as a service does: begins them, and
    runs in a thread of its own what is left of one in which nobody is asked."""

    def __init__(self, controller: TimedController) -> None:
        self._controller = controller
        self._pool = ThreadPoolExecutor(1)

    def act(self, obs: Any, captured_ns: Any = None) -> Any:
        sent: Queue[Any] = Queue()
        rest = self._controller.start(obs, captured_ns, lambda action, _: sent.put(action))
        if rest is not None:
            self._pool.submit(rest)
        return sent.get(timeout=60.0)


def restless(
    path: Path, seed: int, steps: int, kind: type[Controller] = Controller, begin: bool = False
) -> Controller:
    """Record a drive in real time: a policy on a thread of its own that is often late, and an
    operator on another who presses the emergency stop. ``begin``: by `Begun`."""
    rng = random.Random(seed)
    naps = random.Random(seed + 1)
    done = threading.Event()

    class Drowsy(Habit):
        def step(self, state: Any, previous: Any) -> Any:
            time.sleep(naps.choice([0.0, 0.0, 0.0, 0.004, 0.012]))
            return super().step(state, previous)

    with FileRecorder(path) as recorder:
        controller = kind(Drowsy(), 0.005, 0.003, recorder=recorder, max_age=0.5)
        act = Begun(controller).act if isinstance(controller, TimedController) and begin else None
        act = act or controller.act

        def press() -> None:
            while not done.wait(0.03):
                controller.estop()
                controller.estop(False)

        operator = threading.Thread(target=press)
        operator.start()
        for _ in range(steps):
            if rng.random() < 0.05:
                controller.change_task(rng.choice(["fetch", "carry"]))
            interfere(controller, rng)
            captured: Any = time.monotonic_ns()
            if rng.random() < 0.3:
                captured = {"speed": captured, "gap": captured - rng.choice([10**6, 10**9])}
            speed = 20.0 + rng.random()
            act({**STATE, "speed": speed, "pose": np.array([speed, -2.0, 0.5])}, captured)
        done.set()
        operator.join()
        controller.close()
        act(STATE)
    return controller


def interfere(controller: Controller, rng: random.Random) -> None:
    """What operators do between steps, one time in seven."""
    dice = rng.random()
    if dice < 0.01:
        controller.reset(rng.choice([None, [0.1, -0.1]]))
    elif dice < 0.02:
        controller.estop()
    elif dice < 0.03:
        controller.disengage()
    elif dice < 0.14:
        controller.estop(False)
        for command in (controller.reset_latch, controller.engage):
            try:
                command("someone")
            except SafetyError:  # refused
                continue
    elif dice < 0.145:
        controller.reset(rng.choice([None, [0.1, -0.1]]), heal=False)


def items(path: Path, topic: str = "") -> list[Item]:
    """All messages, or those of a topic."""
    return [item for item in Recording(path).items() if topic in ("", item.topic)]


def plain_drive(path: Path, observations: list[Any], **options: Any) -> Controller:
    """Record one step for each observation, in good weather."""
    timer, clock = FakeTimer(), ManualClock()
    with FileRecorder(path, **options) as recorder:
        controller = Controller(
            Habit(0.0), PERIOD, recorder=recorder, clock=clock, timer=timer, max_age=1.0
        )
        for obs in observations:
            clock.advance(PERIOD)
            controller.act(obs)
    return controller


READ_ONLY = MappingProxyType(STATE)
ARRAYS = {**STATE, "pose": np.array([1.0, -2.0, 0.5], np.float32), "speed": np.float32(21.5)}


def controller(recorder: FileRecorder | None, policy: Any = None) -> Controller:
    """One in good weather, on simulated time."""
    clock = StepClock(PERIOD)
    policy = policy or Habit(0.0)
    return Controller(policy, PERIOD, recorder=recorder, clock=clock, timer=FakeTimer())


def noise(rng: random.Random) -> dict[str, Any]:
    """An observation that does not compress."""
    return {**STATE, "pose": [rng.uniform(-9, 9) for _ in range(3)], "speed": 40 * rng.random()}
