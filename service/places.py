"""A robot's place in a process, and what becomes of it when a session opens."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from wmrt.core.errors import SafetyError
from wmrt.core.wire import Observed
from wmrt.safety import State
from wmrt.service.consensus import give_back
from wmrt.service.desk import Desk
from wmrt.service.leases import Lease
from wmrt.service.memories import Memory, Trouble
from wmrt.service.meter import RobotMeter
from wmrt.service.refusals import Refusal
from wmrt.service.sessions import Session

T = TypeVar("T")


class Seen(NamedTuple):
    """An observation that was answered, and its age when its step began, ns; None if unknown."""

    observed: Observed
    age_ns: int | None


@dataclass(eq=False)
class Place:
    """A robot in its seat.

    Attributes:
        lease: under which the robot is this process's, where other processes may want it.
        leaving: nothing more is taken in; it goes to another process, or has gone.
        entering: held while an observation is taken in, by whichever thread, and by whoever changes
            what that goes by: the session, its epoch, or ``leaving``.
        kept: what of it is on disk. keeping: one snapshot at a time.
        seen: the last observation that was answered. stop_pressed: the emergency stop, by way of
            this service.
    """

    seat: int
    desk: Desk
    session: Session
    meter: RobotMeter
    lease: Lease | None = None
    leaving: bool = False
    entering: threading.Lock = field(default_factory=threading.Lock)
    kept: object = None
    keeping: asyncio.Lock = field(default_factory=asyncio.Lock)
    seen: Seen | None = None
    stop_pressed: bool = False

    @property
    def engaged(self) -> bool:
        """Whether the policy's next action may leave."""
        return self.desk.breakers.engaged and self.desk.state is not State.LATCHED


@dataclass(frozen=True)
class Opened:
    """What a client gets that opens a session.

    Attributes:
        memory: ``kept`` (the robot goes on), ``restored`` (from a snapshot) or ``fresh``.
        resumed: the client had this session before.
        sequence: of the last observation that counts, -1 for none.
        steps_lost: sequence numbers up to the client's last answer that a restored memory does not
            know of.
    """

    session: Session
    memory: str
    resumed: bool
    sequence: int
    steps_lost: int = 0


def expel(session: Session, refusal: Refusal) -> None:
    """Tell whoever is connected, and let go."""
    if session.holder is not None:
        session.holder.expel(refusal)
        session.holder = None


def full(limit: int, idle: float) -> Refusal:
    """429: all ``limit`` places are taken; one is given away ``idle`` seconds after its client."""
    return Refusal(
        "too_many_robots",
        f"this process serves {limit} robot{'s' * (limit > 1)}, and all places are taken; a robot "
        f"gives its place away after {idle:g} s without a client, and --robots makes more of them",
    )


def trouble(desk: Desk) -> Trouble | None:
    """What would be forgotten with this desk, such as a stop that is to latch with the next action:
    that may be another process's. None if nothing would."""
    state = desk.state
    if state is State.CLOSED and desk.breakers.engaged:
        return None
    return Trouble(state.value, desk.breakers.engaged)


async def finished(call: Future[T]) -> T:
    """What a call in a robot's thread has returned; what the breakers refuse is a `Refusal`."""
    try:
        return await asyncio.wrap_future(call)
    except SafetyError as error:
        raise Refusal("refused", str(error)) from None


def begin(
    desk: Desk, session: Session, measured: Sequence[float] | None, found: Trouble | None
) -> None:
    """Start afresh, but for the breakers: neither a restart nor a new session heals them."""
    desk.reset(measured)
    if found is not None:
        caution(desk, found, measured)
    desk.adopt(session.id, session.epoch)


def recall(desk: Desk, memory: Memory) -> None:
    """Continue from ``memory``; in the desk's thread. `UsageError` if it is another model's, or of
    a vote with others than here."""

    def give() -> None:
        if memory.snapshot is not None:
            give_back(desk.channels, memory.channels)
            desk.seat.restore(memory.snapshot)

    give()  # refuses before the controller has changed
    desk.reset(memory.last_action)  # which forgets it
    give()
    caution(desk, Trouble(memory.breakers, memory.engaged), memory.last_action)
    desk.adopt(memory.session, memory.epoch, memory.sequence)


def caution(desk: Desk, found: Trouble, last: Sequence[float] | None) -> None:
    """Bring fresh breakers to where they were before this process: a restart heals nothing.

    One observation that is unfit opens them. What it answers goes nowhere, so the next action may
    differ from the last one sent by two periods' worth, which is what the rate limits allow after a
    gap as long as a restart.
    """
    controller, latched = desk.controller, found.breakers == State.LATCHED.value
    if latched:
        controller.estop()
        controller.act(None)
        controller.estop(False)  # released; the latch stays until an operator resets it
    elif found.breakers != State.CLOSED.value:
        controller.act(None)
        controller.engage("restart of the service", last)
    if not found.engaged and not latched:
        controller.disengage()
