"""Level 0, input: finds the state in an observation and says what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from wmrt.control.ages import Ages
from wmrt.control.protocol import IssueLike, SchemaLike
from wmrt.safety import Finding, describe

#: Issues whose value must not be shown to the policy or a channel: it reads as unknown instead.
_UNREADABLE = frozenset({"type", "nonfinite", "unseen", "length"})
_NONE: frozenset[tuple[str, str]] = frozenset()


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
        self._ages = Ages(schema, max_age_ns)
        self._has_state_field = "state" in schema.fields
        self._clean = getattr(schema, "clean", None)
        self.unknown = 0  # optional values that were unknown or clamped, so far
        self.reset()

    def reset(self) -> None:
        """A new episode: capture times and known problems start anew."""
        self._known = _NONE
        self._ages.reset()

    def read(self, obs: Any, now_ns: int, captured_ns: Any = None) -> Observation:
        """Read a state, or a mapping that holds one under ``"state"``. Never raises.

        Args:
            now_ns, captured_ns: on one clock; see `Ages.check`. Of a stale, misordered or undated
                field, a required one makes the observation unfit, an optional one is unknown.
        """
        faults: list[Finding] = []
        unusable: dict[str, Finding] = {}
        try:
            if type(obs) is dict and (self._has_state_field or "state" not in obs):
                state = obs.copy()
            else:
                state = self._find(obs)
            if captured_ns is not None:
                check = self._ages.whole if type(captured_ns) is int else self._ages.check
                faults, unusable = check(now_ns, captured_ns, state)
                if unusable:
                    state.update(dict.fromkeys(unusable.keys() & state.keys()))
            if not unusable and not faults and self._clean is not None and self._clean(state):
                self._known = _NONE
                return tuple.__new__(Observation, (state, (), ()))  # 100 ns less than `Observation`
            q, issues = self._schema.quantize(state)
        except Exception:  # not a mapping, or one that raises when it is read
            finding = Finding("", "container", describe(obs), "a mapping of field names to values")
            return Observation(None, (*faults, finding), ())
        faults += [_finding(issue) for issue in issues if issue.invalid]
        notes = self._notes(issues, unusable)
        unreadable = {_name(issue) for issue in issues if issue.kind in _UNREADABLE}
        if unreadable:
            readable = self._schema.decode(q)
            state.update({name: readable.get(name) for name in unreadable & state.keys()})
        return Observation(None if faults else state, tuple(faults), notes)

    def _find(self, obs: Any) -> dict[str, Any]:
        """The state as a dict of its own. Raises whatever the observation raises."""
        if not isinstance(obs, Mapping):
            raise TypeError
        if not self._has_state_field:
            inner = obs.get("state")
            if inner is not None and isinstance(inner, Mapping):
                return dict(inner)
        return dict(obs)

    def _notes(
        self, issues: Sequence[IssueLike], unusable: Mapping[str, Finding]
    ) -> tuple[Finding, ...]:
        """Problems with optional values that the last observation did not have."""
        soft = [_finding(i) for i in issues if not i.invalid and _name(i) not in unusable]
        self.unknown += len(soft) + len(unusable)
        if not soft and not unusable:
            self._known = _NONE
            return ()
        soft += unusable.values()
        before = self._known
        self._known = frozenset((finding.field, finding.kind) for finding in soft)
        return tuple(finding for finding in soft if (finding.field, finding.kind) not in before)


def _name(issue: IssueLike) -> str:
    """The field, what a state holds; a vector's issue may name a component, ``pose[1]``."""
    return issue.field.partition("[")[0]


def _finding(issue: IssueLike) -> Finding:
    return Finding(issue.field[:80], issue.kind, describe(issue.value), issue.allowed)
