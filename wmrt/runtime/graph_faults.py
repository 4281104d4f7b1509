"""What a look at a step finds: `wmrt.runtime.graph_lint` fills it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: Kinds of faults; all but `ALLOCATION` break the capture or what it repeats.
SYNC, SHAPE, COPY = "host synchronisation", "data-dependent shape", "cross-device copy"
CHANCE, HIDDEN, ERROR = "unregistered chance", "unnamed buffer", "error"
ALLOCATION = "allocation"
KINDS = (SYNC, SHAPE, COPY, CHANCE, HIDDEN, ERROR, ALLOCATION)


@dataclass(frozen=True)
class Fault:
    """One line of a step that a capture minds. ``count``: how often it came; ``bytes``: that it
    allocates in all."""

    kind: str
    operator: str
    where: str
    detail: str
    count: int = 1
    bytes: int = 0


@dataclass(frozen=True)
class Report:
    """What one step does.

    Attributes:
        operators: name to calls, views included.
        launches: name to calls of operators that compute: at least one kernel each.
        faults: in the order of `KINDS`.
        complete: whether the step ran to its end; what comes after an error was not seen.
    """

    operators: Mapping[str, int]
    launches: Mapping[str, int]
    faults: tuple[Fault, ...]
    complete: bool

    @property
    def capturable(self) -> bool:
        """Nothing but allocations, which a capture takes from a pool of its own."""
        return self.complete and all(fault.kind == ALLOCATION for fault in self.faults)

    @property
    def clean(self) -> bool:
        return self.complete and not self.faults

    def to_json(self) -> dict[str, Any]:
        return {
            "clean": self.clean,
            "capturable": self.capturable,
            "complete": self.complete,
            "launches": sum(self.launches.values()),
            "allocated_bytes": sum(fault.bytes for fault in self.faults),
            "faults": [vars(fault) for fault in self.faults],
            "launches_by_operator": dict(self.launches),
            "operators": dict(self.operators),
        }
