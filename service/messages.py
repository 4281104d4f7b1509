"""What clients send: binary observations, JSON ones, and the requests of the control plane."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import msgspec
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from wmrt.client.frames import bounds
from wmrt.core.codec import codec
from wmrt.core.errors import SchemaError, StateError
from wmrt.core.wire import (
    FLOATS,
    VERSION,
    Observed,
    WireError,
    session_number,
    unpack_observed,
)
from wmrt.core.wire_state import StateLayout
from wmrt.service.direct import binary, unmasked
from wmrt.service.refusals import Refusal

_ROBOT = "Name of the robot: letters, digits, dots, hyphens and underscores."
_SESSION = "16 hex digits, as opening the session gave them."
Whole = Annotated[int, Field(ge=0, lt=2**63, strict=True)]
Measured = Annotated[
    list[Annotated[float, Field(allow_inf_nan=False)]],
    Field(max_length=256, description="Where the actuators are, normalised to [-1, 1]."),
]


class _Message(BaseModel):
    """A message of a few fields."""

    @model_validator(mode="before")
    @classmethod
    def _few(cls, data: Any) -> Any:
        # An error for each of 70 000 unknown fields kept the event loop for 0.7 s.
        if isinstance(data, dict) and len(data) > 2 * len(cls.model_fields):
            raise ValueError(f"{len(data)} fields, where there are {len(cls.model_fields)} at most")
        return data


class ObservationMessage(_Message):
    """One observation."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {
                    "version": 1,
                    "robot": "r2",
                    "session": "0123456789abcdef",
                    "epoch": 0,
                    "sequence": 1,
                    "captured_ns": 81234567890,
                    "sent_ns": 81234999999,
                    "state": {
                        **{"ego_speed": 25.0, "lane_offset": 0.1, "heading": 0.0, "lane": "left"},
                        "front_gap": None,
                    },
                }
            ]
        },
    )
    version: int = Field(ge=VERSION, le=VERSION, strict=True)
    robot: str = Field(description=_ROBOT)
    session: str = Field(description=_SESSION)
    epoch: Whole = Field(description="Counts the session's resets.")
    sequence: Whole = Field(description="Ascending within the session.")
    captured_ns: Whole | None = Field(None, description="When it was captured, sender's clock.")
    sent_ns: Whole | None = Field(None, description="When it was sent, sender's clock.")
    state: dict[str, Any] = Field(description="Field name to value; None is unknown.")

    def observed(self) -> Observed:
        """As the rest of the service has it; `Refusal` for a session that is none."""
        return Observed(
            *(self.robot, read_session(self.session), self.epoch, self.sequence, self.state),
            *(self.captured_ns, self.sent_ns),
        )


class OpenMessage(_Message):
    """Opens a session, or goes on with one; over HTTP also starts a new episode of it."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"version": 1, "robot": "r2"},
                {"version": 1, "robot": "r2", "session": "0123456789abcdef", "measured": [0, 0.1]},
            ]
        },
    )
    version: int = Field(VERSION, ge=VERSION, le=VERSION, strict=True)
    robot: str = Field(description=_ROBOT)
    session: str | None = Field(None, description=_SESSION)
    answered: Whole | None = Field(None, description="Sequence of the last answer that came.")
    measured: Measured | None = None


class OperatorMessage(_Message):
    """What an operator does to a robot's breakers."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"robot": "r2", "operator": "A. Person"}]},
    )
    version: int = Field(VERSION, ge=VERSION, le=VERSION, strict=True)
    robot: str = Field(description=_ROBOT)
    operator: str = Field("", max_length=80, description="Who does it; for the record.")
    measured: Measured | None = None


def read_session(text: str) -> int:
    """A session from JSON; `Refusal` malformed for what is none."""
    try:
        return session_number(text)
    except WireError as error:
        raise Refusal("malformed", str(error)) from None


class Reader:
    """Reads observations for one schema.

    Attributes:
        binary: takes a binary observation; `Refusal` malformed if it is none.
    """

    def __init__(self, schema: Any) -> None:
        layout, reason = None, ""
        try:
            layout = StateLayout(schema.to_json())
        except SchemaError as error:
            reason = str(error)
        self.binary: Callable[[bytes], Observed] = partial(_binary, layout, reason)
        self._columns = None if layout is None else codec().reader(layout, self.binary)
        if self._columns is not None:
            self.binary = self._columns.read

    def frame(self, data: bytes, at: int, most: int) -> tuple[Observed, int] | None:
        """The observation in the client's frame at ``at``, of at most so many bytes, and where that
        ends. None for anything else, and for what is not whole."""
        if self._columns is not None:
            taken = self._columns.take(data, at, most)
            if taken is not None:
                return taken
        found = bounds(data, at)
        if found is None or found[1] > len(data) or found[1] - found[0] > most:
            return None
        try:
            return (self.binary(unmasked(data, *found)), found[1]) if binary(data, at) else None
        except Refusal:
            return None


def _binary(layout: StateLayout | None, reason: str, data: bytes) -> Observed:
    try:
        kind, head, body = unpack_observed(data)
    except WireError as error:
        raise Refusal("malformed", str(error)) from None
    try:
        if kind != FLOATS:
            state = _decode(body)
        elif layout is None:
            raise SchemaError(reason)
        else:
            state = layout.unpack(body)
    except (StateError, SchemaError, msgspec.MsgspecError, RecursionError) as error:
        raise Refusal("malformed", str(error)[:300], head.sequence) from None
    robot, session, epoch, sequence, _, captured, sent = head
    return Observed(robot, session, epoch, sequence, state, captured, sent)


_decode = msgspec.msgpack.Decoder(dict[str, Any]).decode


def read_json(model: type[BaseModel], data: dict[str, Any]) -> Any:
    """A message of ``model``; `Refusal` malformed says what is wrong with which field."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise Refusal("malformed", first_fault(error.errors())) from None


def read_observation(data: dict[str, Any]) -> Observed:
    """An observation of JSON; `Refusal` malformed, with its number if it has one: somebody waits
    for the answer to it."""
    try:
        seen: Observed = read_json(ObservationMessage, data).observed()
    except Refusal as refusal:
        sequence = data.get("sequence")
        refusal.sequence = sequence if type(sequence) is int and 0 <= sequence < 2**63 else None
        raise
    return seen


def first_fault(errors: Any) -> str:
    """The first thing that is wrong, without what was given: it may be large, or no JSON."""
    first = errors[0]
    place = ".".join(str(part)[:40] for part in first["loc"] if part != "body")
    return f"{place}: {first['msg']}"[:300] if place else str(first["msg"])[:300]


def opened_json(host: Any, opened: Any) -> dict[str, Any]:
    """What a client gets that opens a session, or resets it."""
    session = opened.session
    return {
        "kind": "opened",
        "version": VERSION,
        "robot": session.robot,
        "session": f"{session.id:016x}",
        "epoch": session.epoch,
        "sequence": opened.sequence,
        "memory": opened.memory,
        "resumed": opened.resumed,
        "steps_lost": opened.steps_lost,
        "schema_hash": host.schema.hash,
        "period": host.crew.period,
        "clock": host.settings.clock,
    }


def schema_json(host: Any) -> dict[str, Any]:
    """States and actions that the service takes and gives."""
    return {
        "schema": host.schema.to_json(),
        "schema_hash": host.schema.hash,
        "actions": host.actions.to_json(),
        "period": host.crew.period,
    }


#: JSON without NaN or infinities, which is no JSON: ValueError for those. `json.dumps` would make
#: an encoder for each message.
dumps: Callable[[dict[str, Any]], str] = json.JSONEncoder(
    allow_nan=False, separators=(",", ":")
).encode
