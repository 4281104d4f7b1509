"""Many robots in one process: never mixed, and the next one is told."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.runtime import rowwise
from tests.runtime.models import drive, model_of, states
from tests.service.doubles import CanarySeat, Running, service
from tests.service.raw import state
from wmrt.client import connect
from wmrt.core.errors import ServiceError
from wmrt.runtime.group import SessionGroup
from wmrt.service import crew
from wmrt.service.seats import Gather, ModelSeat
from wmrt.service.settings import ServeSettings

ROBOTS = 16


def ask_with_canaries(running: Running, robot: int, rounds: int, wrong: list[Any]) -> None:
    """One robot's client; appends whatever is not its own."""
    rng = np.random.default_rng(robot)
    with connect(running.address, f"robot-{robot}", deadline=20.0) as client:
        for turn in range(rounds):
            canary = float(np.float32(round(rng.uniform(-1, 1), 4)))
            answer = client.act(state(canary))
            if abs(answer.action[0] - canary) > 1e-6 or answer.step != turn + 1:
                wrong.append((robot, turn, canary, answer))
            if round(answer.action[1] * 1e4) != turn + 1:  # how often this robot's seat was asked
                wrong.append((robot, turn, answer))


def test_sixteen_robots_get_each_their_own_answers(tmp_path: Path) -> None:
    seats = [CanarySeat() for _ in range(ROBOTS)]
    wrong: list[Any] = []
    with service(tmp_path, seats) as running:
        threads = [
            threading.Thread(target=ask_with_canaries, args=(running, i, 12, wrong))
            for i in range(ROBOTS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60.0)
        assert not any(thread.is_alive() for thread in threads)
        assert wrong == []
        # The next ones are refused at once, by name and with the limit, and change nothing.
        for i in range(20):
            raw = running.raw()
            began = time.monotonic()
            told = raw.open(f"more-{i}")
            assert (
                told["error"]["name"] == "too_many_robots"
                and "16 robots" in told["error"]["message"]
            )
            assert time.monotonic() - began < 1.0
            assert raw.closed() == 4429
        assert len(running.host.registry.places) == ROBOTS
    assert sorted(len(seat.seen) for seat in seats) == [0] * ROBOTS  # closed, and reset


def test_a_client_is_told_that_it_is_one_too_many(tmp_path: Path) -> None:
    with service(tmp_path) as running, connect(running.address, "r1"):
        with pytest.raises(ServiceError, match="1 robot, and all places") as caught:
            connect(running.address, "r2")
        assert caught.value.name == "too_many_robots"


def test_a_group_answers_as_models_alone_do(tmp_path: Path, seed: int, monkeypatch: Any) -> None:
    """Four robots on one read of the weights, each with states of its own: bit for bit."""
    given = {i: states(model_of(seed).schema, 8, seed + i) for i in range(4)}
    for stream in given.values():
        for one in stream:
            one["speed"] = one["speed"] or 1.0
    got: dict[int, list[Any]] = {}

    def client(address: str, robot: int) -> None:
        with connect(address, f"r{robot}", deadline=20.0) as own:
            got[robot] = [own.act(one) for one in given[robot]]

    made: list[Any] = []

    def grouped(seats: Any, settings: Any) -> Any:
        gather = Gather(SessionGroup(model_of(seed), 4))
        made.append(gather)
        return crew.Crew(gather.seats, settings, gather)

    monkeypatch.setattr("tests.service.doubles.Crew", grouped)
    with service(tmp_path, [None] * 4, clock="step") as running:
        sizes: list[int] = []
        step = made[0].group.step
        made[0].group.step = lambda states, *a, **k: (
            sizes.append(len(states)) or step(states, *a, **k)
        )
        assert running.host.crew.described["shared_read_of_weights"]
        threads = [threading.Thread(target=client, args=(running.address, i)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60.0)
    for robot, stream in given.items():
        alone = service_alone(tmp_path, seed, stream)
        assert [a.action.tolist() for a in got[robot]] == alone, robot
    assert sum(sizes) == 32 and max(sizes) > 1, sizes  # and they did share reads


def service_alone(tmp_path: Path, seed: int, stream: list[Any]) -> list[Any]:
    with service(tmp_path, [ModelSeat(model_of(seed))], clock="step") as running:
        with connect(running.address, "alone", deadline=20.0) as own:
            return [own.act(one).action.tolist() for one in stream]


def test_one_robot_s_fault_is_not_the_others(seed: int) -> None:
    model = model_of(seed)
    gather = Gather(SessionGroup(model, 2))
    worker = threading.Thread(target=gather.run)
    worker.start()
    stream = states(model.schema, 3, seed)
    results: dict[int, Any] = {}

    def ask(robot: int, previous: Any) -> None:
        try:
            results[robot] = gather.seats[robot].step(stream[0], previous)
        except Exception as error:
            results[robot] = error

    for seat in gather.seats:
        seat.enter()
    threads = [
        threading.Thread(target=ask, args=(0, [9.0])),
        threading.Thread(target=ask, args=(1, None)),
    ]
    for thread in (*threads,):
        thread.start()
    for thread in threads:
        thread.join(10.0)
    assert "previous_action" in str(results[0])
    (alone,) = drive(model_of(seed), stream[:1])
    assert np.array_equal(results[1].action, alone.action)
    gather.close()
    worker.join(10.0)
    assert not worker.is_alive()
    with pytest.raises(Exception, match="stopping"):
        gather.seats[0].step(stream[0], None)


def test_the_fused_step_of_a_gpu_is_served_as_a_group(seed: int) -> None:
    """Its operators run on the CPU here; that nothing else is another way is what is tested."""
    model = rowwise.model_of(seed)
    made = crew._seated(model, ServeSettings(robots=3, cpu=-1))
    assert made.described["shared_read_of_weights"]
    told = made.described["group"]
    assert told["rows"] == [1, 2, 3] and not told["graph"] and told["graph_reason"]
    alone = [model.fork() for _ in range(3)]
    for state_, robot in zip(states(model.schema, 6, seed), (0, 2, 2, 1, 0, 2), strict=True):
        mine, theirs = made.seats[robot].step(state_, None), alone[robot].step(state_)
        assert np.array_equal(mine.action, theirs.action)
    kept = made.seats[2].snapshot()
    assert int(kept.tensors["step"]) == 3
    made.seats[2].reset()
    assert not int(made.seats[2].snapshot().tensors["step"])
    made.seats[2].restore(kept)
    made.close()


def test_a_model_without_the_native_executor_is_forked(tmp_path: Path, seed: int) -> None:
    made = crew._seated(model_of(seed, executor="eager"), ServeSettings(robots=3, cpu=-1))
    assert len(made.seats) == 3 and not made.described["shared_read_of_weights"]
    assert "native executor" in made.described["shared_read_of_weights_reason"]
    stream = states(made.seats[0].schema, 2, seed)
    first = made.seats[0].step(stream[0], None)
    again = made.seats[1].step(stream[0], None)
    assert np.array_equal(first.action, again.action)  # each begins anew
    made.close()
