"""The exception tree of wmrt.

Every error a caller may want to catch derives from `WmrtError`. Messages say what was given, what
is allowed and what to do; the command line prints them as one line and exits with code 2.
"""

from __future__ import annotations

#: Asks the process to stop. Other exceptions outside `Exception` do not: a cancelled task, a panic
#: of a library written in Rust.
STOPPING = (KeyboardInterrupt, SystemExit)


class WmrtError(Exception):
    """Base of every error wmrt raises on purpose."""


class UsageError(WmrtError):
    """A request that cannot be meant: an unknown name, an option out of its range."""


class StateError(WmrtError):
    """A state that strict encoding refuses. Names the field, the value and what is allowed."""


class SchemaError(WmrtError):
    """A schema definition or a schema pairing that is wrong."""


class CheckpointError(WmrtError):
    """A checkpoint that is missing, damaged or not the one expected."""


class QuantizationError(WmrtError):
    """A tensor or recipe that cannot be quantized, or packed data that is inconsistent."""


class SafetyError(WmrtError):
    """A safety configuration that is wrong, or an operator request that is refused."""


class RecordingError(WmrtError):
    """A recording that cannot be read, or cannot be replayed with what there is."""


class UnsupportedError(WmrtError):
    """Something was requested exactly and cannot be had here; the message gives the reason."""


class DeviceError(WmrtError):
    """A device failed while it computed; the message gives its reason and what can be done."""


class OutOfMemoryError(WmrtError):
    """Memory that was needed and is not there; the message gives both in bytes."""


class MissingExtraError(WmrtError):
    """An optional dependency is absent; the message gives the pip command that brings it."""


class ServiceError(WmrtError):
    """A service refused a request; ``name`` is the refusal's (`wmrt.core.wire.REFUSALS`)."""

    def __init__(self, message: str, name: str) -> None:
        super().__init__(message)
        self.name = name


class DeadlineError(WmrtError):
    """A call that had until its deadline, and has no answer; the message says what it waited on."""
