"""A refusal as an exception within the service."""

from __future__ import annotations

from wmrt.core.errors import ServiceError
from wmrt.core.wire import REFUSALS, Refused


class Refusal(ServiceError):
    """Says no to a client, by a name of `wmrt.core.wire.REFUSALS`; nothing else is told to it.

    Attributes:
        status: of HTTP. counted: by a `Meter`; it may pass several hands on its way.
        robot: whom it concerns, for whoever watches; None if that is not known.
    """

    def __init__(self, name: str, message: str, sequence: int | None = None) -> None:
        super().__init__(message, name)
        self.status = REFUSALS[name]
        self.sequence = sequence
        self.counted = False
        self.robot: str | None = None

    @property
    def refused(self) -> Refused:
        return Refused(self.name, str(self), self.sequence)
