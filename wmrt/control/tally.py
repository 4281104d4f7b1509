"""Counters of one controller."""

from __future__ import annotations

from typing import Any

from wmrt.control.consult import Consulted
from wmrt.control.timing import Durations, Streak
from wmrt.safety import Breakers, Cause


class Tally:
    """Adds up outcomes. Attributes are running totals.

    Attributes:
        failures: times the recorder, or this accounting itself, raised.
        skipped: observations that were replaced by newer ones before the policy took them.
        late, late_failures: answers that came after their step; of these, those without use.
    """

    def __init__(self) -> None:
        self.misses, self.fallbacks = Streak(), Streak()
        self.act_times, self.policy_times = Durations(), Durations()
        self.failures = self.skipped = self.late = self.late_failures = 0

    def add(self, late: bool, source: str, act_ns: int, policy_ns: int | None) -> None:
        """A step's outcome."""
        if late:
            self.misses.add(True)
        else:
            self.misses.now = 0
        if source == "fallback":
            self.fallbacks.add(True)
        else:
            self.fallbacks.now = 0
        self.act_times.add(act_ns)
        if policy_ns is not None:
            self.policy_times.add(policy_ns)

    def follow(self, consulted: Consulted) -> None:
        """What became of earlier questions."""
        self.skipped += len(consulted.skipped)
        for late in consulted.finished:
            self.late += 1
            self.late_failures += late.fault is not None
            self.policy_times.add(late.policy_ns)

    def report(self, breakers: Breakers) -> dict[str, Any]:
        """Plain data: these counters and those of the breakers."""
        stats = breakers.stats()
        counts = stats.pop("counts")
        return {
            **stats,
            "clamps": {
                "range": counts[Cause.RANGE_CLAMP.value],
                "rate": counts[Cause.RATE_CLAMP.value],
            },
            "degraded_votes": counts[Cause.PAIR.value],
            "fallback_actions": self.fallbacks.total,
            "longest_fallback_streak": self.fallbacks.longest,
            "deadline_misses": self.misses.total,
            "longest_miss_streak": self.misses.longest,
            "skipped_observations": self.skipped,
            "late_answers": self.late,
            "late_failures": self.late_failures,
            "starved": counts[Cause.STARVED.value],
            "policy_ms": self.policy_times.summary_ms(),
            "act_ms": self.act_times.summary_ms(),
            "record_failures": self.failures,
            "causes": {cause: n for cause, n in counts.items() if n},
        }
