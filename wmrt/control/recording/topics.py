"""What stands in a recording: topics with their JSON schemas, and the names in its metadata.

Foxglove reads the schemas (draft 2020-12) to offer fields for plots and tables.
"""

from __future__ import annotations

from typing import Any

#: Of the metadata record that every file of a recording begins with, and of the one that ends it.
HEAD, END = "wmrt.recording", "wmrt.end"
FORMAT = "1"
STEPS, EVENTS, COMMANDS, GAPS = "/wmrt/steps", "/wmrt/events", "/wmrt/commands", "/wmrt/gaps"

_ANY: dict[str, Any] = {"description": "see wmrt.control.recording.values"}
_INT = {"type": "integer"}
_COUNT = {"type": "integer", "minimum": 0}
_TEXT = {"type": "string"}
_FLAG = {"type": "boolean"}
_TEXTS = {"type": "array", "items": _TEXT}
_COUNTS = {"type": "array", "items": _COUNT}
_DURATION = {"type": ["integer", "null"], "description": "nanoseconds"}
_STATE = {"type": "string", "enum": ["closed", "degraded", "open", "half_open", "latched"]}


def _schema(title: str, **properties: Any) -> dict[str, Any]:
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        "type": "object",
        "properties": properties,
        "required": list(properties),
    }


SCHEMAS: dict[str, dict[str, Any]] = {
    STEPS: _schema(
        "wmrt.Step",
        step=_COUNT,
        now_ns={**_ANY, "title": "reading of the controller's clock"},
        action={"type": "array", "items": {"type": "number"}, "description": "sent, in [-1, 1]"},
        source=_TEXT,
        before=_STATE,
        after=_STATE,
        tripped={**_COUNTS, "description": "levels that tripped"},
        late=_FLAG,
        policy_ns=_DURATION,
        act_ns=_DURATION,
        observation=_ANY,
        captured_ns=_ANY,
        inputs={"type": "object", "description": "see wmrt.control.protocol.StepInputs"},
        digest={**_TEXT, "description": "BLAKE2b-64 over observation, captured_ns and inputs"},
    ),
    EVENTS: _schema(
        "wmrt.Event",
        t_ns=_INT,
        robot=_TEXT,
        step=_COUNT,
        level=_TEXT,
        cause=_TEXT,
        field=_TEXT,
        kind=_TEXT,
        value=_ANY,
        limit=_ANY,
        action_in={"type": ["array", "null"]},
        action_out={"type": ["array", "null"]},
        before=_STATE,
        after=_STATE,
        config=_TEXT,
    ),
    COMMANDS: _schema(
        "wmrt.Command", name=_TEXT, arguments={"type": "object"}, now_ns=_INT, after_step=_COUNT
    ),
    GAPS: _schema(
        "wmrt.Gap",
        after_step=_COUNT,
        missing={**_COUNT, "description": "steps and commands that were not recorded"},
        reason=_TEXT,
    ),
}
