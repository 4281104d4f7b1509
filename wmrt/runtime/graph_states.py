"""The life of a step that is to become one CUDA Graph, as a table of states and events.

Whatever the table does not list is refused with what to do instead; nothing else decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

import torch

from wmrt.core.errors import UnsupportedError, UsageError

GRAPH_MODES = ("auto", "on", "off")


@dataclass(frozen=True)
class ResolvedGraph:
    """Whether a step is one captured CUDA Graph, and why or why not."""

    used: bool
    reason: str

    @property
    def name(self) -> str:
        return "cuda graph" if self.used else "eager"


def check_mode(requested: str) -> None:
    """Raise `UsageError` unless ``requested`` is one of `GRAPH_MODES`."""
    if requested not in GRAPH_MODES:
        raise UsageError(f"graph {requested!r} is unknown; allowed: {', '.join(GRAPH_MODES)}")


def check_graph(requested: str, device: torch.device) -> None:
    """Refuse at once what cannot be had whatever the model: an unknown mode, or ``on`` without a
    CUDA device (`UnsupportedError`)."""
    check_mode(requested)
    if requested == "on" and device.type != "cuda":
        raise UnsupportedError(
            f"graph=on cannot be had: {no_graph(device)}; use graph=auto or graph=off"
        )


def no_graph(device: torch.device) -> str:
    """Why a step on `device`, which is no CUDA device, is no CUDA Graph."""
    return f"a CUDA Graph needs a CUDA device, this one is {device}"


def drawn_graph(requested: str) -> ResolvedGraph:
    """Of a step between whose halves an action is drawn; `UnsupportedError` for ``on``."""
    check_mode(requested)
    reason = "the action is drawn between two halves of a step"
    if requested == "on":
        raise UnsupportedError(
            f"graph=on cannot be had: {reason}; leave out sample and action_noise, or use "
            "graph=auto"
        )
    return ResolvedGraph(False, "switched off" if requested == "off" else reason)


class State(Enum):
    """Where an executor is; `PROVING` compares the first replay with an eager run."""

    IDLE = "idle"
    WARMING = "warming"
    CAPTURING = "capturing"
    PROVING = "proving"
    READY = "ready"
    EAGER = "eager"
    FAILED = "failed"
    CLOSED = "closed"


class Event(Enum):
    """What happens to an executor. `REFUSED`: there will be no graph, and eager steps are sound."""

    START = "start"
    WARMED = "warmed"
    CAPTURED = "captured"
    PROVED = "proved"
    REFUSED = "refused"
    REPLAY = "replay"
    FAIL = "fail"
    CLOSE = "close"


TRANSITIONS: Mapping[tuple[State, Event], State] = {
    (State.IDLE, Event.START): State.WARMING,
    (State.IDLE, Event.REFUSED): State.EAGER,
    (State.IDLE, Event.FAIL): State.FAILED,
    (State.IDLE, Event.CLOSE): State.CLOSED,
    (State.WARMING, Event.WARMED): State.CAPTURING,
    (State.WARMING, Event.FAIL): State.FAILED,
    (State.CAPTURING, Event.CAPTURED): State.PROVING,
    (State.CAPTURING, Event.REFUSED): State.EAGER,
    (State.CAPTURING, Event.FAIL): State.FAILED,
    (State.PROVING, Event.PROVED): State.READY,
    (State.PROVING, Event.REFUSED): State.EAGER,
    (State.PROVING, Event.FAIL): State.FAILED,
    (State.READY, Event.REPLAY): State.READY,
    (State.READY, Event.FAIL): State.FAILED,
    (State.READY, Event.CLOSE): State.CLOSED,
    (State.EAGER, Event.REPLAY): State.EAGER,
    (State.EAGER, Event.FAIL): State.FAILED,
    (State.EAGER, Event.CLOSE): State.CLOSED,
    (State.FAILED, Event.CLOSE): State.CLOSED,
    (State.CLOSED, Event.CLOSE): State.CLOSED,
}

#: What to do in a state that refuses an event.
_INSTEAD: Mapping[State, str] = {
    State.IDLE: "call prepare() first",
    State.WARMING: "let prepare() return first",
    State.CAPTURING: "let prepare() return first",
    State.PROVING: "let prepare() return first",
    State.READY: "it is prepared: call replay(), or close() and make another executor",
    State.EAGER: "it is prepared, without a graph: call replay(), or close() and make another",
    State.FAILED: "make another executor on restored buffers",
    State.CLOSED: "make another executor",
}


def following(state: State, event: Event) -> State:
    """The state after ``event``; `UsageError` where the table has none, with what to do."""
    found = TRANSITIONS.get((state, event))
    if found is None:
        raise UsageError(
            f"{event.value} is not possible while the executor is {state.value}; {_INSTEAD[state]}"
        )
    return found
