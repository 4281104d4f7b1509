"""How old an observation is: as a whole, or field by field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from wmrt.control.protocol import SchemaLike
from wmrt.safety import Finding, describe


class _Rule(NamedTuple):
    required: bool
    max_age_ns: int | None


class Ages:
    """Judges capture times on one clock, in nanoseconds.

    Args:
        schema: its fields may carry ``max_age``, seconds, and ``required``.
        max_age_ns: how old anything may be; None for any age.
    """

    def __init__(self, schema: SchemaLike, max_age_ns: int | None) -> None:
        self._max_age_ns = max_age_ns
        self._rules = {name: _rule(field, max_age_ns) for name, field in schema.fields.items()}
        self._aging = tuple(
            (name, limit)
            for name, field in schema.fields.items()
            if (limit := _rule(field, None).max_age_ns) is not None
        )
        self.reset()

    def reset(self) -> None:
        """A new episode: capture times start anew."""
        self._whole_ns: int | None = None
        self._newest_ns: int | None = None  # of any field
        self._field_ns: dict[str, int] = {}

    def check(
        self, now_ns: int, captured_ns: Any, state: Mapping[str, Any]
    ) -> tuple[list[Finding], dict[str, Finding]]:
        """What makes the state unfit, and the optional fields whose values are not to be used.

        Args:
            captured_ns: one integer for the whole state; it must be newer than the one before. Or a
                mapping of field to integer; each must not be older than that field's last one, an
                equal one is the same reading, still held. A field with a ``max_age`` that has a
                value must be among them.
            state: has the values.
        """
        if type(captured_ns) is int:
            return self.whole(now_ns, captured_ns, state)
        if not isinstance(captured_ns, Mapping):
            allowed = "integer nanoseconds, or a mapping of field to them"
            return [Finding("captured_ns", "type", describe(captured_ns), allowed)], {}
        try:
            times = dict(captured_ns)
        except Exception as error:  # a mapping that cannot be read
            return [Finding("captured_ns", type(error).__name__[:80])], {}
        found: list[tuple[str, Finding]] = []
        for name, at in times.items():
            wrong = self._field(now_ns, name, at)
            if wrong is not None:
                found.append((name, wrong))
        for name, limit in self._aging:
            if name not in times and state.get(name) is not None:
                found.append((name, Finding(name, "undated", None, limit)))
        return self._split(found)

    def whole(
        self, now_ns: int, at: int, state: Mapping[str, Any]
    ) -> tuple[list[Finding], dict[str, Finding]]:
        """`check` of one integer for the whole state."""
        age, before = now_ns - at, self._whole_ns
        if age < 0:
            return [Finding("captured_ns", "future", describe(age), 0)], {}
        if before is not None and at <= before:
            return [Finding("captured_ns", "out of order", describe(at), describe(before))], {}
        newest = self._newest_ns
        if newest is not None and at < newest:
            return [Finding("captured_ns", "out of order", describe(at), describe(newest))], {}
        self._whole_ns = at
        if self._max_age_ns is not None and age > self._max_age_ns:
            return [Finding("captured_ns", "stale", describe(age), self._max_age_ns)], {}
        if not self._aging:
            return [], {}
        return self._split(
            [
                (name, Finding(name, "stale", describe(age), limit))
                for name, limit in self._aging
                if age > limit and state.get(name) is not None
            ]
        )

    def _field(self, now_ns: int, name: Any, at: Any) -> Finding | None:
        """One field's time; None if it is right."""
        rule = self._rules.get(name)
        if rule is None:
            return Finding(str(describe(name))[:80], "undeclared", describe(at), "a field's name")
        if type(at) is not int:
            return Finding(name, "capture time", describe(at), "integer nanoseconds")
        age, before = now_ns - at, self._field_ns.get(name, self._whole_ns)
        if age < 0:
            return Finding(name, "future", describe(age), 0)
        if before is not None and at < before:
            return Finding(name, "out of order", describe(at), describe(before))
        self._field_ns[name] = at
        if self._newest_ns is None or at > self._newest_ns:
            self._newest_ns = at
        if rule.max_age_ns is not None and age > rule.max_age_ns:
            return Finding(name, "stale", describe(age), rule.max_age_ns)
        return None

    def _split(self, found: list[tuple[str, Finding]]) -> tuple[list[Finding], dict[str, Finding]]:
        """Findings of required and of undeclared fields are faults."""
        faults, unusable = [], {}
        for name, finding in found:
            rule = self._rules.get(name)
            if rule is None or rule.required:
                faults.append(finding)
            else:
                unusable[name] = finding
        return faults, unusable


def _rule(field: Any, max_age_ns: int | None) -> _Rule:
    """A field's own limit, or the general one if that is less."""
    own = getattr(field, "max_age", None)
    limits = [limit for limit in (max_age_ns, own and round(own * 1e9)) if limit is not None]
    return _Rule(bool(getattr(field, "required", False)), min(limits, default=None))
