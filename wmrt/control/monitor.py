"""The prediction monitor: what a model expected of this observation, against what was observed.

A model that foresees its own drives to the last decimals knows when a reading cannot be: a sensor
that froze while the robot moves, or one that drifts. Limits come from `Calibration`; they say how
often a clean drive alarms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from wmrt.control import settings
from wmrt.control.calibration import Calibration
from wmrt.control.protocol import Policy
from wmrt.control.surprise import ColumnSums
from wmrt.core.errors import STOPPING, SafetyError
from wmrt.safety import Breakers, Cause, Finding


class Unwatched:
    """No monitor: nothing is expected, everything is trusted.

    Attributes:
        watches: whether `judge` and `trusted` do anything.
    """

    watches = False
    foresight: Foresight | None = None
    calibration: Calibration | None = None

    def reset(self) -> None:
        """There is nothing to forget."""

    def judge(
        self, breakers: Breakers, state: Mapping[str, Any], expected: Mapping[str, Any] | None
    ) -> None:
        """Nothing surprises."""

    def trusted(self, state: dict[str, Any] | None) -> dict[str, Any] | None:
        """``state``."""
        return state

    def report(self) -> dict[str, Any] | None:
        """None."""
        return None


class Monitor(Unwatched):
    """For ``Controller(model, monitor=...)``; of one robot.

    Args:
        calibration: of the model that drives, under its recipe.
    """

    watches = True

    def __init__(self, calibration: Calibration) -> None:
        settings.require(
            isinstance(calibration, Calibration), "calibration", "a Calibration", calibration
        )
        self.calibration: Calibration = calibration
        self.compared = self.alarms = 0
        self.alarms_by_field: dict[str, int] = {}
        self._columns: list[tuple[str, int | None, bool, ColumnSums]] = []
        self._suspects: tuple[tuple[str, bool], ...] = ()

    @classmethod
    def of(cls, model: Any, name_or_path: str | Path) -> Monitor:
        """With the calibration that lies beside ``name_or_path``, for ``model`` built from it.

        Raises:
            CheckpointError: none there, or not for this recipe or these weights.
        """
        monitor = cls(Calibration.load(name_or_path, model.recipe.name))
        monitor.attach(model, monitor.calibration.period)
        return monitor

    def attach(self, model: Policy, period: float) -> None:
        """Take the columns of ``model``'s schema; `Controller` does it.

        Raises:
            SafetyError: a calibration for other weights, another recipe, schema or period.
        """
        calibration, schema = self.calibration, model.schema
        recipe: Any = getattr(model, "recipe", None)
        for what, mine, theirs in (
            ("weights", calibration.model_sha256, getattr(model, "weights_sha256", None)),
            ("recipe", calibration.recipe, getattr(recipe, "name", None)),
            ("schema", calibration.schema_hash, getattr(schema, "hash", None)),
            ("period", calibration.period, period),
        ):
            if mine != theirs:
                raise SafetyError(
                    f"monitor: calibrated for {what} {mine}, the policy has {theirs}; "
                    "run wmrt calibrate for it"
                )
        self._columns = []
        for column in schema.columns:
            if column.kind != "numeric":
                continue
            if column.name not in calibration.columns:
                raise SafetyError(f"monitor: no limits for {column.name!r}; run wmrt calibrate")
            index = int(column.name[len(column.field) + 1 : -1]) if "[" in column.name else None
            limits = calibration.columns[column.name]
            sums = ColumnSums(limits, column.low, column.high, column.decimals)
            self._columns.append((column.field, index, column.required, sums))
        self.foresight = Foresight(model)
        self.reset()

    def reset(self) -> None:
        """A new episode: nothing was expected yet."""
        for _, _, _, sums in self._columns:
            sums.reset()
        self._suspects = ()

    def see(self, state: Mapping[str, Any], expected: Mapping[str, Any] | None) -> Finding | None:
        """Compare; what is most surprising, if anything is beyond its limit.

        Args:
            state: as observed; a value that is unknown, or was expected to be, empties its sums.
            expected: the state foreseen for now under the action that was sent; None when there is
                none (the first step, or after one without an answer): then nothing changes.
        """
        if expected is None:
            return None
        self.compared += 1
        worst, finding = 1.0, None
        suspects = []
        for field, index, required, sums in self._columns:
            value, wanted = state.get(field), expected.get(field)
            if type(value) is not float or type(wanted) is not float:
                value, wanted = _number(value, index), _number(wanted, index)
            if value is None or wanted is None or (value - value) or (wanted - wanted):
                sums.reset()
            elif sums.see(value, wanted):
                suspects.append((field, required))
                ratio, kind = sums.worst()
                if ratio >= worst:
                    worst, finding = ratio, Finding(field[:80], kind, round(ratio, 3), 1.0)
        self._suspects = tuple(suspects)
        if finding is not None:
            self.alarms += 1
            self.alarms_by_field[finding.field] = self.alarms_by_field.get(finding.field, 0) + 1
        return finding

    def judge(
        self, breakers: Breakers, state: Mapping[str, Any], expected: Mapping[str, Any] | None
    ) -> None:
        """`see`, and tell the breakers."""
        finding = self.see(state, expected)
        if finding is not None:
            breakers.report(Cause.SURPRISE, finding)

    def trusted(self, state: dict[str, Any] | None) -> dict[str, Any] | None:
        """What the fallback may go by: ``state`` with suspect fields unknown, None if one of those
        is required."""
        if state is None or not self._suspects:
            return state
        if any(required for _, required in self._suspects):
            return None
        return state | dict.fromkeys(field for field, _ in self._suspects)

    def report(self) -> dict[str, Any]:
        """Counters as plain data: steps compared, steps that alarmed, by most surprising field, and
        times the policy could not foresee."""
        return {
            "compared": self.compared,
            "alarms": self.alarms,
            "fields": dict(self.alarms_by_field),
            "failures": 0 if self.foresight is None else self.foresight.failures,
            "recipe": self.calibration.recipe,
        }


def attached(monitor: Monitor | None, model: Policy, period: float) -> Unwatched:
    """``monitor`` or none, ready for ``model``; raises `SafetyError` if it is not made for it."""
    settings.require(
        monitor is None or isinstance(monitor, Monitor), "monitor", "a Monitor, or None", monitor
    )
    if monitor is None:
        return Unwatched()
    monitor.attach(model, period)
    return monitor


class Foresight:
    """What the policy expects of the next observation, given what was really sent.

    A policy's ``predicted`` is for its own action. What was sent may be another (a vote's median,
    a ramp): a policy that has ``foresee`` is asked again for that one, any other expects nothing.

    Attributes:
        failures: times ``foresee`` raised or gave no state; nothing was expected then.
    """

    def __init__(self, policy: Policy) -> None:
        self._foresee = getattr(policy, "foresee", None)
        self.failures = 0
        self.reset()

    def reset(self) -> None:
        self._step = 0
        self._action: tuple[float, ...] = ()
        self._predicted: Mapping[str, Any] | None = None

    def expect(self, step: int, sent: Sequence[float]) -> Mapping[str, Any] | None:
        """The state expected in control step ``step``, before the policy is asked in it.

        None unless the policy answered in the step before.
        """
        if step != self._step + 1 or self._predicted is None:
            return None
        if tuple(sent) == self._action:
            return self._predicted
        if self._foresee is None:
            return None
        try:
            foreseen = self._foresee(sent)
        except STOPPING:
            raise
        except BaseException:  # a policy must not stop the loop
            foreseen = None
        if isinstance(foreseen, Mapping):
            return foreseen
        self.failures += 1
        return None

    def keep(self, step: int, action: tuple[float, ...] | None, predicted: Any) -> None:
        """The policy's answer in control step ``step``."""
        usable = action is not None and isinstance(predicted, Mapping)
        self._step = step
        self._action, self._predicted = (action or (), predicted) if usable else ((), None)


def _number(value: Any, index: int | None) -> float | None:
    """A value, or a component of a vector, as a float; None when it is unknown, or no number."""
    try:
        if index is not None and value is not None:
            value = value[index]
        return None if value is None else float(value)
    except Exception:  # the intake says what is wrong with a state; a prediction may be anything
        return None
