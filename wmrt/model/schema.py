"""StateSchema: the contract between a robot and its world model.

An ordered set of typed fields. It turns a state (a mapping of field names to values) into integers
that are the same on every device, names the state with a 64-bit fingerprint, and says what is
wrong with a state that does not fit.

    schema = StateSchema(
        {
            "ego_speed": numeric("m/s", 0.0, 40.0, required=True),
            "lane": category(["left", "middle", "right"]),
        },
        neutral=[0.0, 0.0],
    )
    codes, values, issues = schema.encode({"ego_speed": 21.5, "lane": "left"})
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from wmrt.core.errors import StateError
from wmrt.model import schema_json, tables
from wmrt.model.clean import Clean
from wmrt.model.encoded import Encoded, Raw
from wmrt.model.encoding import Encoder
from wmrt.model.field_checks import Knots
from wmrt.model.fields import (
    Column,
    Field,
    category,
    check_schema,
    expand,
    flag,
    instruction,
    numeric,
    vector,
)
from wmrt.model.fingerprint import Fingerprinter, content_hash
from wmrt.model.issues import ABSENT_KINDS, Issue, plain
from wmrt.model.readings import attempt, to_instruction
from wmrt.model.rounding import UNKNOWN

__all__ = [
    "UNKNOWN",
    "Column",
    "Encoded",
    "Field",
    "Issue",
    "StateSchema",
    "category",
    "flag",
    "instruction",
    "numeric",
    "vector",
]

#: Problems spelled out in one StateError; the rest are counted.
_MAX_TOLD = 5


class StateSchema:
    """Ordered typed fields, and what the robot does when it has nothing better to do.

    Args:
        fields: name to `Field`, in the order of the columns. At most one is an instruction.
        neutral: the action at rest, one number in [-1, 1] per action dimension.
        max_unknown: how many optional fields may be unknown before a state is unfit to act on;
            None means any number. A vector counts as unknown when one of its components is.
        name: a label.

    Attributes:
        fields: the fields, read-only.
        columns: F columns; a vector of n gives n, an instruction none.
        numeric_index: positions in ``columns`` of the numeric ones, in order.
        instruction: name of the instruction field, or None.
        hash: SHA-256 (hex) of everything above, knots included.
        input_hash: the same without buckets and knots: equal for schemas that read states alike.
        clean: a quick look at a dict; True if `quantize` has no issues with it. See `Clean`.

    Raises:
        SchemaError: a definition that cannot work; the message names the field.
    """

    def __init__(
        self,
        fields: Mapping[str, Field],
        *,
        neutral: Sequence[float],
        max_unknown: int | None = None,
        name: str = "",
    ) -> None:
        self.neutral = check_schema(fields, neutral, max_unknown, name)
        self.fields: Mapping[str, Field] = MappingProxyType(dict(fields))
        self.max_unknown = max_unknown
        self.name = name
        self.columns: tuple[Column, ...] = tuple(
            column for key, field in self.fields.items() for column in expand(key, field)
        )
        self.numeric_index = tuple(i for i, c in enumerate(self.columns) if c.numeric)
        texts = [key for key, field in self.fields.items() if field.kind == "instruction"]
        self.instruction: str | None = texts[0] if texts else None
        data = self.to_json()
        self.hash = content_hash(data)
        self.input_hash = content_hash(schema_json.without_buckets(data))
        self._encoder = Encoder(self.fields, self.columns, max_unknown)
        self.clean = Clean(self.fields, self.columns)
        self._tables = tables.Tables(self.columns)
        self._fingerprint = Fingerprinter(self.hash, self._instruction_at())

    def _instruction_at(self) -> int | None:
        if self.instruction is None:
            return None
        names = list(self.fields)
        before = names[: names.index(self.instruction)]
        return sum(self.fields[key].n for key in before)

    # One state

    def encode(self, state: object, strict: bool = False) -> Encoded:
        """Encode one state.

        Args:
            state: a mapping of field names to values.
            strict: raise on anything but an absent optional value. Otherwise nothing raises:
                what cannot be read is unknown, what is out of range is clamped, and the
                result's issues say so.

        Raises:
            StateError: only if ``strict``; names field, value and what is allowed.
        """
        raw, issues = self._run(state, strict)
        return Encoded(
            np.array(raw.codes, dtype=np.int32),
            np.array(raw.values, dtype=np.float32),
            issues,
            _integers(raw),
            raw.instruction,
        )

    def quantize(
        self, state: object, strict: bool = False
    ) -> tuple[npt.NDArray[np.int64], tuple[Issue, ...]]:
        """The integers of one state, int64[F], and its issues; arguments as `encode`."""
        raw, issues = self._run(state, strict)
        return _integers(raw), issues

    def fingerprint(self, state: object, strict: bool = False) -> int:
        """64-bit name of a state (`wmrt.model.fingerprint`); arguments as `encode`."""
        raw, _ = self._run(state, strict)
        return self._fingerprint(_integers(raw), raw.instruction)

    def fingerprint_q(self, q: npt.ArrayLike, instruction: str | None = None) -> int:
        """Fingerprint of integers int64[F] from `quantize`, and the instruction's text if any.

        Raises:
            StateError: integers that are not one of this schema's states.
        """
        checked = self._tables.check_q(q)
        if checked.ndim != 1:
            raise StateError(f"fingerprint_q takes one state, int64[F]; got shape {checked.shape}")
        if instruction is not None and self.instruction is None:
            raise StateError("this schema has no instruction field; leave instruction out")
        text = None if instruction is None else attempt(to_instruction, instruction)
        if text is None and instruction is not None:
            shown = plain(instruction)
            raise StateError(f"instruction: {shown!r} is no text; allowed: a text, or None")
        return self._fingerprint(checked, text)

    def decode(self, q: npt.ArrayLike) -> dict[str, Any]:
        """Integers int64[F] back to a state of plain values; unknown is None.

        A vector gives a list. The instruction has no column and is left out. Encoding the result
        gives the same integers if they came from this schema.

        Raises:
            StateError: integers that are not one of this schema's states.
        """
        checked = self._tables.check_q(q)
        if checked.ndim != 1:
            raise StateError(f"decode takes one state, int64[F]; got shape {checked.shape}")
        pairs = zip(self.columns, checked.tolist(), strict=True)
        plain = iter([tables.decode(column, k) for column, k in pairs])
        state: dict[str, Any] = {}
        for key, field in self.fields.items():
            if field.kind == "vector":
                state[key] = [next(plain) for _ in range(field.n)]
            elif field.kind != "instruction":
                state[key] = next(plain)
        return state

    def _run(self, state: object, strict: bool) -> tuple[Raw, tuple[Issue, ...]]:
        raw = self._encoder.run(state)
        issues = self._encoder.issues(raw)
        if strict and issues:
            _refuse(issues)
        return raw, issues

    # Many states

    def encode_q(self, q: npt.ArrayLike) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """Codes int32[..., F] and values float32[..., F] of integers int64[..., F].

        Equal to what `encode` gives for the states that the integers come from.

        Raises:
            StateError: integers that are not states of this schema; names the column.
        """
        return self._tables.encode(q)

    def quantize_array(self, values: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """q int64[..., N] of readings [..., N], one per numeric column in order (`numeric_index`).

        Bit-equal to `quantize` of the same readings; not finite gives `UNKNOWN`.

        Raises:
            StateError: another shape, or no numbers.
        """
        return self._tables.quantize(values)

    # The schema itself

    def with_knots(self, knots: Mapping[str, Knots | None]) -> StateSchema:
        """This schema with other bucket knots.

        Args:
            knots: field or column name (``pose[2]``) to ``buckets + 1`` numbers ascending from low
                to high; a vector's field name also takes one row per component. None restores
                uniform knots.

        Raises:
            SchemaError: an unknown name, or knots that do not fit.
        """
        fields = schema_json.replace_knots(self.fields, self.columns, knots)
        return StateSchema(
            fields, neutral=self.neutral, max_unknown=self.max_unknown, name=self.name
        )

    def to_json(self) -> dict[str, Any]:
        """The schema as JSON types; `from_json` reads it back."""
        return schema_json.dump(self.fields, self.neutral, self.max_unknown, self.name)

    @classmethod
    def from_json(cls, source: str | PathLike[str] | Mapping[str, Any]) -> StateSchema:
        """Read a schema from a dict, a JSON text (begins with ``{``) or a file.

        Raises:
            SchemaError: an unreadable file, an unknown, repeated or missing key, or a definition
                that cannot work; it names the file.
        """
        with schema_json.naming(source):
            fields, rest = schema_json.load(source)
            return cls(fields, **rest)

    def differences(self, other: StateSchema) -> list[str]:
        """What makes ``other`` read states differently, a line each; empty: same `input_hash`."""
        mine = schema_json.without_buckets(self.to_json())
        return schema_json.differences(mine, schema_json.without_buckets(other.to_json()))

    def __len__(self) -> int:
        """Number of columns."""
        return len(self.columns)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StateSchema) and self.hash == other.hash

    def __hash__(self) -> int:
        return int(self.hash[:15], 16)

    def __copy__(self) -> StateSchema:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> StateSchema:
        return self  # immutable: copies of a model share it

    def __reduce__(self) -> tuple[Any, ...]:
        return StateSchema.from_json, (self.to_json(),)

    def __repr__(self) -> str:
        return (
            f"StateSchema({self.name!r}, {len(self.fields)} fields, {len(self.columns)} columns, "
            f"hash {self.hash[:16]})"
        )


def _integers(raw: Raw) -> npt.NDArray[np.int64]:
    return np.array(raw.q, dtype=np.float64).astype(np.int64)


def _refuse(issues: Iterable[Issue]) -> None:
    """Raise `StateError` if any issue is more than an absent optional value."""
    told = [issue.message for issue in issues if issue.kind not in ABSENT_KINDS]
    if told:
        more = f"; and {len(told) - _MAX_TOLD} more" if len(told) > _MAX_TOLD else ""
        raise StateError("; ".join(told[:_MAX_TOLD]) + more)
