"""What the controller asks of a policy and of a recorder. Structural: nothing to inherit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from wmrt.core.types import ActionSpec
from wmrt.safety import Finding, Level, State


class IssueLike(Protocol):
    """One thing wrong with a state; ``invalid`` when the state must not be acted on."""

    @property
    def field(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def value(self) -> Any: ...
    @property
    def allowed(self) -> str: ...
    @property
    def invalid(self) -> bool: ...


class SchemaLike(Protocol):
    """The part of `wmrt.model.schema.StateSchema` that the controller uses."""

    @property
    def fields(self) -> Mapping[str, Any]: ...
    @property
    def columns(self) -> Sequence[Any]: ...
    @property
    def neutral(self) -> Sequence[float]: ...
    def quantize(self, state: object) -> tuple[Any, Sequence[IssueLike]]: ...
    def decode(self, q: Any) -> Mapping[str, Any]: ...


class Policy(Protocol):
    """Anything that answers a state with an action: a `WorldModel`, a rule, a test double.

    ``step`` returns an object with ``action`` (float32[A], normalised) and, if it has them,
    ``chunk`` (float32[H, A], row 0 is the action for now), ``predicted`` (the next state, a mapping
    of field name to value) and ``note`` (a `Finding` for the record, or None).
    """

    @property
    def schema(self) -> Any: ...
    @property
    def actions(self) -> ActionSpec: ...
    def reset(self) -> None: ...
    def step(self, state: Mapping[str, Any], previous_action: Any) -> Any: ...


class Outcome(NamedTuple):
    """One call of `Controller.act`.

    Attributes:
        step: number of the control step, from 1.
        now_ns: reading of the controller's clock, the one that rate limits go by.
        action: what was sent, normalised float32 values.
        source: see `wmrt.safety.Decision`.
        before, after: state of the breakers.
        tripped: levels that tripped.
        late: the deadline was missed.
        policy_ns: duration of the policy's own step; None when it was not asked.
        act_ns: duration of the whole call up to the decision.
    """

    step: int
    now_ns: int
    action: tuple[float, ...]
    source: str
    before: State
    after: State
    tripped: frozenset[Level]
    late: bool
    policy_ns: int | None
    act_ns: int


class StepInputs(NamedTuple):
    """What decided a step and cannot be computed again: readings, timing, who answered.

    Attributes:
        observation: as it was given to `Controller.act`; not a copy.
        captured_ns: as it was given: one reading, a mapping of field to reading, or None.
        now_ns: the one reading of the controller's clock in this step.
        asked: the observation was fit and went to the policy. With a watchdog that means to the
            slot from which the policy takes it; ``skipped`` of a later step names it if it was
            replaced there, and `Recorder.command` if a reset or a change of task took it out.
        answered: the answer was there when the step was decided, in time or late.
        late: the deadline was missed.
        channels: of each channel, in order: ``voted``, ``failed``, ``late`` (what it said, if
            anything, was not used) or ``not due``.
        estop: the emergency stop latched when the step ``begin``s, before it was ``decide``d, or
            ``both`` times, as it was pressed twice; empty if it did not.
        skipped: numbers of the steps whose observation was replaced before the policy took it.
        finished: numbers of the late steps whose answer has come since the last step, in order.
        votes: the channels' actions that were used, None for a failed one; empty without a vote.
        failed: why channels failed.
        fallback: what the fallback answered, or the name of what it raised; None if not asked.
        failure: name of what the controller's own code, its clock or its timer raised.
    """

    observation: Any
    captured_ns: Any
    now_ns: int
    asked: bool = False
    answered: bool = False
    late: bool = False
    channels: tuple[str, ...] = ()
    estop: str = ""
    skipped: tuple[int, ...] = ()
    finished: tuple[int, ...] = ()
    votes: tuple[tuple[float, ...] | None, ...] = ()
    failed: tuple[Finding, ...] = ()
    fallback: tuple[float, ...] | str | None = None
    failure: str = ""


class Recorder(Protocol):
    """Gets all that decides what a controller does. What it raises is counted, not passed on.

    If it has ``attach(controller)``, that is called when the controller is built, and may raise.

    It is called in the control loop and must be quick; it copies what it keeps, observations and
    arguments belong to the caller. Calls come one at a time and in order, but for ``estop``, which
    may come from any thread, also while another call runs.
    """

    def record(self, outcome: Outcome, inputs: StepInputs) -> None:
        """A step was decided."""

    def command(self, name: str, arguments: Mapping[str, Any], now_ns: int) -> None:
        """Something was done between steps: ``reset`` (measured, heal, dropped), ``change_task``
        (task, dropped), ``engage`` (operator, measured), ``disengage``, ``estop`` (pressed),
        ``reset_latch`` (operator), ``close`` (dropped). What was refused does not come here.
        ``dropped`` is the step whose observation will not go to the policy any more, or None.

        Args:
            now_ns: reading of the controller's clock in the last step, 0 before the first: the
                clock is read in steps only.
        """
