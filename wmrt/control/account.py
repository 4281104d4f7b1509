"""What a controller did, for its counters and its recorder."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from wmrt.control.channels import Channels
from wmrt.control.consult import Consulted
from wmrt.control.protocol import Outcome, Recorder, StepInputs
from wmrt.control.tally import Tally
from wmrt.core.errors import STOPPING
from wmrt.safety import Decision

if TYPE_CHECKING:
    from wmrt.control.controller import Controller


class Given(NamedTuple):
    """What a step was given.

    Attributes:
        observation, captured_ns: as `Controller.act` got them.
        now_ns, started: readings of the clock and the timer.
        estop, fallback, failure: see `StepInputs`.
    """

    observation: Any
    captured_ns: Any
    now_ns: int
    started: int
    estop: str
    fallback: tuple[float, ...] | str | None
    failure: str


class Account:
    """Counts and records. What fails here is counted and changes nothing else.

    Attributes:
        tally: the counters.
        last: outcome of the last step; None if this accounting failed in it.
    """

    def __init__(
        self, recorder: Recorder | None, channels: Channels, timer: Callable[[], int]
    ) -> None:
        self._recorder, self._channels, self._timer = recorder, channels, timer
        self.tally = Tally()
        self.last: Outcome | None = None

    def attach(self, controller: Controller) -> None:
        """Introduce the controller to its recorder, if that wants to know it."""
        attach = getattr(self._recorder, "attach", None)
        if attach is not None:
            attach(controller)

    def step(self, step: int, decision: Decision, given: Given, consulted: Consulted) -> None:
        """A step was decided."""
        self.last = None
        try:
            outcome = Outcome(
                step, given.now_ns, *decision, consulted.late, consulted.policy_ns,
                self._timer() - given.started,
            )  # fmt: skip
            self.last = outcome
            self.tally.add(outcome)
            if consulted.skipped or consulted.finished:
                self.tally.follow(consulted)
            if self._recorder is not None:
                self._recorder.record(outcome, self._inputs(step, given, consulted))
        except STOPPING:
            raise
        except BaseException:
            self.tally.failures += 1

    def _inputs(self, step: int, given: Given, consulted: Consulted) -> StepInputs:
        late = consulted.late
        return StepInputs(
            given.observation, given.captured_ns, given.now_ns,
            consulted.asked, consulted.answered, late,
            self._channels.availability(step, consulted.votes, late), given.estop,
            consulted.skipped, tuple(each.step for each in consulted.finished),
            tuple(consulted.votes or ()), consulted.failed, given.fallback, given.failure,
        )  # fmt: skip

    def command(self, name: str, now_ns: int, **arguments: Any) -> None:
        """Something was done between steps."""
        if self._recorder is not None:
            try:
                self._recorder.command(name, arguments, now_ns)
            except STOPPING:
                raise
            except BaseException:
                self.tally.failures += 1
