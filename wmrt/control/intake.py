"""Level 0, input: finds the state in an observation and says what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from wmrt.control.protocol import IssueLike, SchemaLike
from wmrt.safety import Finding, describe

#: Issues whose value must not be shown to the policy or a channel: it reads as unknown instead.
_UNREADABLE = frozenset({"type", "nonfinite", "unseen", "length"})


class Observation(NamedTuple):
    """An observation that was read.

    Attributes:
        state: a dict of its own, unreadable values replaced by None; None if it is unfit.
        faults: what makes it unfit.
        notes: what is newly wrong with optional values, and was not in the last observation.
    """

    state: dict[str, Any] | None
    faults: tuple[Finding, ...]
    notes: tuple[Finding, ...]


class Intake:
    """Reads observations of one robot.

    Args:
        schema: what a state must look like.
        max_age_ns: how old an observation may be; None for any age.
    """

    def __init__(self, schema: SchemaLike, max_age_ns: int | None) -> None:
        self._schema = schema
        self._max_age_ns = max_age_ns
        self._has_state_field = "state" in schema.fields
        self.unknown = 0  # optional values that were unknown or clamped, so far
        self.reset()

    def reset(self) -> None:
        """A new episode: capture times and known problems start anew."""
        self._known: frozenset[tuple[str, str]] = frozenset()
        self._captured_ns: int | None = None

    def read(self, obs: Any, now_ns: int, captured_ns: Any = None) -> Observation:
        """Read a state, or a mapping that holds one under ``"state"``. Never raises.

        Args:
            now_ns, captured_ns: on one clock; an observation that is older than allowed, from the
                future, or not newer than the one before is unfit.
        """
        faults: list[Finding] = []
        if captured_ns is not None:
            faults += self._timing(now_ns, captured_ns)
        try:
            state = self._find(obs)
            q, issues = self._schema.quantize(state)
        except Exception:  # not a mapping, or one that raises when it is read
            finding = Finding("", "container", describe(obs), "a mapping of field names to values")
            return Observation(None, (*faults, finding), ())
        faults += [_finding(issue) for issue in issues if issue.invalid]
        notes = self._notes(issues)
        # A vector's issue names the component, "pose[1]"; its field is what the state holds.
        unreadable = {i.field.partition("[")[0] for i in issues if i.kind in _UNREADABLE}
        if unreadable:
            readable = self._schema.decode(q)
            state.update({name: readable.get(name) for name in unreadable & state.keys()})
        return Observation(None if faults else state, tuple(faults), notes)

    def _find(self, obs: Any) -> dict[str, Any]:
        """The state as a dict of its own. Raises whatever the observation raises."""
        if type(obs) is not dict and not isinstance(obs, Mapping):
            raise TypeError
        if not self._has_state_field:
            inner = obs.get("state")
            if inner is not None and isinstance(inner, Mapping):
                return dict(inner)
        return dict(obs)

    def _timing(self, now_ns: int, captured_ns: Any) -> list[Finding]:
        if type(captured_ns) is not int:
            return [Finding("captured_ns", "type", describe(captured_ns), "integer nanoseconds")]
        age, before = now_ns - captured_ns, self._captured_ns
        if age < 0:
            return [Finding("captured_ns", "future", describe(age), 0)]
        if before is not None and captured_ns <= before:
            return [Finding("captured_ns", "out of order", describe(captured_ns), describe(before))]
        self._captured_ns = captured_ns
        if self._max_age_ns is not None and age > self._max_age_ns:
            return [Finding("captured_ns", "stale", describe(age), self._max_age_ns)]
        return []

    def _notes(self, issues: Any) -> tuple[Finding, ...]:
        """Problems with optional values that the last observation did not have."""
        soft = [issue for issue in issues if not issue.invalid]
        self.unknown += len(soft)
        if not soft:
            self._known = frozenset()
            return ()
        before = self._known
        self._known = frozenset((issue.field, issue.kind) for issue in soft)
        return tuple(_finding(i) for i in soft if (i.field, i.kind) not in before)


def _finding(issue: IssueLike) -> Finding:
    return Finding(issue.field[:80], issue.kind, describe(issue.value), issue.allowed)
