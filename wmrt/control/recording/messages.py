"""Steps, events and commands as JSON messages."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from wmrt.control.protocol import Outcome, StepInputs
from wmrt.control.recording.frozen import freeze
from wmrt.control.recording.values import decode, encode, plain, unplain
from wmrt.core.errors import RecordingError
from wmrt.safety import Event, Level, State

#: Parts of `StepInputs` that stand in a step's message under their own names, or as ``now_ns``.
_APART = ("observation", "captured_ns", "now_ns")
_REST = tuple(name for name in StepInputs._fields if name not in _APART)


def text(message: Any) -> str:
    """The message as JSON in ASCII."""
    return json.dumps(message, separators=(",", ":"), allow_nan=False)


def digest(message: Mapping[str, Any]) -> str:
    """16 hex digits over a step's inputs as they stand in its message."""
    keys = ("step", "now_ns", "observation", "captured_ns", "inputs")
    given = text([message[key] for key in keys])
    return hashlib.blake2b(given.encode(), digest_size=8).hexdigest()


def step_message(outcome: Outcome, inputs: StepInputs) -> dict[str, Any]:
    """A step, of inputs whose observation and capture times are frozen."""
    message = {
        **outcome._asdict(),
        "now_ns": encode(freeze(outcome.now_ns)),  # a clock of the user's own may read anything
        "action": list(outcome.action),
        "before": outcome.before.value,
        "after": outcome.after.value,
        "tripped": sorted(map(int, outcome.tripped)),
        "observation": encode(inputs.observation),
        "captured_ns": encode(inputs.captured_ns),
        "inputs": {name: plain(getattr(inputs, name)) for name in _REST},
    }
    message["digest"] = digest(message)
    return message


def read_step(message: Mapping[str, Any]) -> tuple[Outcome, StepInputs]:
    """Inverse of `step_message`.

    Raises:
        RecordingError: a message of another form, or an observation that was not kept.
    """
    try:
        given = {key: message[key] for key in Outcome._fields}
        outcome = Outcome(
            **{
                **given,
                "now_ns": decode(given["now_ns"]),
                "action": tuple(given["action"]),
                "before": State(given["before"]),
                "after": State(given["after"]),
                "tripped": frozenset(map(Level, given["tripped"])),
            }
        )
        rest = {name: unplain(message["inputs"][name]) for name in _REST}
        observation, captured = decode(message["observation"]), decode(message["captured_ns"])
    except (KeyError, TypeError, ValueError) as error:
        raise RecordingError(f"a step cannot be read: {error!r}") from None
    return outcome, StepInputs(observation, captured, outcome.now_ns, **rest)


def event_message(event: Event) -> dict[str, Any]:
    """An event, numbers that JSON lacks marked."""
    return {key: plain(value) for key, value in event.to_json().items()}


def command_message(
    name: str, arguments: Mapping[str, Any], now_ns: int, after_step: int
) -> dict[str, Any]:
    """Something that was done between steps."""
    kept = {key: encode(freeze(value)) for key, value in arguments.items()}
    return {"name": name, "arguments": kept, "now_ns": now_ns, "after_step": after_step}


def read_arguments(message: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a command. Raises `RecordingError` as `decode`."""
    return {key: decode(value) for key, value in message["arguments"].items()}
