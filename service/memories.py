"""What is kept of a robot: its memory, and where its breakers stand."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from wmrt.runtime.snapshot import Snapshot
from wmrt.safety import State

#: States of the breakers, the worst one last.
_WORSE = tuple(
    state.value
    for state in (State.CLOSED, State.DEGRADED, State.HALF_OPEN, State.OPEN, State.LATCHED)
)
STATES = frozenset(_WORSE)


class Opinion(NamedTuple):
    """Of a channel that votes with the model: its name, and its memory; None if it has none."""

    name: str
    snapshot: Snapshot | None


class Memory(NamedTuple):
    """What makes a robot continue where it was.

    Attributes:
        sequence: of the session's last observation that was stepped, -1 for none.
        steps: control steps so far.
        last_action: the last one sent, normalised.
        breakers: their state. engaged: whether the policy may drive.
        snapshot: of the model's memory; None where an episode has begun that it is not of.
        channels: that vote with it, of the same step; None where nobody has kept them.
    """

    robot: str
    session: int
    epoch: int
    sequence: int
    steps: int
    last_action: tuple[float, ...]
    breakers: str
    engaged: bool
    snapshot: Snapshot | None
    channels: tuple[Opinion, ...] | None = None


class Standing(NamedTuple):
    """Where a robot's breakers stand; small enough to be written at every change.

    Attributes: as of `Memory`, at the last step.
    """

    robot: str
    session: int
    epoch: int
    sequence: int
    last_action: tuple[float, ...]
    breakers: str
    engaged: bool


class Trouble(NamedTuple):
    """State of a robot's breakers, and whether they are engaged."""

    breakers: str
    engaged: bool


#: What is made of a file that cannot be read: somebody has to look.
UNKNOWN = Trouble(State.LATCHED.value, False)


class Found(NamedTuple):
    """What is on disk of a robot.

    Attributes:
        memory: that its session goes on from; None for none, or one that a later session outdates.
        trouble: the worst that any file says; None for none.
        epoch: the latest that any file knows of, -1 for none.
    """

    memory: Memory | None = None
    trouble: Trouble | None = None
    epoch: int = -1


def worst(found: Iterable[Trouble]) -> Trouble | None:
    """The worst state of all, engaged only if all are; None where nothing would be forgotten."""
    told = list(found)
    state = max((one.breakers for one in told), key=_WORSE.index, default=State.CLOSED.value)
    engaged = all(one.engaged for one in told)
    return None if state == State.CLOSED.value and engaged else Trouble(state, engaged)


def merged(memory: Memory | None, standing: Standing | None, damaged: bool) -> Found:
    """What a robot's two files say together. The one about the breakers is written at each of their
    changes and the memory every so often, so the former may know of an episode, or of an action,
    that the latter does not.

    Args:
        damaged: one of them is there and cannot be read.
    """
    kept = [one for one in (memory, standing) if one is not None]
    told = [Trouble(one.breakers, one.engaged) for one in kept] + [UNKNOWN] * damaged
    trouble, epoch = worst(told), max((one.epoch for one in kept), default=-1)
    if memory is not None and standing is not None:
        memory = _advanced(memory, standing)
    if memory is not None:
        breakers, engaged = trouble or (State.CLOSED.value, True)
        memory = memory._replace(breakers=breakers, engaged=engaged)
    return Found(memory, trouble, epoch)


def remembered(found: Found, parted: Trouble | None) -> Found:
    """The same with what a process knows of the robot's breakers and no disk does."""
    if parted is None:
        return found
    trouble = worst([parted] if found.trouble is None else [parted, found.trouble])
    breakers, engaged = trouble or (State.CLOSED.value, True)
    memory = found.memory and found.memory._replace(breakers=breakers, engaged=engaged)
    return Found(memory, trouble, found.epoch)


def _advanced(memory: Memory, standing: Standing) -> Memory | None:
    if standing.epoch > memory.epoch:
        if standing.session != memory.session:  # another client has had the robot since
            return None
        return memory._replace(
            epoch=standing.epoch, sequence=standing.sequence, last_action=standing.last_action,
            snapshot=None, channels=None,
        )  # fmt: skip
    if standing.epoch == memory.epoch and standing.sequence > memory.sequence:
        return memory._replace(last_action=standing.last_action)
    return memory
