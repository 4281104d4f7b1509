"""What the controller asks of a policy and of a recorder. Structural: nothing to inherit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from wmrt.core.types import ActionSpec
from wmrt.safety import Level, State


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
    ``chunk`` (float32[H, A], row 0 is the action for now) and ``predicted`` (the next state, a
    mapping of field name to value).
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


class Recorder(Protocol):
    """Gets every outcome with the state it answers (None if the input was unfit). Must be quick."""

    def record(self, outcome: Outcome, state: Mapping[str, Any] | None) -> None: ...
