"""What a state is made of: typed fields and the columns they expand to."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from wmrt.core.errors import SchemaError
from wmrt.model.field_checks import (
    Knots,
    check_common,
    check_numbers,
    check_values,
    knot_rows,
    real,
    whole,
)
from wmrt.model.rounding import bucket_bounds, q_range, uniform_knots

KINDS = ("numeric", "vector", "category", "flag", "instruction")

_NAME = re.compile(r"[^\s\[\]\x00-\x1f\x7f]{1,64}")


@dataclass(frozen=True)
class Field:
    """One typed entry of a state; `numeric`, `vector`, `category`, `flag`, `instruction` build it.

    Attributes:
        kind: one of those five names.
        n: number of columns: the length of a vector, 0 for an instruction, else 1.
        unit, low, high, decimals, buckets: of numeric and vector; low and high in ``unit``.
        values: of category, in order; code 0 (unknown) is not among them.
        required: the robot cannot act without it.
        max_age: seconds after which a reading is stale; None means never.
        knots: one tuple of ``buckets + 1`` float32 values per column, or None for uniform ones.
    """

    kind: str
    n: int = 1
    unit: str = ""
    low: float = 0.0
    high: float = 0.0
    decimals: int = 0
    buckets: int = 0
    values: tuple[str, ...] = ()
    required: bool = False
    max_age: float | None = None
    knots: tuple[tuple[float, ...], ...] | None = None

    def __post_init__(self) -> None:
        """Check and normalise, whichever way the field was built. Raises `SchemaError`."""
        if self.kind not in KINDS:
            raise SchemaError(f"kind {self.kind!r:.80} is not known; allowed: {', '.join(KINDS)}")
        clean: dict[str, Any] = {"max_age": check_common(self.required, self.max_age)}
        if not whole(self.n) or self.n < (self.kind != "instruction"):
            raise SchemaError(f"n must be a whole number of at least 1, got {self.n!r:.40}")
        if self.numeric:
            clean["low"], clean["high"] = check_numbers(
                self.unit, self.low, self.high, self.decimals, self.buckets
            )
            clean |= {key: int(getattr(self, key)) for key in ("n", "decimals", "buckets")}
        elif self.knots is not None:
            raise SchemaError(f"a {self.kind} field has no knots; only numeric and vector do")
        if self.kind == "category":
            clean["values"] = check_values(self.values)
        for key, value in clean.items():
            object.__setattr__(self, key, value)
        if self.knots is not None:
            object.__setattr__(self, "knots", self._rows(self.knots))

    def _rows(self, knots: Knots) -> tuple[tuple[float, ...], ...] | None:
        """Checked knots, one row per column; None if all are uniform."""
        rows = knot_rows(knots, self.n, self.low, self.high, self.buckets)
        uniform = uniform_knots(self.low, self.high, self.buckets)
        return None if all(row == uniform for row in rows) else rows

    @property
    def numeric(self) -> bool:
        """True for the kinds that hold numbers."""
        return self.kind in ("numeric", "vector")

    def with_knots(self, knots: Knots | None) -> Field:
        """This field with other bucket knots; `SchemaError` says what is wrong with them."""
        return replace(self, knots=cast(Any, knots))

    def to_json(self) -> dict[str, Any]:
        """The field as JSON types, without its name."""
        out: dict[str, Any] = {"kind": self.kind}
        if self.kind == "vector":
            out["n"] = self.n
        if self.numeric:
            rows = None if self.knots is None else [list(row) for row in self.knots]
            out |= {"unit": self.unit, "low": self.low, "high": self.high}
            out |= {"decimals": self.decimals, "buckets": self.buckets}
            out["knots"] = rows[0] if rows is not None and self.kind == "numeric" else rows
        if self.kind == "category":
            out["values"] = list(self.values)
        if self.kind != "instruction":
            out |= {"required": self.required, "max_age": self.max_age}
        return out


@dataclass(frozen=True)
class Column:
    """One entry of the encoded state.

    Attributes:
        name: the field's name, or ``name[i]`` for component i of a vector.
        field: name of the field it comes from.
        kind: ``numeric`` (also for a vector's components), ``category`` or ``flag``.
        size: number of codes, unknown (0) included.
        decimals, low, high, unit: of a numeric column; low and high in ``unit``.
        required: of the field.
        values: the known values of a category in code order.
        knots: ``size`` ascending float32 values of a numeric column, from low to high.
        q_low, q_high: range of the integer q; codes for category and flag.
        bounds: `wmrt.model.rounding.bucket_bounds` of the knots.
        max_age: seconds after which a reading is stale, None means never.
    """

    name: str
    field: str
    kind: str
    size: int
    decimals: int = 0
    low: float = 0.0
    high: float = 0.0
    unit: str = ""
    required: bool = False
    values: tuple[str, ...] = ()
    knots: tuple[float, ...] = ()
    q_low: int = 1
    q_high: int = 2
    bounds: tuple[int, ...] = ()
    max_age: float | None = None

    @property
    def numeric(self) -> bool:
        """True when the column holds a number."""
        return self.kind == "numeric"

    @property
    def allowed(self) -> str:
        """What a value may be, in words."""
        if self.kind == "numeric":
            return f"a number in [{self.low:.9g}, {self.high:.9g}] {self.unit}".rstrip()
        if self.kind == "flag":
            return "true or false"
        shown = ", ".join(repr(value) for value in self.values[:12])
        return shown if len(self.values) <= 12 else f"{shown}, ... ({len(self.values)} in all)"


def numeric(
    unit: str,
    low: float,
    high: float,
    decimals: int = 2,
    buckets: int = 64,
    *,
    required: bool = False,
    max_age: float | None = None,
    knots: Knots | None = None,
) -> Field:
    """A number in ``unit`` within [low, high], kept to ``decimals`` places, in ``buckets`` buckets.

    Raises:
        SchemaError: bounds, decimals, buckets or knots that cannot work.
    """
    return Field(
        "numeric", unit=unit, low=low, high=high, decimals=decimals, buckets=buckets,
        required=required, max_age=max_age, knots=cast(Any, knots),
    )  # fmt: skip


def vector(
    n: int,
    unit: str,
    low: float,
    high: float,
    decimals: int = 2,
    buckets: int = 64,
    *,
    required: bool = False,
    max_age: float | None = None,
    knots: Knots | None = None,
) -> Field:
    """``n`` numbers of one unit and range; knots are one sequence for all or one per component.

    Raises:
        SchemaError: as `numeric`, or ``n`` below 1.
    """
    return Field(
        "vector", n=n, unit=unit, low=low, high=high, decimals=decimals, buckets=buckets,
        required=required, max_age=max_age, knots=cast(Any, knots),
    )  # fmt: skip


def category(
    values: Sequence[str], *, required: bool = False, max_age: float | None = None
) -> Field:
    """One of ``values``; unknown is added as value 0, so it is not listed.

    Raises:
        SchemaError: no values, a repeated, empty or non-string value, or ``"unknown"`` among them.
    """
    return Field("category", values=cast(Any, values), required=required, max_age=max_age)


def flag(*, required: bool = False, max_age: float | None = None) -> Field:
    """False, true or unknown."""
    return Field("flag", required=required, max_age=max_age)


def instruction() -> Field:
    """A text that says what to do. It has no column: it reaches the fingerprint as its hash."""
    return Field("instruction", n=0)


def expand(name: str, field: Field) -> list[Column]:
    """The columns of a field, in order; none for an instruction."""
    if field.kind == "instruction":
        return []
    if not field.numeric:
        size = 3 if field.kind == "flag" else len(field.values) + 1
        return [
            Column(
                name, name, field.kind, size, required=field.required, values=field.values,
                q_high=size - 1, max_age=field.max_age,
            )
        ]  # fmt: skip
    uniform = uniform_knots(field.low, field.high, field.buckets)
    rows = field.knots or (uniform,) * field.n
    q_low, q_high = q_range(field.low, field.high, field.decimals)
    bounds = {row: bucket_bounds(row, q_low, q_high, field.decimals) for row in set(rows)}
    return [
        Column(
            f"{name}[{i}]" if field.kind == "vector" else name, name, "numeric",
            field.buckets + 1, field.decimals, field.low, field.high, field.unit, field.required,
            (), row, q_low, q_high, bounds[row], field.max_age,
        )
        for i, row in enumerate(rows)
    ]  # fmt: skip


def check_schema(
    fields: Mapping[str, Field], neutral: Sequence[float], max_unknown: int | None, name: str
) -> tuple[float, ...]:
    """``neutral`` as floats, after checking the arguments of a schema; raises `SchemaError`."""
    if not isinstance(fields, Mapping):
        raise SchemaError(f"fields must map names to fields, got {type(fields).__name__}")
    for key, field in fields.items():
        if not isinstance(key, str) or not _NAME.fullmatch(key):
            raise SchemaError(
                f"field name {key!r:.80}: use 1 to 64 characters without spaces or brackets"
            )
        if not isinstance(field, Field):
            raise SchemaError(
                f"field {key!r}: got {type(field).__name__}; build it with numeric, vector, "
                "category, flag or instruction"
            )
    texts = [key for key, field in fields.items() if field.kind == "instruction"]
    if len(texts) > 1:
        raise SchemaError(f"at most one instruction field, got {', '.join(texts)}")
    if len(fields) == len(texts):
        raise SchemaError("a schema needs at least one field that is no instruction")
    if not isinstance(name, str):
        raise SchemaError(f"name must be a string, got {name!r:.80}")
    if max_unknown is not None and not (whole(max_unknown) and max_unknown >= 0):
        raise SchemaError(f"max_unknown must be None or a number from 0, got {max_unknown!r:.40}")
    try:
        action = tuple(float(value) + 0.0 for value in neutral)
    except (TypeError, ValueError, OverflowError):
        action = ()
    if not action or not all(real(value) and -1 <= value <= 1 for value in action):
        raise SchemaError(
            f"neutral must be one number in [-1, 1] per action, at least one, got {neutral!r:.80}"
        )
    return action
