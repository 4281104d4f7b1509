"""One robot's desk, with both mechanisms of the deadline: who decides differs, and nothing else."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.service.doubles import CanarySeat, Running, service, until
from tests.service.raw import state
from wmrt.control import Controller, TimedController
from wmrt.core.wire import Acted
from wmrt.service.crew import Crew
from wmrt.service.jobs import Job
from wmrt.service.refusals import Refusal
from wmrt.service.settings import ServeSettings


class Hanging(CanarySeat):
    """Hangs while ``go`` is not set."""

    def __init__(self) -> None:
        super().__init__(lambda: self.go.wait(30.0) * 0.0)
        self.go, self.names = threading.Event(), set[str]()
        self.go.set()

    def step(self, state: object, previous_action: object) -> object:
        self.names.add(threading.current_thread().name)
        return super().step(state, previous_action)  # type: ignore[arg-type]


@pytest.fixture(params=["timer", "thread"])
def running(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Running]:
    seat = Hanging()
    with service(tmp_path, [seat], deadline=0.1, deadline_by=request.param, tcp=True) as one:
        try:
            yield one
        finally:
            seat.go.set()


def test_what_is_asked_for_is_what_runs(running: Running) -> None:
    running.raw().open()
    wanted = running.settings.deadline_by
    told = running.host.crew.described["deadline_by"]
    assert told == {"requested": wanted, "resolved": wanted}
    kind = TimedController if wanted == "timer" else Controller
    assert type(running.host.registry.places["r1"].desk.controller) is kind


def test_models_that_are_stepped_in_turn_have_a_thread_that_waits(tmp_path: Path) -> None:
    settings = ServeSettings(robots=2, cpu=-1)
    crew = Crew([CanarySeat(), CanarySeat()], settings)
    assert crew.described["deadline_by"] == {
        "requested": "timer", "resolved": "thread",
        "reason": "models that share no read of the weights are stepped one after the other",
    }  # fmt: skip
    crew.close()


def test_actions_leave_and_commands_are_done_while_the_policy_hangs(running: Running) -> None:
    seat, raw = running.seats[0], running.raw()
    raw.open()
    until(lambda: raw.acted(int(time.monotonic() * 1e6)).source == "policy")
    last = running.host.registry.places["r1"].session.sequence
    seat.go.clear()
    for n in range(1, 4):
        began = time.monotonic()
        answer = raw.acted(last + n, state=state(0.5))
        assert answer.late and answer.source == "fallback"
        assert 0.1 <= time.monotonic() - began < 5.0
    with httpx.Client(base_url=running.tcp, trust_env=False) as http:
        told = http.get("/v1/breakers").json()["robots"]["r1"]
        assert not told["busy"] and told["stats"]["deadline_misses"] >= 3
    raw.say({"kind": "reset", "version": 1, "robot": "r1"})
    reset = raw.hear(5.0)
    assert reset["kind"] == "opened" and reset["epoch"] == 1
    raw.opened = reset
    assert raw.acted(last + 9).late
    seat.go.set()
    until(lambda: raw.acted(int(time.monotonic() * 1e6)).source == "policy")
    assert seat.seen[-1] == 0.0 and seat.steps == len(seat.seen)  # of the new episode alone
    assert "wmrt-policy" in seat.names


def test_an_unfit_observation_is_answered_at_once(running: Running) -> None:
    raw = running.raw()
    raw.open()
    for sequence in range(5):
        answer = raw.acted(sequence, state=state() | {"canary": None})
        assert (answer.source, answer.breakers, answer.policy_ns) == ("fallback", "open", None)


def test_who_stops_waiting_for_a_call_holds_nobody_up(running: Running) -> None:
    raw = running.raw()
    raw.open()
    desk = running.host.registry.places["r1"].desk
    begun, go = threading.Event(), threading.Event()
    first = desk.call(lambda: (begun.set(), go.wait(10.0)))
    assert begun.wait(10.0)
    second, third = desk.call(list), desk.call(dict)
    assert second.cancel() and not first.cancel()
    raw.say(raw.packed(0))
    time.sleep(0.02)
    assert running.seats[0].asked == 3  # the warm-up's: no step while a call runs
    go.set()
    assert third.result(10.0) == {}
    got = raw.hear()
    assert isinstance(got, Acted) and got.sequence == 0


def test_calls_and_steps_in_a_crowd(running: Running) -> None:
    """Every call is done and every observation answered or superseded, whoever comes first."""
    raw = running.raw()
    raw.open()
    desk = running.host.registry.places["r1"].desk
    done: list[int] = []
    futures = []

    def calls() -> None:
        for n in range(300):
            futures.append(desk.call(lambda n=n: done.append(n)))  # type: ignore[misc]

    threads = [threading.Thread(target=calls) for _ in range(2)]
    for thread in threads:
        thread.start()
    for sequence in range(300):
        assert raw.acted(sequence).sequence == sequence
    for thread in threads:
        thread.join(30.0)
    for future in futures:
        future.result(10.0)
    assert len(done) == 600 and desk._turn.acquire(timeout=10.0)
    desk._turn.release()


def test_an_answer_that_is_not_handed_on_keeps_no_robot_from_its_next_step(
    running: Running,
) -> None:
    """A fault of ours, which is told: the observation counts as one that waits."""
    raw, outbox = running.raw(), running.host.outbox
    raw.open()
    raw.acted(0)
    desk = running.host.registry.places["r1"].desk
    whole = desk._reply

    def fails(job: Job, answer: Any) -> None:
        desk._reply = whole
        raise RuntimeError("a fault of ours")

    desk._reply = fails
    raw.say(raw.packed(1))
    until(lambda: desk._reply is whole)
    assert raw.acted(2).sequence == 2

    def left() -> list[int]:  # what was answered is counted a moment later
        return [job.observed.sequence for job in list(outbox.jobs)]

    until(lambda: left() == [1])
    job = outbox.oldest()
    refusal = Refusal("internal", "a fault of ours")
    outbox.loop.call_soon_threadsafe(outbox.finish, job, refusal)
    assert raw.hear()["error"]["name"] == "internal"
