"""What steps for a robot: a model of its own, or its place in a group that shares the weights."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from wmrt.core.errors import UsageError
from wmrt.core.types import ActionSpec
from wmrt.runtime.group import SessionGroup
from wmrt.runtime.snapshot import Snapshot
from wmrt.runtime.step import Step
from wmrt.runtime.world_model import WorldModel

#: Seconds for which a step waits for robots that are about to ask for one too.
GATHER = 0.002


class Seat(Protocol):
    """A policy with a memory that can be kept. Any thread may call it, one call at a time."""

    @property
    def schema(self) -> Any: ...
    @property
    def actions(self) -> ActionSpec: ...
    def reset(self) -> None: ...
    def step(self, state: Mapping[str, Any], previous_action: Any) -> Any: ...
    def snapshot(self) -> Snapshot: ...
    def restore(self, snapshot: Snapshot) -> None: ...
    def enter(self) -> None:
        """The robot's control step begins: it is about to ask."""

    def leave(self) -> None:
        """The control step is over, asked or not."""


class ModelSeat:
    """One robot on a model that is its own.

    Args:
        put: called in a thread that is to step the model, once for each: it may go to a processor.
    """

    def __init__(self, model: WorldModel, put: Callable[[], object] = lambda: None) -> None:
        self._model, self._put = model, put
        self._lock, self._own = threading.Lock(), threading.local()  # idents are used again

    @property
    def schema(self) -> Any:
        return self._model.schema

    @property
    def actions(self) -> ActionSpec:
        return self._model.actions

    @property
    def provenance(self) -> Mapping[str, Any]:
        return self._model.provenance

    def reset(self) -> None:
        with self._lock:
            self._model.reset()

    def step(self, state: Mapping[str, Any], previous_action: Any) -> Any:
        with self._lock:
            # The controller's watchdog has a thread of its own for the policy, with its first step.
            if not hasattr(self._own, "put"):
                self._put()
                self._own.put = True
            return self._model.step(state, previous_action)

    def snapshot(self) -> Snapshot:
        with self._lock:
            return self._model.snapshot()

    def restore(self, snapshot: Snapshot) -> None:
        with self._lock:
            self._model.restore(snapshot)

    def enter(self) -> None:
        """Nobody waits for it."""

    def leave(self) -> None:
        """Nobody waits for it."""


@dataclass(eq=False)
class _Ask:
    """A robot's question, and the lock that its thread waits on for the answer."""

    robot: int
    state: Mapping[str, Any]
    previous: Any
    done: threading.Lock = field(default_factory=threading.Lock)
    step: Step | None = None
    error: Exception | None = None


class Gather:
    """Steps the robots of a group together: those that ask at about the same time share one read of
    the weights. All steps run in one thread, which `run` is.
    """

    def __init__(self, group: SessionGroup) -> None:
        self.group = group
        self._stepping = threading.Lock()
        self._changed = threading.Condition()
        self._asks: list[_Ask] = []
        self._coming: set[int] = set()
        self._closed = False
        self.seats: tuple[Seat, ...] = tuple(GroupSeat(self, i) for i in range(group.robots))

    def enter(self, robot: int) -> None:
        with self._changed:
            self._coming.add(robot)

    def leave(self, robot: int) -> None:
        with self._changed:
            self._coming.discard(robot)
            self._changed.notify()

    def ask(self, robot: int, state: Mapping[str, Any], previous: Any) -> Step:
        """One robot's step; raises what the group raised."""
        ask = _Ask(robot, state, previous)
        ask.done.acquire()
        with self._changed:
            if self._closed:
                raise UsageError("the service is stopping; nothing steps any more")
            self._coming.discard(robot)
            self._asks.append(ask)
            self._changed.notify()
        ask.done.acquire()
        if ask.error is not None:
            raise ask.error
        assert ask.step is not None  # one of the two
        return ask.step

    def between_steps(self, do: Callable[[], Any]) -> Any:
        """``do()`` while no step runs."""
        with self._stepping:
            return do()

    def run(self) -> None:
        """Answer until `close`."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._asks or self._closed)
                if not self._asks:
                    return
                self._changed.wait_for(lambda: not self._coming, GATHER)
                asks, self._asks = self._asks, []
            self._answer(asks)

    def _answer(self, asks: list[_Ask]) -> None:
        try:
            with self._stepping:
                steps = self.group.step(
                    [ask.state for ask in asks],
                    [ask.previous for ask in asks],
                    robots=[ask.robot for ask in asks],
                )
            for ask, step in zip(asks, steps, strict=True):
                ask.step = step
        except Exception as error:  # it is for the controllers, which count it and fall back
            if len(asks) > 1:  # one robot's fault, told apart from the others, who advanced nowhere
                for ask in asks:
                    self._answer([ask])
                return
            asks[0].error = error
        for ask in asks:
            ask.done.release()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()


class GroupSeat:
    """One robot's place in a `Gather`."""

    def __init__(self, gather: Gather, robot: int) -> None:
        self._gather, self._robot = gather, robot

    @property
    def schema(self) -> Any:
        return self._gather.group.model.schema

    @property
    def actions(self) -> ActionSpec:
        return self._gather.group.model.actions

    @property
    def provenance(self) -> Mapping[str, Any]:
        return self._gather.group.model.provenance

    def reset(self) -> None:
        self._gather.between_steps(lambda: self._gather.group.reset(self._robot))

    def step(self, state: Mapping[str, Any], previous_action: Any) -> Any:
        return self._gather.ask(self._robot, state, previous_action)

    def snapshot(self) -> Snapshot:
        return self._gather.between_steps(lambda: self._gather.group.snapshot(self._robot))  # type: ignore[no-any-return]

    def restore(self, snapshot: Snapshot) -> None:
        self._gather.between_steps(lambda: self._gather.group.restore(self._robot, snapshot))

    def enter(self) -> None:
        self._gather.enter(self._robot)

    def leave(self) -> None:
        self._gather.leave(self._robot)


def warm_up(seats: Sequence[Seat], steps: int = 3) -> None:
    """Step every seat and forget it, so that no robot's first step holds what happens only once."""
    for seat in seats:
        state = seat.schema.decode(seat.schema.encode({}).q)
        for _ in range(steps):
            seat.step(state, seat.schema.neutral)
        seat.reset()
