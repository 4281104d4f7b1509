"""Consensus channels: two diverse opinions beside the running model's.

Each costs its own step time, within the same deadline. Diverse means able to be wrong in another
way: the model in another recipe, an earlier checkpoint, an analytic rule. `standard_channels` in
`wmrt.control.standard` builds the usual two.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from wmrt.control import settings
from wmrt.control.convert import as_action
from wmrt.control.diversity import Identity, identity_of, require_diverse
from wmrt.control.protocol import Policy
from wmrt.control.timing import Durations
from wmrt.core.errors import STOPPING, SafetyError
from wmrt.safety import Finding

#: Durations of a channel that are kept.
_KEPT = 1 << 12


@dataclass(frozen=True)
class Channel:
    """One opinion.

    Attributes:
        name: for the record.
        fn: (state, previous action float32[A]) -> action, normalised. Gets its own copies. Unknown
            values are None. Raising, a wrong shape or a value that is not finite is a failed vote.
        every: vote every so many steps. All channels vote on the steps that all of them allow.
        reset: called when an episode starts.
        observe: called with what ``fn`` would get on steps without a vote, for a channel with a
            memory. It must have no gaps: a model that saw every third step would take three periods
            for one.
        identity: two channels of one identity always agree; None where ``fn`` says it, or nothing
            does.
        policy: the second model, if that is what it is.
        snapshot, restore: of its memory, both or none: () -> what continues where it was, and
            (that) -> anything, which raises for a memory that is not its own.
    """

    name: str
    fn: Callable[[dict[str, Any], Any], Any]
    every: int = 1
    reset: Callable[[], object] | None = None
    observe: Callable[[dict[str, Any], Any], object] | None = None
    identity: Identity | None = None
    policy: Policy | None = None
    snapshot: Callable[[], Any] | None = None
    restore: Callable[[Any], object] | None = None

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
        settings.function(where + "observe", self.observe, "(state, previous action)")
        settings.function(where + "snapshot", self.snapshot, "() -> memory")
        settings.function(where + "restore", self.restore, "(memory)")
        if (self.snapshot is None) != (self.restore is None):
            raise SafetyError(where + "snapshot and restore go together; give both or none")
        if type(self.every) is not int or self.every < 1:
            raise SafetyError(
                f"channel {self.name!r}: every must be at least 1, got {self.every!r}"
            )

    @classmethod
    def from_policy(cls, name: str, policy: Policy, every: int = 1) -> Channel:
        """A second model as a channel.

        It sees every step, so that its memory has no gaps; between votes by its ``observe`` if it
        has one (a `WorldModel` then leaves out its heads), else by a ``step`` nobody reads.
        """
        settings.has_methods(f"channel {name!r}: policy", policy, ("step", "reset"))
        return cls(
            name,
            lambda state, previous: policy.step(state, previous).action,
            every,
            policy.reset,
            getattr(policy, "observe", policy.step),
            identity_of(policy),
            policy,
            getattr(policy, "snapshot", None),
            getattr(policy, "restore", None),
        )

    @property
    def resident_bytes(self) -> int | None:
        """What its model keeps in memory; None where there is none, or it does not say."""
        report = getattr(self.policy, "report", None)
        return getattr(report(), "resident_bytes", None) if callable(report) else None


@dataclass
class _Account:
    """What one channel did. ``durations`` are those of its votes, ``observing`` of the rest."""

    votes: int = 0
    failures: int = 0
    late: int = 0
    durations: Durations = field(default_factory=lambda: Durations(_KEPT))
    observing: Durations = field(default_factory=lambda: Durations(_KEPT))


class Channels:
    """The channels of one controller: none, or the two that make three with the model.

    Args:
        model: the running model; the channels must differ from it and from each other.
        timer: nanoseconds.

    Attributes:
        silent: there are none, and nobody need be asked.

    Raises:
        SafetyError: another number of channels, two of one name, or two that always agree.
    """

    def __init__(
        self,
        channels: Sequence[Channel],
        model: Policy,
        timer: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        ok = isinstance(channels, Sequence) and all(isinstance(c, Channel) for c in channels)
        settings.require(ok, "channels", "a sequence of Channel", channels)
        self._channels = tuple(channels)
        self.silent = not self._channels
        self._size = len(model.actions)
        self._timer = timer
        names = [channel.name for channel in self._channels]
        if len(names) not in (0, 2) or len(set(names)) != len(names):
            raise SafetyError(
                f"channels: {names} given; the vote is 2 of 3, so give none or two different ones"
            )
        if names:
            own = [(c.name, c.identity or identity_of(c.fn)) for c in self._channels]
            require_diverse([("the running model", identity_of(model)), *own])
        self._accounts = {name: _Account() for name in names}

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
        self,
        step: int,
        state: Mapping[str, Any],
        previous: Sequence[float],
        until: float = math.inf,
    ) -> tuple[list[tuple[float, ...] | None] | None, list[Finding]]:
        """The votes (None for a failed channel) and what failed; no votes when none are due.

        A vote that ends after ``until`` makes the step late: a finding says whose it was. Those
        after it are not asked any more, they only see the step.

        Args:
            step: number of the control step, from 1; the first one votes.
            until: reading of the timer from which the step is late.
        """
        due = self.due(step)
        votes: list[tuple[float, ...] | None] = []
        failed = []
        for channel in self._channels:
            began = self._timer()
            said: tuple[float, ...] | Finding | None
            if due and began <= until:
                said = self._vote(channel, state, previous, began, until)
            else:
                said = self._observe(channel, state, previous, began)
                self._accounts[channel.name].late += due
            if isinstance(said, Finding):
                failed.append(said._replace(field=channel.name[:80]))
            votes.append(None if isinstance(said, Finding) else said)
        return (votes if due else None), failed

    def _vote(
        self,
        channel: Channel,
        state: Mapping[str, Any],
        previous: Sequence[float],
        began: int,
        until: float,
    ) -> tuple[float, ...] | Finding:
        account = self._accounts[channel.name]
        vote = self._answer(channel, state, previous)
        ended = self._timer()
        account.durations.add(ended - began)
        if ended > until:
            account.late += 1
            return Finding(channel.name, "late", ended - began, "the step's deadline")
        if isinstance(vote, Finding):
            account.failures += 1
        else:
            account.votes += 1
        return vote

    def _answer(
        self, channel: Channel, state: Mapping[str, Any], previous: Sequence[float]
    ) -> tuple[float, ...] | Finding:
        try:
            answer = channel.fn(dict(state), np.array(previous, np.float32))
        except STOPPING:
            raise
        except BaseException as error:  # a channel must not stop the loop
            return Finding(channel.name, type(error).__name__[:80])
        vote = as_action(answer, self._size)
        if not isinstance(vote, Finding) and not np.isfinite(vote).all():
            return Finding(channel.name, "nonfinite", str(vote)[:80])
        return vote

    def _observe(
        self, channel: Channel, state: Mapping[str, Any], previous: Sequence[float], began: int
    ) -> Finding | None:
        """A step on which a channel has no vote; what went wrong with it, if anything."""
        if channel.observe is None:
            return None
        account = self._accounts[channel.name]
        try:
            channel.observe(dict(state), np.array(previous, np.float32))
        except STOPPING:
            raise
        except BaseException as error:
            account.failures += 1
            return Finding(channel.name, type(error).__name__[:80])
        finally:
            account.observing.add(self._timer() - began)
        return None

    def stats(self) -> dict[str, Any]:
        """Failed votes by channel, and what each channel did and costs; plain data.

        ``ms`` is the time of a vote, ``observe_ms`` that of a step without one; ``resident_bytes``
        is None where it is not known.
        """
        told = {
            channel.name: {
                "every": channel.every,
                "votes": account.votes,
                "failures": account.failures,
                "late": account.late,
                "ms": account.durations.summary_ms(),
                "observe_ms": account.observing.summary_ms(),
                "resident_bytes": channel.resident_bytes,
            }
            for channel, account in zip(self._channels, self._accounts.values(), strict=True)
        }
        failures = {name: account.failures for name, account in self._accounts.items()}
        return {"channel_failures": failures, "channels": told}
