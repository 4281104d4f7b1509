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
    """What a recorder is told of a step besides what came of it.

    Attributes:
        observation, captured_ns: as `Controller.act` got them.
        estop, fallback, failure: see `StepInputs`.
    """

    observation: Any
    captured_ns: Any
    estop: str
    fallback: tuple[float, ...] | str | None
    failure: str


class Account:
    """Counts and records. What fails here is counted and changes nothing else.

    Attributes:
        tally: the counters.
        records: whether there is a recorder.
        last: outcome of the last step; None if this accounting failed in it.
    """

    def __init__(
        self, recorder: Recorder | None, channels: Channels, timer: Callable[[], int]
    ) -> None:
        self._recorder, self._channels, self._timer = recorder, channels, timer
        self.records = recorder is not None
        self.tally = Tally()
        self.last: Outcome | None = None

    def attach(self, controller: Controller) -> None:
        """Introduce the controller to its recorder, if that wants to know it."""
        attach = getattr(self._recorder, "attach", None)
        if attach is not None:
            attach(controller)

    def step(
        self,
        step: int,
        decision: Decision,
        consulted: Consulted,
        now_ns: int,
        started: int,
        given: Given | None,
    ) -> None:
        """A step was decided.

        Args:
            now_ns, started: readings of the clock and the timer.
            given: None where nobody ``records``.
        """
        self.last = None
        try:
            _, _, _, policy_ns, _, _, late, skipped, finished, _, _ = consulted
            took = self._timer() - started
            self.last = outcome = tuple.__new__(
                Outcome, (step, now_ns, *decision, late, policy_ns, took)
            )
            self.tally.add(late, decision.source, took, policy_ns)
            if skipped or finished:
                self.tally.follow(consulted)
            if self._recorder is not None and given is not None:
                self._recorder.record(outcome, self._inputs(outcome, given, consulted))
        except STOPPING:
            raise
        except BaseException:
            self.tally.failures += 1

    def _inputs(self, outcome: Outcome, given: Given, consulted: Consulted) -> StepInputs:
        late = consulted.late
        return StepInputs(
            given.observation, given.captured_ns, outcome.now_ns,
            consulted.asked, consulted.answered, late,
            self._channels.availability(outcome.step, consulted.votes, late), given.estop,
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
