"""The rate a policy was trained at, and a control loop that runs faster."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

from wmrt.control.consult import Consultant, Consulted
from wmrt.core.errors import SafetyError
from wmrt.safety import Breakers, Proposal
from wmrt.safety.judge import range_fault

#: Periods that differ by less are equal: 1/30 s is written in many ways.
_TOLERANCE = 1e-6


def training_period(model: Any) -> float | None:
    """Seconds per step that the policy knows; None when it does not say.

    Its own ``period``, or what a checkpoint's provenance says, which `wmrt train` writes.
    """
    period = getattr(model, "period", None)
    if period is None:
        provenance = getattr(model, "provenance", None)
        period = provenance.get("period") if isinstance(provenance, Mapping) else None
    if not isinstance(period, Real) or isinstance(period, bool):
        return None
    seconds = float(period)
    return seconds if 0.0 < seconds < math.inf else None


def steps_per_question(model: Any, period: float, resample: Any, channels: int) -> int:
    """How many control steps one step of the policy takes.

    Raises:
        SafetyError: another rate than the policy's without ``resample``, or one that resampling
            cannot reach.
    """
    if resample not in (None, "linear"):
        raise SafetyError(f'resample must be None or "linear", got {resample!r:.80}')
    trained = training_period(model)
    if trained is None:
        if resample is None:
            return 1
        raise SafetyError(
            f"resample={resample!r}: the model does not say at what period it was trained; "
            "give it a period attribute, in seconds"
        )
    ratio = trained / period
    if abs(ratio - 1.0) <= _TOLERANCE:
        return 1
    whole = round(ratio)
    possible = whole >= 2 and abs(ratio - whole) <= _TOLERANCE * whole
    if resample is None or not possible:
        raise SafetyError(
            f"the model was trained at {trained:g} s a step, period is {period:g} s; use "
            f'period={trained:g}, or a whole fraction of it with resample="linear"'
        )
    if channels:
        raise SafetyError(
            "resample: channels vote on whole steps of the policy; run them at its own period"
        )
    return whole


class Resampler(Consultant):
    """Asks at the policy's rate, and moves to each answer in equal parts until the next.

    A policy's action is what it wants after one of its own periods; sent at once, it would change
    faster than the rate limits of the shorter period allow. It costs up to one period of the policy
    in delay. Where the input is unfit in between, the next step asks anew.

    Args:
        inner: asks.
        every: control steps per question, at least 2.
    """

    def __init__(self, inner: Consultant, breakers: Breakers, every: int) -> None:
        self._inner, self._breakers, self._every = inner, breakers, every
        self._deadline_ns = inner._deadline_ns
        self._box = breakers.limits.boxes(1.0)
        self._target: Proposal | None = None
        self._left = self._step = 0

    def ask(self, state: Mapping[str, Any], started: int) -> Consulted:
        between = self.between()
        return self.taken(self._inner.ask(state, started)) if between is None else between

    @property
    def inner(self) -> Consultant:
        return self._inner

    def between(self) -> Consulted | None:
        if not self._left or self._breakers.step != self._step + 1:
            return None
        consulted = Consulted(self._part(self._target))
        self._count()
        return consulted

    def taken(self, consulted: Consulted) -> Consulted:
        self._target, self._left = consulted.proposal, self._every
        consulted = consulted._replace(proposal=self._begin(consulted.proposal))
        self._count()
        return consulted

    def _count(self) -> None:
        self._left -= 1
        self._step = self._breakers.step

    def _begin(self, target: Proposal | None) -> Proposal | None:
        """The first part. What is no action within bounds goes to the breakers as it is."""
        names = self._breakers.limits.spec.names
        if target is None or target.action is None or target.fault is not None:
            self._target = None
        elif len(target.action) != len(names) or range_fault(target.action, self._box, names):
            self._target = None
        else:
            return self._part(target)
        return target

    def _part(self, target: Proposal | None) -> Proposal | None:
        """The way from the last action sent to the target, in as many parts as steps are left."""
        if target is None or target.action is None:
            return None
        reference, left = self._breakers.reference, self._left
        if left == 1:
            return target
        pairs = zip(reference, target.action, strict=True)
        return target._replace(action=tuple(at + (goal - at) / left for at, goal in pairs))

    def drop(self) -> None:
        self._target = None
        self._left = self._step = 0

    def distrust(self) -> None:
        self._target = None

    def clear(self) -> int | None:
        self.drop()
        return self._inner.clear()

    def reset(self) -> None:
        self._inner.reset()

    def interrupt(self) -> None:
        self._inner.interrupt()

    def close(self) -> None:
        self._inner.close()
