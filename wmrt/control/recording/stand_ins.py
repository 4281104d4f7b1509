"""What stands, in a replay, for the parts of a controller that depend on time and on the world.

Each answers from the record. Everything else is the controller's own code.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from wmrt.control.consult import Consultant, Consulted, Panel, Question, Reply
from wmrt.control.convert import as_action
from wmrt.control.intake import Intake, Observation
from wmrt.control.plan import Plan
from wmrt.control.protocol import Policy, SchemaLike, StepInputs
from wmrt.control.recording.values import named_error
from wmrt.core.errors import RecordingError
from wmrt.safety import Breakers, Cause, Finding

Action = tuple[float, ...]


@dataclass
class Script:
    """The step that is being replayed."""

    step: int = 0
    inputs: StepInputs = field(default_factory=lambda: StepInputs(None, None, 0))
    #: The controller failed before the step had begun.
    early: bool = False
    #: The first vote that a model gave differently: channel, recorded, replayed.
    vote: tuple[str, str, str] | None = None
    #: The replay found the observation fit to ask the model.
    asked: bool = False


class RecordedClock:
    """Reads what was read."""

    def __init__(self, script: Script) -> None:
        self._script = script

    def now_ns(self) -> int:
        if self._script.early:
            raise named_error(self._script.inputs.failure)
        return self._script.inputs.now_ns


class RecordedIntake(Intake):
    """The intake, in the place where a stop or a failure between ``begin`` and ``decide`` came."""

    def __init__(
        self, schema: SchemaLike, max_age_ns: int | None, script: Script, breakers: Breakers
    ) -> None:
        super().__init__(schema, max_age_ns)
        self._script, self._breakers = script, breakers

    def read(self, obs: Any, now_ns: int, captured_ns: Any = None) -> Observation:
        inputs = self._script.inputs
        if inputs.failure:
            raise named_error(inputs.failure)
        seen = super().read(obs, now_ns, captured_ns)
        if inputs.estop in ("decide", "both"):
            self._breakers.estop()
        return seen


class RecordedFallback:
    """Answers, or raises, what the fallback did."""

    def __init__(self, script: Script) -> None:
        self._script = script

    def __call__(self, state: Any, last: tuple[float, ...]) -> tuple[float, ...]:
        given = self._script.inputs.fallback
        if given is None:  # it was not asked, so this step differs anyway
            raise RecordingError("no answer of the fallback was recorded in this step")
        if isinstance(given, str):
            raise named_error(given)
        return given


class RecordedChannels:
    """Votes as they were voted. Stands for `wmrt.control.channels.Channels`.

    Which channels voted is taken from the record. A channel that is a model, and is here, computes
    its votes anew, and `Script.vote` holds the first one that comes out differently.

    Args:
        every: how often each channel votes, by name, in order.
        models: those that are here, by channel.
    """

    silent = False

    def __init__(
        self, script: Script, every: Mapping[str, int], models: Mapping[str, Policy]
    ) -> None:
        self._script, self._every, self._models = script, every, models

    def reset(self) -> None:
        for model in self._models.values():
            model.reset()

    def availability(self, step: int, votes: Any, late: bool) -> tuple[str, ...]:
        return self._script.inputs.channels

    def ask(
        self,
        step: int,
        state: Mapping[str, Any],
        previous: Sequence[float],
        until: float = math.inf,
    ) -> tuple[list[Action | None] | None, list[Finding]]:
        """As `Channels.ask`. Of a late answer nothing is used; a model's memory needs it."""
        inputs = self._script.inputs
        now = step == self._script.step
        recorded = inputs.votes if now and inputs.votes else (None,) * len(self._every)
        for name, vote in zip(self._every, recorded, strict=True):
            if name in self._models:
                self._again(name, vote, state, previous)
        failed = [Finding(*finding) for finding in inputs.failed] if now else []
        return (list(inputs.votes) if now and inputs.votes else None), failed

    def _again(
        self, name: str, recorded: Action | None, state: Mapping[str, Any], previous: Any
    ) -> None:
        model = self._models[name]
        answer = model.step(dict(state), np.array(previous, np.float32)).action
        vote = as_action(answer, len(model.actions))
        if recorded is not None and vote != recorded and self._script.vote is None:
            self._script.vote = (name, str(recorded), str(vote))


class RecordedConsultant(Consultant):
    """Asks the model in the order in which it was asked, and takes from the record who was late.

    Args:
        panel, breakers, plan, deadline_ns: see `Consultant`.
    """

    def __init__(
        self, script: Script, panel: Panel, breakers: Breakers, plan: Plan, deadline_ns: float
    ) -> None:
        super().__init__(panel, breakers, plan, deadline_ns, lambda: 0)
        self._script = script
        self._waiting: dict[int, Question] = {}
        self._replies: dict[int, Reply] = {}

    def ask(self, state: Mapping[str, Any], started: int) -> Consulted:
        inputs, step = self._script.inputs, self._script.step
        self._script.asked = True
        for skipped in inputs.skipped:
            self._waiting.pop(skipped, None)
        self._waiting[step] = Question(step, state, self._breakers.reference)
        for late in inputs.finished:
            self._answer(late)
            self._note_late(self._replies.pop(late, None))
        if inputs.answered:
            self._answer(step)
            return self._judge(self._replies.pop(step), self._beyond() if inputs.late else 0)
        return self._late(self._beyond()) if inputs.late else Consulted(asked=True)

    def _note_late(self, reply: Reply | None) -> None:
        """What `Watchdog` reports of an answer that came after its step."""
        fault = None if reply is None else reply.answer.proposal.fault
        if fault is not None:
            self._breakers.report(Cause.NOTE, fault._replace(kind=f"late {fault.kind}"[:80]))

    def _beyond(self) -> int:
        """A time after the deadline, which is finite where anything was late."""
        return int(self._deadline_ns) + 1

    def _answer(self, step: int) -> None:
        """Put the question of ``step`` to the model, after all that came before it."""
        for number in sorted(self._waiting):
            if number <= step:
                self._replies[number] = self._panel.reply(self._waiting.pop(number))

    def forget(self, step: int) -> None:
        """The observation of ``step`` did not go to the model any more."""
        self._waiting.pop(step, None)

    def reset(self) -> None:
        """What was under way ends first, as its thread did."""
        if self._waiting:
            self._answer(max(self._waiting))
        self._panel.reset()
