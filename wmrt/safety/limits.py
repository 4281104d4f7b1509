"""The limits the breakers enforce, in physical units, and every number of their behaviour."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple

from wmrt.core.errors import SafetyError
from wmrt.core.types import ActionSpec
from wmrt.safety.float32 import narrow
from wmrt.safety.limit_checks import check_dim, check_numbers, is_number


@dataclass(frozen=True)
class DimLimit:
    """Limits of one actuator, in its own unit and per second.

    Attributes:
        name, unit: as in the `ActionSpec` these limits belong to.
        low, high: the allowed range; within the actuator's own.
        rate_up, rate_down: largest increase and decrease per second, both positive.
        agree: two channels agree on this actuator when they differ by at most this much.
    """

    name: str
    unit: str
    low: float
    high: float
    rate_up: float
    rate_down: float
    agree: float


@dataclass(frozen=True)
class StateLimit:
    """Bounds of one predicted numeric state field (of every component of a vector), in its unit."""

    name: str
    unit: str
    low: float
    high: float


class Box(NamedTuple):
    """Normalised bounds of an action dimension: allowed, and still tolerated (clamped, counted)."""

    low: float
    high: float
    tolerated_low: float
    tolerated_high: float


@dataclass(frozen=True)
class Limits:
    """All that the breakers need to know. Build it with `from_spec` or `from_json`.

    Attributes:
        spec: the actuators; maps normalised [-1, 1] to physical units.
        period: control period in seconds.
        neutral: the normalised action at rest, where the fallback ramps to.
        dims: one limit per action dimension, in the order of ``spec``.
        state: bounds of predicted state fields.
        range_tolerance: part of a range by which a value may leave it and be clamped instead of
            blocked; never more than a tenth of the bound itself, so that 1.2 times any bound trips.
        rate_tolerance, wall_tolerance: part by which a change may exceed its per-step limit, its
            limit by the clock over the last two commands, and be clamped instead of blocked.
        step_periods: time between two commands counts up to so many periods, at most two: the
            per-step limit is the rate times that.
        trip_limit, trip_window: so many range trips within so many seconds open.
        good_inputs: good steps in a row that lead from OPEN to HALF_OPEN.
        clean_steps: clean steps in a row that lead out of HALF_OPEN.
        half_open_scale: what is left of ranges (around neutral) and rates in HALF_OPEN.
        heal_steps: votes in a row in which all three channels agree that end DEGRADED.
        latch_opens, latch_window: so many openings within so many seconds latch.

    Raises:
        SafetyError: anything that cannot work; the message names it.
    """

    spec: ActionSpec
    period: float
    neutral: tuple[float, ...]
    dims: tuple[DimLimit, ...]
    state: tuple[StateLimit, ...] = ()
    range_tolerance: float = 0.05
    rate_tolerance: float = 0.10
    wall_tolerance: float = 0.05
    step_periods: float = 1.0
    trip_limit: int = 3
    trip_window: float = 2.0
    good_inputs: int = 5
    clean_steps: int = 20
    half_open_scale: float = 0.5
    heal_steps: int = 20
    latch_opens: int = 3
    latch_window: float = 30.0

    def __post_init__(self) -> None:
        check_numbers(self)
        if len(self.dims) != len(self.spec) or len(self.neutral) != len(self.spec):
            raise SafetyError(
                f"limits: {len(self.dims)} dims and {len(self.neutral)} neutral values for "
                f"{len(self.spec)} actuators {self.spec.names}; give one of each per actuator"
            )
        for dim, limit, rest in zip(self.spec.dims, self.dims, self.neutral, strict=True):
            check_dim(dim, limit, rest)
        names = [bound.name for bound in self.state]
        if len(set(names)) != len(names):
            raise SafetyError(f"limits: state fields must be different, got {names}")
        for bound in self.state:
            if not (is_number(bound.low) and is_number(bound.high) and bound.low < bound.high):
                raise SafetyError(
                    f"limits: state {bound.name!r} needs finite low < high, got "
                    f"[{bound.low}, {bound.high}] {bound.unit}"
                )

    @classmethod
    def from_spec(
        cls,
        spec: ActionSpec,
        *,
        period: float,
        neutral: Sequence[float] | None = None,
        state: Sequence[StateLimit] = (),
        agree: Mapping[str, float] | None = None,
        **options: Any,
    ) -> Limits:
        """Limits equal to the actuators' own.

        Args:
            neutral: normalised; default 0 everywhere.
            agree: consensus tolerance by actuator, in its unit; default what the actuator can be
                moved in one period. A policy that decides one step before its twin differs from it
                by up to that, and the next step reconciles them. With 15% of the range instead,
                such steps lost the majority in 1.3% of all, and 106 of 200 drives latched.
            options: any other attribute.
        """
        given = dict(agree or {})
        unknown = sorted(set(given) - set(spec.names))
        if unknown:
            raise SafetyError(f"agree: no actuator {unknown[0]!r}; there are {list(spec.names)}")
        dims = tuple(
            DimLimit(
                d.name, d.unit, d.low, d.high, d.rate_up, d.rate_down,
                given.get(d.name, period * max(d.rate_up, d.rate_down)),
            )
            for d in spec.dims
        )  # fmt: skip
        rest = (0.0,) * len(spec) if neutral is None else tuple(float(v) for v in neutral)
        return cls(spec, period, rest, dims, tuple(state), **options)

    def to_json(self) -> dict[str, Any]:
        """Plain data; `from_json` makes equal limits of it."""
        data = asdict(self)
        data["spec"] = self.spec.to_json()
        for key in ("neutral", "dims", "state"):
            data[key] = list(data[key])
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Limits:
        """Inverse of `to_json`. Raises `SafetyError` on unknown or missing keys."""
        try:
            options = dict(data)
            return cls(
                ActionSpec.from_json(options.pop("spec")),
                options.pop("period"),
                tuple(options.pop("neutral")),
                tuple(DimLimit(**entry) for entry in options.pop("dims")),
                tuple(StateLimit(**entry) for entry in options.pop("state", ())),
                **options,
            )
        except (TypeError, ValueError) as error:
            raise SafetyError(
                f"limits: {error}; allowed: {[f.name for f in fields(cls)]}"
            ) from None
        except KeyError as error:
            raise SafetyError(
                f"limits: {error} is missing; give spec, period, neutral, dims"
            ) from None

    @cached_property
    def hash(self) -> str:
        """16 hex digits over every number here; stands in each event."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @cached_property
    def period_ns(self) -> int:
        return round(self.period * 1e9)

    @cached_property
    def rest(self) -> tuple[float, ...]:
        """Neutral as float32 values inside the box."""
        return tuple(
            narrow(box.low, box.high, value)
            for box, value in zip(self.boxes(1.0), self.neutral, strict=True)
        )

    @cached_property
    def agree(self) -> tuple[float, ...]:
        """Consensus tolerances, normalised."""
        return tuple(
            2.0 * limit.agree / (dim.high - dim.low)
            for dim, limit in zip(self.spec.dims, self.dims, strict=True)
        )

    def boxes(self, scale: float) -> tuple[Box, ...]:
        """Normalised bounds per dimension, shrunk around neutral to ``scale`` of their distance."""
        boxes = []
        for dim, limit, rest in zip(self.spec.dims, self.dims, self.neutral, strict=True):
            low, high = dim.to_normalised(limit.low), dim.to_normalised(limit.high)
            below, above = _tolerances(low, high, self.range_tolerance)
            boxes.append(
                Box(
                    rest + scale * (low - rest),
                    rest + scale * (high - rest),
                    low - below,
                    high + above,
                )
            )
        return tuple(boxes)

    def deltas(self, seconds: float) -> tuple[tuple[float, float], ...]:
        """Largest normalised (increase, decrease) per dimension over ``seconds``."""
        twice = 2.0 * seconds
        return tuple(
            [(up * (twice / span), down * (twice / span)) for up, down, span in self.rates]
        )

    @cached_property
    def rates(self) -> tuple[tuple[float, float, float], ...]:
        """(rate up, rate down, whole range) per dimension, physical."""
        pairs = zip(self.spec.dims, self.dims, strict=True)
        return tuple((d.rate_up, d.rate_down, dim.high - dim.low) for dim, d in pairs)

    def state_bounds(self) -> tuple[tuple[str, float, float], ...]:
        """(name, lowest, highest) a predicted value may be, tolerance included."""
        bounds = []
        for s in self.state:
            below, above = _tolerances(s.low, s.high, self.range_tolerance)
            bounds.append((s.name, s.low - below, s.high + above))
        return tuple(bounds)


def _tolerances(low: float, high: float, part: float) -> tuple[float, float]:
    """How far below ``low`` and above ``high`` is still tolerated.

    A part of the range, but at most a tenth of the bound itself unless that is 0: else a bound that
    is small beside the range (say 10 of [-100, 10]) could be exceeded by half without a trip.
    """
    span = part * (high - low)
    return tuple(min(span, 0.1 * abs(bound)) if bound else span for bound in (low, high))  # type: ignore[return-value]
