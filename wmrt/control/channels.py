"""Consensus channels: two diverse opinions beside the running model's.

Each costs its own step time, within the same deadline. Diverse means able to be wrong in another
way: the model in another recipe, an earlier checkpoint, an analytic rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from wmrt.control import settings
from wmrt.control.convert import as_action
from wmrt.control.protocol import Policy
from wmrt.core.errors import SafetyError
from wmrt.safety import Finding


@dataclass(frozen=True)
class Channel:
    """One opinion.

    Attributes:
        name: for the record.
        fn: (state, previous action float32[A]) -> action, normalised. Gets its own copies. Unknown
            values are None. Raising, a wrong shape or a value that is not finite is a failed vote.
        every: vote every so many steps. All channels vote on the steps that all of them allow.
        reset: called when an episode starts.
    """

    name: str
    fn: Callable[[dict[str, Any], Any], Any]
    every: int = 1
    reset: Callable[[], object] | None = None

    def __post_init__(self) -> None:
        settings.text("a channel's name", self.name)
        where = f"channel {self.name!r}: "
        settings.require(
            callable(self.fn),
            where + "fn",
            "a function (state, previous action) -> action",
            self.fn,
        )
        settings.function(where + "reset", self.reset, "()")
        if type(self.every) is not int or self.every < 1:
            raise SafetyError(
                f"channel {self.name!r}: every must be at least 1, got {self.every!r}"
            )

    @classmethod
    def from_policy(cls, name: str, policy: Policy) -> Channel:
        """A second model as a channel. It votes on every step, so that its memory has no gaps."""
        settings.has_methods(f"channel {name!r}: policy", policy, ("step", "reset"))
        return cls(
            name, lambda state, previous: policy.step(state, previous).action, 1, policy.reset
        )


class Channels:
    """The channels of one controller: none, or the two that make three with the model.

    Attributes:
        failures: failed votes by channel.
    """

    def __init__(self, channels: Sequence[Channel], size: int) -> None:
        ok = isinstance(channels, Sequence) and all(isinstance(c, Channel) for c in channels)
        settings.require(ok, "channels", "a sequence of Channel", channels)
        self._channels = tuple(channels)
        self._size = size
        names = [channel.name for channel in self._channels]
        if len(names) not in (0, 2) or len(set(names)) != len(names):
            raise SafetyError(
                f"channels: {names} given; the vote is 2 of 3, so give none or two different ones"
            )
        self.failures = dict.fromkeys(names, 0)

    def __len__(self) -> int:
        return len(self._channels)

    def reset(self) -> None:
        for channel in self._channels:
            if channel.reset is not None:
                channel.reset()

    def due(self, step: int) -> bool:
        """Whether they vote in control step ``step``, from 1."""
        return bool(self._channels) and all((step - 1) % c.every == 0 for c in self._channels)

    def availability(
        self, step: int, votes: Sequence[object | None] | None, late: bool
    ) -> tuple[str, ...]:
        """What became of each channel in a step: ``voted``, ``failed``, ``late``, ``not due``."""
        if votes is not None:
            return tuple("failed" if vote is None else "voted" for vote in votes)
        missing = "late" if late and self.due(step) else "not due"
        return (missing,) * len(self._channels)

    def ask(
        self, step: int, state: Mapping[str, Any], previous: Sequence[float]
    ) -> tuple[list[tuple[float, ...] | None] | None, list[Finding]]:
        """The votes (None for a failed channel) and what failed; no votes when none are due.

        Args:
            step: number of the control step, from 1; the first one votes.
        """
        if not self.due(step):
            return None, []
        votes: list[tuple[float, ...] | None] = []
        failed = []
        for channel in self._channels:
            vote = self._vote(channel, state, previous)
            if isinstance(vote, Finding):
                self.failures[channel.name] += 1
                failed.append(vote._replace(field=channel.name[:80]))
                votes.append(None)
            else:
                votes.append(vote)
        return votes, failed

    def _vote(
        self, channel: Channel, state: Mapping[str, Any], previous: Sequence[float]
    ) -> tuple[float, ...] | Finding:
        try:
            answer = channel.fn(dict(state), np.array(previous, np.float32))
        except Exception as error:  # a channel must not stop the loop
            return Finding(channel.name, type(error).__name__[:80])
        vote = as_action(answer, self._size)
        if not isinstance(vote, Finding) and not np.isfinite(vote).all():
            return Finding(channel.name, "nonfinite", str(vote)[:80])
        return vote
