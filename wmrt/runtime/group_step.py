"""What steps a group of robots, whatever it runs on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from wmrt.model.encoded import Encoded
from wmrt.model.network import Ring
from wmrt.runtime.choice import Choice

#: Results by name, one row for each robot that stepped, in their order.
Rows = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class GroupReport:
    """What steps a group.

    Attributes:
        executor: native or triton. robots: of the group.
        rows: numbers of robots that there is a step for. Others take the next larger one, whose
            further rows are spare.
        graph, graph_reason: whether all of these steps are CUDA Graphs, and why or why not.
        kernels: operator name to the number of linear layers that run it.
        bytes: ``ring``: memory of the robots, and of spare rows; ``workspace``: what steps write
            besides.
        ran: steps so far, by rows.
    """

    executor: str
    robots: int
    rows: tuple[int, ...]
    graph: bool
    graph_reason: str
    kernels: Mapping[str, int]
    bytes: Mapping[str, int]
    ran: Mapping[int, int]

    def to_json(self) -> dict[str, Any]:
        """For a result file: keys are strings."""
        ran = {str(rows): times for rows, times in self.ran.items()}
        return {**asdict(self), "rows": list(self.rows), "ran": ran}


class GroupStep(Protocol):
    """The memory of a group's robots, and a step of some of them on one read of the weights."""

    @property
    def ring(self) -> Ring:
        """Of robots 0, 1, ..; what lies behind the last is spare."""

    def step(
        self,
        robots: Sequence[int],
        read: Sequence[Encoded],
        before: Sequence[Sequence[float]],
        own: Sequence[Choice],
    ) -> Rows:
        """Step ``robots``, each at most once; the others keep their memory bit for bit.

        Args:
            read, before: state and action sent before, of each robot that steps.
            own: how each robot of the group picks its action.

        Returns what is read off, as `ArraySession.rows`; the next step overwrites it.
        """

    def report(self, kernels: Mapping[str, int]) -> GroupReport:
        """What runs, and how often it did; ``kernels`` are the model's."""


def write(rows: Rows, read: Sequence[Encoded], before: Sequence[Sequence[float]]) -> None:
    """States and actions sent before into the first rows of ``codes``, ``values``, ``previous``."""
    for b, (encoded, action) in enumerate(zip(read, before, strict=True)):
        rows["codes"][b], rows["values"][b] = encoded.codes, encoded.values
        rows["previous"][b] = np.asarray(action, np.float32)


def first(rows: Rows, count: int) -> Rows:
    """Views of the first rows."""
    return {name: array[:count] for name, array in rows.items()}
