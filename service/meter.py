"""What a service counts while robots are served: durations in buckets, steps, misses, refusals.

Written by the event loop alone, for every step, so it is integers in lists without locks: 1.2 us of
processor time a step here, through `prometheus_client`'s own counters 6.3, or 4.1 with every label
looked up beforehand. `wmrt.service.metrics` and `/v1/info` read it.
"""

from __future__ import annotations

import time
from array import array
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Sequence
from typing import NamedTuple

from wmrt.core.wire import REFUSALS, Acted
from wmrt.safety import Level
from wmrt.service.refusals import Refusal
from wmrt.service.slots import SOURCES

#: Upper bounds of the buckets, seconds: 100 us to 1 s, where control loops live.
EDGES = (
    *(0.0001, 0.00015, 0.0002, 0.0003, 0.0005, 0.0007),
    *(0.001, 0.0015, 0.002, 0.003, 0.005, 0.007),
    *(0.01, 0.015, 0.02, 0.03, 0.05, 0.07),
    *(0.1, 0.15, 0.2, 0.3, 0.5, 1.0),
)
LEVELS = {int(level): level.name.lower() for level in Level}
#: What becomes of an observation whose robot is known. The others are in the refusals.
OUTCOMES = (
    *("answered", "superseded", "discarded", "stale", "duplicate", "stale_epoch", "malformed"),
    "unknown_session",
)
#: How the memory of a session that was opened came about.
MEMORIES = ("kept", "restored", "fresh")


#: A step that took so many deadlines is kept, piece by piece, and so many of them of each robot.
STALLED, STALLS = 10.0, 16


class Stall(NamedTuple):
    """A step that took `STALLED` deadlines or more, seconds.

    Attributes:
        at: when it was answered, on the monotonic clock. step: its number.
        source: where its action came from. skipped: observations that it held up.
        queue, policy, breakers, reply: its pieces, see `Meter`; None where nobody was asked.
    """

    at: float
    step: int
    source: str
    skipped: int
    queue: float
    policy: float | None
    breakers: float
    reply: float


class Histogram:
    """Durations by bucket.

    Args:
        edges: upper bounds, seconds, ascending.

    Attributes:
        edges: the same. counts: of each bucket, the last one without a bound. total_ns: their sum.
    """

    __slots__ = ("_bounds", "counts", "edges", "total_ns")

    def __init__(self, edges: Sequence[float]) -> None:
        self.edges = tuple(edges)
        self._bounds = [round(edge * 1e9) for edge in edges]
        self.counts = array("q", [0]) * (len(self._bounds) + 1)
        self.total_ns = 0

    def observe(self, ns: int) -> None:
        if ns < 0:  # two threads' readings of one clock
            ns = 0
        self.counts[bisect_left(self._bounds, ns)] += 1
        self.total_ns += ns

    @property
    def count(self) -> int:
        return sum(self.counts)


class RobotMeter:
    """What is counted of one robot, for as long as it has its place.

    Attributes:
        step: from an observation's arrival to its answer. late: deadline misses.
        sources, trips, outcomes: steps by where the action came from, steps on which a level
            tripped, observations by what became of them.
        untold: misses since the last one that was logged.
        quiet_until: seconds, from when the next may be.
        stalls: the last ones.
    """

    def __init__(self, edges: Sequence[float]) -> None:
        self.step = Histogram(edges)
        self.late = self.untold = 0
        self.quiet_until = 0.0
        self.stalls: deque[Stall] = deque(maxlen=STALLS)
        self.sources: Counter[str] = Counter(dict.fromkeys(SOURCES, 0))
        self.trips = dict.fromkeys(LEVELS, 0)
        self.outcomes: Counter[str] = Counter(dict.fromkeys(OUTCOMES, 0))


class Meter:
    """What is counted of a process.

    Args:
        deadline: of a step, seconds; a bucket of its own ends there.

    Attributes:
        queue, policy, breakers, reply: a step from arrival to answer, piece by piece: in the
            mailbox, waiting for the policy (of steps that asked it), the rest of the controller's
            step, back in the event loop.
        lag: by how much the event loop was late for an appointment.
        refusals: by name, whoever said no. opened: sessions by their memory.
        not_restored: sessions whose snapshot was there and could not be used.
    """

    def __init__(self, deadline: float) -> None:
        self.edges = tuple(sorted({*EDGES, deadline})) if deadline > 0 else EDGES
        self._stalled_ns = STALLED * deadline * 1e9
        self.queue, self.policy = Histogram(self.edges), Histogram(self.edges)
        self.breakers, self.reply = Histogram(self.edges), Histogram(self.edges)
        self.lag = Histogram(EDGES)
        self.refusals: Counter[str] = Counter(dict.fromkeys(REFUSALS, 0))
        self.opened: Counter[str] = Counter(dict.fromkeys(MEMORIES, 0))
        self.not_restored = 0

    def robot(self) -> RobotMeter:
        """For a robot that gets a place."""
        return RobotMeter(self.edges)

    def acted(
        self,
        answer: Acted,
        arrived_ns: int,
        robot: RobotMeter | None,
        answered_ns: int | None = None,
    ) -> Stall | None:
        """A step was answered; what it was held up by, if it was.

        Args:
            arrived_ns: reading of `time.perf_counter_ns` when its observation came.
            robot: None for one that has left meanwhile.
            answered_ns: when its answer was on its way; default now.
        """
        took = (time.perf_counter_ns() if answered_ns is None else answered_ns) - arrived_ns
        waited = answer.policy_ns
        if waited is None and answer.late:  # it was waited for until the deadline
            waited = answer.act_ns
        rest, reply = answer.act_ns - (waited or 0), took - answer.queue_ns - answer.act_ns
        self.queue.observe(answer.queue_ns)
        if waited is not None:
            self.policy.observe(waited)
        self.breakers.observe(rest)
        self.reply.observe(reply)
        if robot is not None:
            robot.step.observe(took)
            robot.sources[answer.source] += 1
            robot.late += answer.late
            for level in answer.tripped:
                robot.trips[level] += 1
        if took < self._stalled_ns:
            return None
        stall = Stall(
            *(time.monotonic(), answer.step, answer.source, answer.skipped),
            *(answer.queue_ns * 1e-9, None if waited is None else waited * 1e-9),
            *(rest * 1e-9, reply * 1e-9),
        )
        if robot is not None:
            robot.stalls.append(stall)
        return stall

    def refused(self, refusal: Refusal) -> bool:
        """Somebody was told no; counted once, however often it is handed on. True if it was new."""
        if refusal.counted:
            return False
        refusal.counted = True
        self.refusals[refusal.name] += 1
        return True
