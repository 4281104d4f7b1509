"""A turn that one thread begins and another one ends."""

from __future__ import annotations

import threading

from tests.control.stalls import until
from wmrt.control.turn import Turn


def test_one_thread_at_a_time_which_may_enter_again() -> None:
    turn, order = Turn(), []
    with turn:
        with turn:
            assert turn.depth == 2
        thread = threading.Thread(target=lambda: (turn.enter(), order.append("in"), turn.leave()))
        thread.start()
        thread.join(0.05)
        assert thread.is_alive() and not order
    thread.join(10.0)
    assert order == ["in"]


def test_another_thread_ends_it_and_everybody_waits_in_between() -> None:
    turn, order = Turn(), []
    turn.enter()
    turn.suspend()
    waits = threading.Thread(target=lambda: (turn.enter(), order.append("waited"), turn.leave()))
    waits.start()

    def ends() -> None:
        turn.resume()
        turn.enter()
        order.append("resumed")
        turn.leave()
        turn.leave()

    thread = threading.Thread(target=ends)
    waits.join(0.05)
    assert waits.is_alive()
    thread.start()
    thread.join(10.0)
    until(lambda: order == ["resumed", "waited"])
    waits.join(10.0)
    with turn:
        pass
