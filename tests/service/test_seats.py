"""A model of one robot: which of its threads are put where they belong."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.runtime.models import model_of
from wmrt.service.seats import ModelSeat


def in_a_thread(do: Callable[[], Any]) -> int | None:
    thread = threading.Thread(target=do)
    thread.start()
    thread.join(60.0)
    assert not thread.is_alive()
    return thread.ident


def test_every_thread_that_steps_is_put_once(seed: int) -> None:
    """Also one that has the number of a thread that has ended, as a robot's next policy has."""
    put: list[int] = []
    seat = ModelSeat(model_of(seed), lambda: put.append(threading.get_ident()))

    def steps() -> None:
        for _ in range(3):
            seat.step({"speed": 1.0}, seat.schema.neutral)

    threads = [in_a_thread(steps) for _ in range(4)]
    assert put == threads
    if len(set(threads)) == len(threads):
        pytest.skip("this system gave no thread the number of one that had ended")
