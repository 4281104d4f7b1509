"""What lies between the control loop and the thread that writes."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

from wmrt.control.protocol import Outcome, StepInputs
from wmrt.safety import Event


class StepEntry(NamedTuple):
    """A step: its outcome, its inputs with the observation frozen, and its events.

    ``dropped``: entries that the ring had no room for, up to here.
    """

    outcome: Outcome
    inputs: StepInputs
    events: tuple[Event, ...]
    dropped: int


class CommandEntry(NamedTuple):
    """Something done between steps. ``after_step``: the last step before it."""

    name: str
    arguments: Mapping[str, Any]
    now_ns: int
    after_step: int
    events: tuple[Event, ...]
    dropped: int


Entry = StepEntry | CommandEntry


class Ring:
    """A queue of bounded length that never makes its writer wait: what finds no room is counted.

    Args:
        capacity: entries. At 100 Hz 4096 of them are 41 s during which the disk may stall.

    Attributes:
        dropped: entries that found no room.
    """

    def __init__(self, capacity: int) -> None:
        # Its appends and pops are atomic, which a list with two indices needs a lock for.
        self._entries: deque[Entry] = deque()
        self._capacity = capacity
        self.dropped = 0

    def has_room(self) -> bool:
        """Whether the next `put` will be kept. Ask before preparing an entry; counts a refusal."""
        if len(self._entries) < self._capacity:
            return True
        self.dropped += 1
        return False

    def put(self, entry: Entry) -> None:
        """Add an entry; to be called by the thread that asked `has_room`."""
        self._entries.append(entry)

    def take(self) -> Entry | None:
        """The oldest entry, removed; None when there is none. For one other thread."""
        try:
            return self._entries.popleft()
        except IndexError:
            return None

    def __len__(self) -> int:
        return len(self._entries)
