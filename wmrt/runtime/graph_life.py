"""State and failure of an executor, and what an error in one of its phases does to it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NoReturn

import torch

from wmrt.core.errors import DeviceError, OutOfMemoryError, WmrtError
from wmrt.runtime.graph_states import Event, State, following


class Life:
    """Moves along the table of `graph_states`. ``failure`` says why it failed, empty until then."""

    def __init__(self) -> None:
        self.state, self.failure = State.IDLE, ""

    def to(self, event: Event) -> None:
        """Move on; `UsageError` where the table does not."""
        self.state = following(self.state, event)

    def require(self, event: Event) -> None:
        """Raise unless ``event`` is possible: `DeviceError` with the reason after a failure."""
        if self.state is State.FAILED:
            raise DeviceError(
                f"no more steps: {self.failure}; make another executor on restored buffers"
            )
        following(self.state, event)

    def fail(self, why: str) -> None:
        self.failure = why
        self.to(Event.FAIL)

    @contextlib.contextmanager
    def failing(self, what: str) -> Iterator[None]:
        """An error in the block ends this life; those of the device become typed ones."""
        try:
            yield
        except RuntimeError as error:
            self.fail(f"{what} failed: {first_line(error)}")
            self._raise(error)
        except WmrtError as error:
            self.fail(f"{what} failed: {error}")
            raise
        except BaseException as error:
            self.fail(f"{what} was ended by {type(error).__name__}: {first_line(error)}")
            raise

    @contextlib.contextmanager
    def ended_by_any(self, what: str) -> Iterator[None]:
        """As `failing`, for a block that deals with the errors it expects: not even an interrupt
        leaves a half-made executor that takes steps."""
        try:
            yield
        except BaseException as error:
            self.fail(f"{what} was ended by {type(error).__name__}: {first_line(error)}")
            raise

    def _raise(self, error: RuntimeError) -> NoReturn:
        if isinstance(error, torch.OutOfMemoryError):
            raise OutOfMemoryError(f"{self.failure}; free memory of the device") from error
        raise DeviceError(
            f"{self.failure}; make another executor on restored buffers, in a new process if the "
            "device does not answer"
        ) from error


def first_line(error: BaseException) -> str:
    """What an error says first; CUDA's add pages of advice. Its name if it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
