"""Controllers whose policies share each read of the weights."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from wmrt.core.errors import WmrtError
from wmrt.core.types import ActionSpec

if TYPE_CHECKING:
    from wmrt.runtime.group import SessionGroup

T = TypeVar("T")


class SharedPolicy:
    """One robot of a `SharedStep`, for a controller of its own."""

    def __init__(self, shared: SharedStep, robot: int) -> None:
        self._shared, self.robot = shared, robot

    @property
    def schema(self) -> Any:
        return self._shared.group.model.schema

    @property
    def actions(self) -> ActionSpec:
        return self._shared.group.model.actions

    @property
    def provenance(self) -> Mapping[str, Any]:
        """The model's; it says at what period it was trained."""
        provenance: Mapping[str, Any] = self._shared.group.model.provenance
        return provenance

    def reset(self) -> None:
        self._shared.reset(self.robot)

    def step(self, state: Mapping[str, Any], previous_action: Any) -> Any:
        """The robot's `Step`, bit for bit what it would answer alone."""
        return self._shared.step(self.robot, state, previous_action)


class SharedStep:
    """Lets controllers act at once, each in a thread, and asks the group once for all of them.

    Whoever asks waits for the others of the same `together`: until each has asked too or has
    decided without asking. Outside of it, and for a second question, a robot steps alone.

    Args:
        group: of as many robots as there are controllers.

    Attributes:
        policies: one per robot of the group.
        reads: steps of the group so far, each one read of the weights.
    """

    def __init__(self, group: SessionGroup) -> None:
        self.group = group
        self.policies = tuple(SharedPolicy(self, robot) for robot in range(group.robots))
        self.reads = 0
        self._turn = threading.Condition()
        self._awaited: set[int] = set()
        self._asked: dict[int, tuple[Any, Any]] = {}
        self._answers: dict[int, Any] = {}
        self._threads = ThreadPoolExecutor(group.robots, "wmrt-robot")

    def together(self, calls: Mapping[int, Callable[[], T]]) -> dict[int, T]:
        """Call each robot's function, all at once; what they return. Raises what one of them raises
        once all are done."""
        with self._turn:
            self._awaited = set(calls)
        futures = {
            robot: self._threads.submit(self._one, robot, call) for robot, call in calls.items()
        }
        return {robot: future.result() for robot, future in futures.items()}

    def _one(self, robot: int, call: Callable[[], T]) -> T:
        try:
            return call()
        finally:
            with self._turn:
                self._awaited.discard(robot)
                self._if_complete()

    def step(self, robot: int, state: Any, previous_action: Any) -> Any:
        """One robot's question. Raises what answering it raises."""
        with self._turn:
            self._asked[robot] = state, previous_action
            if robot not in self._awaited:  # nobody waits for it, so it waits for nobody
                self._answers[robot] = self._alone(robot, *self._asked.pop(robot))
            else:
                self._awaited.discard(robot)
                self._if_complete()
            while robot not in self._answers:
                self._turn.wait()
            answer = self._answers.pop(robot)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def reset(self, robot: int) -> None:
        with self._turn:
            self.group.reset(robot)

    def close(self) -> None:
        """End the threads. The policies still step, each alone."""
        self._threads.shutdown()

    def _if_complete(self) -> None:
        if not self._awaited and self._asked:
            asked, self._asked = self._asked, {}
            self._answers.update(self._all(asked))
            self._turn.notify_all()

    def _all(self, asked: dict[int, tuple[Any, Any]]) -> dict[int, Any]:
        robots = sorted(asked)
        states, actions = zip(*(asked[robot] for robot in robots), strict=True)
        try:
            steps = self.group.step(list(states), list(actions), robots=robots)
        except WmrtError:  # refused before any robot stepped: find out whose question it was
            return {robot: self._alone(robot, *asked[robot]) for robot in robots}
        except BaseException as error:  # nobody knows how far each one got, and each waits
            return dict.fromkeys(robots, error)
        self.reads += 1
        return dict(zip(robots, steps, strict=True))

    def _alone(self, robot: int, state: Any, previous_action: Any) -> Any:
        try:
            (step,) = self.group.step([state], [previous_action], robots=[robot])
        except BaseException as error:
            return error
        self.reads += 1
        return step
