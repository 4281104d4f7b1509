"""Limits files: read with every key and unit checked, and written as a start for one's own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wmrt.control.defaults import default_limits
from wmrt.control.protocol import SchemaLike
from wmrt.core.errors import SafetyError
from wmrt.core.files import replacing
from wmrt.core.types import ActionSpec
from wmrt.safety import Limits, tighten, to_document

#: Bytes; the limits of a thousand actuators are a tenth of it.
LARGEST = 1 << 20


def load_limits(path: str | Path, schema: SchemaLike, actions: ActionSpec, period: float) -> Limits:
    """The limits that a file states (`wmrt.safety.limits_form`), for a policy.

    Args:
        path: a JSON file. What it leaves out is as in `default_limits`; its ranges and rates are
            tighter.
        schema, actions: the policy's. period: control period, seconds.

    Raises:
        SafetyError: a file that cannot be read, is no JSON, says something twice, or does not fit
            the policy; the message has the path and the place in it.
    """
    try:
        return tighten(default_limits(schema, actions, period), _read(Path(path)))
    except SafetyError as error:
        raise SafetyError(f"{path}: {error}") from None


def save_limits(path: str | Path, limits: Limits) -> None:
    """Write ``limits`` as a file for `load_limits`; whole or not at all.

    Raises:
        UsageError: the file cannot be written.
    """
    with replacing(Path(path)) as temporary:
        temporary.write_text(json.dumps(to_document(limits), indent=1) + "\n", "utf-8")


def _read(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
    except OSError as error:
        raise SafetyError(f"cannot be read: {error.strerror or error}") from None
    if len(data) > LARGEST:
        raise SafetyError(f"is larger than {LARGEST} bytes, no limits are")
    try:
        return json.loads(data.decode(), object_pairs_hook=_once, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise SafetyError(f"is no JSON: {str(error)[:200]}") from None


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; the later of two values for one key would win in silence."""
    made: dict[str, Any] = {}
    for key, value in pairs:
        if key in made:
            raise SafetyError(f"says {key[:80]!r} twice; leave one")
        made[key] = value
    return made


def _refuse(constant: str) -> float:
    raise SafetyError(f"holds {constant}; every limit is a finite number")
