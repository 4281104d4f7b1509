"""Every state against every event, and what the table promises."""

from __future__ import annotations

from itertools import product

import pytest

from wmrt.core.errors import DeviceError, OutOfMemoryError, UsageError
from wmrt.runtime.graph_life import Life, first_line
from wmrt.runtime.graph_states import (
    _INSTEAD,
    TRANSITIONS,
    Event,
    ResolvedGraph,
    State,
    check_mode,
    following,
)

BUSY = (State.WARMING, State.CAPTURING, State.PROVING)
#: Written again, by event: what the states are that take it, and where it leads.
EXPECTED = {
    Event.START: {State.IDLE: State.WARMING},
    Event.WARMED: {State.WARMING: State.CAPTURING},
    Event.CAPTURED: {State.CAPTURING: State.PROVING},
    Event.PROVED: {State.PROVING: State.READY},
    Event.REFUSED: dict.fromkeys((State.IDLE, State.CAPTURING, State.PROVING), State.EAGER),
    Event.REPLAY: {State.READY: State.READY, State.EAGER: State.EAGER},
    Event.FAIL: dict.fromkeys((State.IDLE, *BUSY, State.READY, State.EAGER), State.FAILED),
    Event.CLOSE: dict.fromkeys(
        (State.IDLE, State.READY, State.EAGER, State.FAILED, State.CLOSED), State.CLOSED
    ),
}


@pytest.mark.parametrize(("state", "event"), list(product(State, Event)))
def test_every_state_against_every_event(state: State, event: Event) -> None:
    wanted = EXPECTED[event].get(state)
    if wanted is not None:
        assert following(state, event) is wanted
        return
    with pytest.raises(UsageError) as raised:
        following(state, event)
    said = str(raised.value)
    assert event.value in said and state.value in said and _INSTEAD[state] in said


def test_only_a_proof_makes_it_ready_and_every_state_can_be_left() -> None:
    into = {(s, e) for (s, e), t in TRANSITIONS.items() if t is State.READY and s is not t}
    assert into == {(State.PROVING, Event.PROVED)}
    assert {s for (s, _), t in TRANSITIONS.items() if s is not t} == set(State) - {State.CLOSED}
    assert {t for (s, e), t in TRANSITIONS.items() if s is State.FAILED} == {State.CLOSED}


def test_modes_and_what_they_resolve_to() -> None:
    with pytest.raises(UsageError, match="'yes' is unknown; allowed: auto, on, off"):
        check_mode("yes")
    assert ResolvedGraph(True, "").name == "cuda graph"
    assert ResolvedGraph(False, "").name == "eager"


def test_errors_end_a_life_with_their_first_line() -> None:
    life = Life()
    with pytest.raises(DeviceError, match=r"a step failed: broken; make another") as raised:
        with life.failing("a step"):
            raise RuntimeError("broken\nand pages more")
    assert isinstance(raised.value.__cause__, RuntimeError)
    assert life.state is State.FAILED and life.failure == "a step failed: broken"
    with pytest.raises(DeviceError, match="no more steps: a step failed: broken"):
        life.require(Event.REPLAY)


def test_memory_that_runs_out_and_an_interrupt_are_told_apart() -> None:
    import torch

    life = Life()
    with pytest.raises(OutOfMemoryError, match="free memory"), life.failing("a step"):
        raise torch.OutOfMemoryError("CUDA out of memory.")
    life = Life()
    with pytest.raises(KeyboardInterrupt), life.ended_by_any("preparing"):
        raise KeyboardInterrupt
    assert life.failure == "preparing was ended by KeyboardInterrupt: KeyboardInterrupt"
    assert first_line(ValueError("")) == "ValueError"
