"""Two threads in one client: the second one is told, and takes nothing of the first one's."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.client.support import QUICK, held
from tests.service.doubles import service, until
from tests.service.raw import state
from wmrt.client import Answer, Client, connect
from wmrt.core.errors import UsageError

CALLS: dict[str, Callable[[Client], object]] = {
    "act": lambda robot: robot.act(state(0.5)),
    "send": lambda robot: robot.send(state(0.5)),
    "receive": lambda robot: robot.receive(),
    "stream": lambda robot: list(robot.stream([state(0.5)])),
    "reset": lambda robot: robot.reset(),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_client_that_is_in_a_call_refuses_another(tmp_path: Path, call: str) -> None:
    go, seat = held()
    with service(tmp_path, [seat], deadline=30.0) as running:
        with connect(running.address, "r1", **QUICK) as robot:
            robot.act(state(0.1))
            before = seat.asked
            go.clear()
            answers: list[Answer] = []
            other = threading.Thread(target=lambda: answers.append(robot.act(state(0.2))))
            other.start()
            until(lambda: seat.asked > before)
            with pytest.raises(UsageError, match="give each thread a client"):
                CALLS[call](robot)
            go.set()
            other.join(10.0)
            assert answers[0].action[0] == pytest.approx(0.2)
            assert robot.act(state(0.3)).action[0] == pytest.approx(0.3)  # and has not lost count
