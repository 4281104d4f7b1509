"""The policy that plans: asks the policy inside, imagines around its answer, weighs, answers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wmrt.control.convert import as_action, as_chunk
from wmrt.control.planning.fit import Timing
from wmrt.control.planning.protocol import ImaginingPolicy
from wmrt.control.planning.sampler import Plans, Sampler
from wmrt.control.planning.scores import Values, scores, weights
from wmrt.core.types import ActionSpec
from wmrt.safety import Finding

if TYPE_CHECKING:
    from wmrt.control.planning.mppi import MPPI


#: The rest of a model, such as its snapshots and its name in a record, is not the planner's.
_PASSED_ON = ("foresee", "period", "provenance", "recipe", "report", "weights_sha256")


class Choice(NamedTuple):
    """How one step was decided.

    Attributes:
        taken: ``plan``, or why it is the policy's own action: ``worse`` (the plan promises no more
            than that), ``nonfinite`` (no imagined return is finite, or the plan's is not),
            ``malformed`` (an action that nothing can be drawn around: it is left to the breakers).
        dropped: samples with weight 0 because their return was not finite.
        own, planned: imagined return of the policy's own actions and of the plan; None if unknown.
        effective: effective number of samples, 1 / sum of squared weights; 0 without weights.
    """

    taken: str
    dropped: int = 0
    own: float | None = None
    planned: float | None = None
    effective: float = 0.0


@dataclass(frozen=True)
class PlannedStep:
    """One answer.

    Attributes:
        action, chunk, predicted: what the controller reads, see `Policy`. Of the plan; or of the
            policy's own step, as it was or as near as the limits allow after earlier plans.
        own: the policy's own step.
        choice: how it was decided.
    """

    action: Any
    chunk: Any
    predicted: Any
    own: Any
    choice: Choice

    @property
    def note(self) -> Finding | None:
        """For the record: imagined futures that were not finite."""
        choice = self.choice
        if not choice.dropped and choice.taken != "nonfinite":
            return None
        return Finding("imagined return", "nonfinite", choice.dropped, f"took: {choice.taken}")


class Planner:
    """A policy around a policy; `MPPI.around` makes it.

    What it answers is a function of the model's memory, the inputs, and the draws since `reset`.
    What ``model`` raises passes: a model that cannot imagine has failed.

    Attributes:
        model: the policy inside.
        settings: see `MPPI`.
        timing: what was measured when it was made; None without a deadline.
        last: how the last step was decided.
    """

    def __init__(self, model: ImaginingPolicy, settings: MPPI, sampler: Sampler) -> None:
        self.model, self.settings = model, settings
        self.timing: Timing | None = None
        self.last: Choice | None = None
        self._sampler = sampler
        self._counts: Counter[str] = Counter()
        self._before = np.array(model.schema.neutral, np.float32)

    @property
    def schema(self) -> Any:
        return self.model.schema

    @property
    def actions(self) -> ActionSpec:
        return self.model.actions

    def __getattr__(self, name: str) -> Any:
        """What a monitor, a controller and a record ask of a model, where this one has it."""
        if name in _PASSED_ON:
            return getattr(self.model, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def reset(self) -> None:
        """Start an episode: the model forgets, the draws start again."""
        self.model.reset()
        self._sampler.reset()
        self._before = np.array(self.schema.neutral, np.float32)
        self.last = None

    def step(self, state: Mapping[str, Any], previous_action: Any = None) -> PlannedStep:
        """One control step.

        Args:
            previous_action: float[A], the action sent last; None means the one returned last.
        """
        before = self._before if previous_action is None else np.array(previous_action, np.float32)
        own = self.model.step(state, before)
        base = self._base(own)
        if base is None:
            answer = PlannedStep(*_parts(own), own, Choice("malformed"))
        else:
            answer = self._plan(own, self._sampler.admit(base, before), before)
            self._before = np.array(answer.action, np.float32)
        self.last = answer.choice
        self._counts[answer.choice.taken] += 1
        self._counts["dropped"] += answer.choice.dropped
        return answer

    def stats(self) -> dict[str, Any]:
        """Counts since it was made: control steps by what was taken, samples dropped, imagined
        steps; and what was measured, as plain data."""
        return {
            "imagined_steps": self._counts["imagined"],
            "taken": {k: self._counts[k] for k in ("plan", "worse", "nonfinite", "malformed")},
            "dropped_samples": self._counts["dropped"],
            "timing": None if self.timing is None else self.timing._asdict(),
        }

    def _base(self, own: Any) -> NDArray[np.float64] | None:
        """The policy's own next actions float64[horizon, A]: its chunk, whose last row goes on; its
        action, if there is no chunk to rely on. None if there is no action either."""
        horizon, size = self.settings.horizon, len(self.actions)
        action = as_action(own.action, size)
        if isinstance(action, Finding) or not np.abs(action).max() <= 1.0:
            return None
        chunk = as_chunk(getattr(own, "chunk", None), size, horizon)
        usable = not isinstance(chunk, Finding) and bool(chunk) and np.isfinite(chunk).all()
        rows = [action, *chunk[1:]] if usable else [action]
        return np.array(rows + [rows[-1]] * (horizon - len(rows)), np.float64)

    def _plan(self, own: Any, base: Plans, before: Any) -> PlannedStep:
        plans = self._sampler.draw(base, before, self.settings.samples)
        values, after_own = self._imagine(plans)
        finite = np.isfinite(values)
        known = float(values[0]) if finite[0] else None
        choice = Choice("nonfinite", int((~finite).sum()), known)
        shares = weights(values, self.settings.temperature)
        if shares is not None:
            # Not a product of matrices: those round differently with the number of threads.
            mean = (shares[:, None, None] * plans).sum(axis=0)
            plan = self._sampler.admit(mean, before)
            value, after = self._imagine(plan[None])
            choice = self._compare(choice, float(value[0]), shares)
            if choice.taken == "plan":
                return PlannedStep(plan[0].copy(), plan, self.schema.decode(after), own, choice)
        if np.array_equal(base[0], np.asarray(own.action, np.float32)):
            return PlannedStep(*_parts(own), own, choice)
        # Earlier plans led away from it: as near as the limits allow, and what follows from that.
        predicted = None if known is None else self.schema.decode(after_own)
        return PlannedStep(base[0].copy(), base, predicted, own, choice)

    def _compare(self, choice: Choice, planned: float, shares: Values) -> Choice:
        """Whether the plan is better than the policy's own actions."""
        effective = float(1.0 / np.square(shares).sum())
        if not math.isfinite(planned):
            return choice._replace(effective=effective)
        better = choice.own is None or planned > choice.own + self.settings.margin
        taken = "plan" if better else "worse"
        return choice._replace(taken=taken, planned=planned, effective=effective)

    def _imagine(self, plans: Plans) -> tuple[Values, Any]:
        """Return of each sequence float64[N], and the state after the first one's first action."""
        self._counts["imagined"] += plans.shape[0] * plans.shape[1]
        future = self.model.imagine(plans)
        values = scores(future.reward, future.proceed, self.settings.discount, self.settings.tail)
        return values, future.q[0, 0]


def _parts(own: Any) -> tuple[Any, Any, Any]:
    """What the controller reads of a policy's step."""
    return own.action, getattr(own, "chunk", None), getattr(own, "predicted", None)
