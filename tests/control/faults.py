"""Faulty observations, policies, channels and clocks, drawn from a seed."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from tests.control.support import STATE, FakeTimer, answer


class Hostile:
    """Raises from every method that anyone may call."""

    def _fail(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("hostile")

    __getattr__ = __getitem__ = __iter__ = __len__ = __float__ = __int__ = __index__ = _fail
    __bool__ = __eq__ = __lt__ = __repr__ = __str__ = __array__ = __contains__ = _fail
    __hash__ = None  # type: ignore[assignment]


class HostileMapping(Mapping[str, Any]):
    """A mapping that cannot be read."""

    def __getitem__(self, key: str) -> Any:
        raise OSError(key)

    def __iter__(self) -> Iterator[str]:
        raise OSError

    def __len__(self) -> int:
        return 3


class HostileDict(dict[str, Any]):
    """A dict that is none."""

    def get(self, *args: Any) -> Any:
        raise MemoryError

    def keys(self) -> Any:
        raise MemoryError


class BadFloat(float):
    def __float__(self) -> float:
        raise ValueError

    __sub__ = __add__ = __mul__ = __gt__ = __lt__ = __float__  # type: ignore[assignment]


SCALARS: list[Any] = [
    math.nan, math.inf, -math.inf, 1e300, -1e-300, -0.0, 10**400, -(10**400), 2**63, None, "", "x",
    "21.5", b"21.5", True, 1j, [], [1.0], {}, set(), object(), Hostile(), BadFloat(3.0), float, len,
    np.float32(3.0), np.float64(math.nan), np.array(3.0), np.array([1.0, 2.0]), "middle",
    np.datetime64(0, "s"), "left", {1.0: 2.0}, {"a": Hostile()},
    [1.0, math.nan, 2.0], [1.0, 2.0], ["a", "b", "c"], [None, 1.0, Hostile()],
    range(3), (x for x in range(3)), Ellipsis, Exception("value"), lambda: 1.0,
]  # fmt: skip
CONTAINERS: list[Any] = [
    None, 7, 1.5, "state", b"state", [], [STATE], (STATE, {}), {1, 2}, np.zeros(5), object(),
    Hostile(), HostileMapping(), HostileDict(STATE), {"state": HostileMapping()}, {"state": None},
    {"state": [1.0]}, {}, {1: 2, None: 3}, {Ellipsis: 1}, iter([]), STATE.items(), type, math.nan,
]  # fmt: skip


def faulty_observation(rng: random.Random) -> Any:
    """One of: a value spoiled, a field missing, a key too many, no state at all."""
    kind = rng.randrange(5)
    state = dict(STATE)
    if kind == 0:
        return rng.choice(CONTAINERS)
    if kind == 1:
        del state[rng.choice(list(state))]
    elif kind == 2:
        state[rng.choice(["extra", "", "speed ", "pose[0]", "état"])] = rng.choice(SCALARS)
    else:
        for _ in range(rng.randrange(1, 4)):
            state[rng.choice(list(STATE))] = rng.choice(SCALARS)
    return {"state": state} if rng.random() < 0.3 else state


def faulty_answer(rng: random.Random, previous: Any) -> Any:
    """A step result with something wrong; raises one time in five."""
    kind = rng.randrange(10)
    good = [float(a) for a in previous]
    if kind < 2:
        raise rng.choice([ValueError, KeyError, MemoryError, RecursionError, AssertionError])(
            "policy"
        )
    if kind == 2:
        return rng.choice([None, "action", 3, Hostile(), [0.1, 0.1], {"action": good}])
    if kind == 3:
        return answer(
            rng.choice([*SCALARS, np.zeros(3), np.zeros((1, 2)), ["0", "0"], [[0], [1, 2]]])
        )
    if kind < 6:
        return answer([rng.choice([*good, math.nan, math.inf, 1.2, -1.2, 1e300]) for _ in range(2)])
    if kind == 6:
        return answer(good, predicted=rng.choice([*CONTAINERS, {"gap": rng.choice(SCALARS)}]))
    if kind == 7:
        return answer(good, chunk=rng.choice(SCALARS))
    return answer([rng.uniform(-1.3, 1.3), rng.uniform(-1.3, 1.3)])


def good_answer(rng: random.Random, previous: Any) -> Any:
    """A small move with a chunk that holds it and a prediction in range."""
    action = np.clip(previous + np.float32([rng.uniform(-0.1, 0.1) for _ in range(2)]), -1, 1)
    return answer(action, chunk=np.tile(action, (8, 1)), predicted={"speed": 20.0, "gap": None})


class Weather:
    """What happens in each step: calm spells and storms, all from one seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.timer = FakeTimer()
        self.left = 0
        self.stormy = False

    def tick(self) -> None:
        """Begin a step; weather changes now and then."""
        self.left -= 1
        if self.left < 0:
            self.stormy = not self.stormy
            self.left = self.rng.randrange(10, 40 if self.stormy else 80)

    def fault(self, chance: float) -> bool:
        return self.stormy and self.rng.random() < chance

    def observation(self) -> Any:
        return faulty_observation(self.rng) if self.fault(0.1) else STATE

    def seconds(self, period: float) -> float:
        """Time to the next step."""
        if not self.fault(0.2):
            return period * self.rng.uniform(0.95, 1.05)
        return self.rng.choice([0.0, 1e-6, 0.001, 0.05, 0.2, 1.0, -1e-6, -0.1, -1e6, 1e6])

    def policy(self, state: Any, previous: Any) -> Any:
        if self.fault(0.05):
            self.timer.advance(1.0)  # late
        if self.fault(0.1):
            return faulty_answer(self.rng, previous)
        return good_answer(self.rng, previous)

    def channel(self, state: Any, previous: Any) -> Any:
        if self.fault(0.05):
            return faulty_answer(self.rng, previous)
        return previous + np.float32([self.rng.uniform(-0.1, 0.1) for _ in range(2)])

    def fallback(self, state: Any, last: Any) -> Any:
        if self.fault(0.2):
            return self.rng.choice([None, Hostile(), (math.nan, 0.0), (0.0,), [Hostile(), 0.0]])
        return (0.0, -0.5)


def raising(error: type[BaseException]) -> Callable[..., Any]:
    def fails(*args: Any, **kwargs: Any) -> Any:
        raise error

    return fails
