"""Services that share a folder of snapshots: a robot is one's at a time; its session goes on."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.runtime.models import model_of, states
from tests.service.doubles import CanarySeat, QuickSeat, Running, service, until
from tests.service.raw import state
from wmrt.client import connect
from wmrt.core.errors import UsageError
from wmrt.core.wire import ROBOT_HEADER
from wmrt.service import handover, operations
from wmrt.service.holding import OVER
from wmrt.service.messages import OperatorMessage


@contextlib.contextmanager
def pair(tmp_path: Path, seats: Any = CanarySeat, **changes: Any) -> Iterator[list[Running]]:
    """Two services, each with two seats, on one folder."""
    changes = {"snapshots": tmp_path / "kept", "shared": True, "snapshot_every": 0.0, **changes}
    with contextlib.ExitStack() as stack:
        running = []
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
            own = service(tmp_path / name, [seats(), seats()], tcp=True, label=name, **changes)
            running.append(stack.enter_context(own))
        yield running


def owners(running: list[Running], robot: str) -> list[bool]:
    return [robot in own.host.registry.places for own in running]


def test_a_session_goes_on_in_another_process_and_loses_nothing(tmp_path: Path, seed: int) -> None:
    """The actions are those of a model that never moved, bit for bit."""
    given = states(model_of(seed).schema, 12, seed)
    for one in given:
        one["speed"] = one["speed"] or 1.0
    options: dict[str, Any] = {"period": 0.1, "clock": "step"}
    with service(tmp_path, [QuickSeat(model_of(seed))], **options) as alone:
        raw = alone.raw()
        raw.open()
        whole = [raw.acted(i, state=one).action for i, one in enumerate(given)]

    def seats() -> QuickSeat:
        return QuickSeat(model_of(seed))

    with pair(tmp_path, seats, **options) as both:
        raw, got = both[0].raw(), []
        raw.open()
        for i, one in enumerate(given):
            if i in (4, 8):  # there, and back again
                left, raw = raw, both[(i // 4) % 2].raw()
                opened = raw.open(session=left.opened["session"], answered=i - 1)
                assert opened["memory"] == "restored" and opened["steps_lost"] == 0
                assert opened["sequence"] == i - 1 and left.closed() == 4421
                assert owners(both, "r1") == [i == 8, i == 4]
            got.append(raw.acted(i, state=one).action)
    assert got == whole


def test_a_client_finds_its_robot_where_it_went(tmp_path: Path) -> None:
    """Nobody tells the client: its connection breaks, and it comes back."""
    with pair(tmp_path) as both, connect(both[0].address, "r1", deadline=20.0) as client:
        for _ in range(3):
            client.act(state(0.25))
        with connect(both[1].address, "r1", session=client.session, deadline=20.0) as other:
            assert other.counters["steps_lost"] == 0
            assert owners(both, "r1") == [False, True]
            # The first one's next call takes the robot back, by the same session.
            answer = client.act(state(-0.5))
            assert (answer.action[0], round(answer.action[1] * 1e4)) == (-0.5, 4)
            assert client.counters["connected"] == 2 and client.counters["resumed"] == 1


def test_another_process_is_no_way_around_the_client_that_holds_a_robot(tmp_path: Path) -> None:
    with pair(tmp_path) as both:
        raw = both[0].raw()
        own = raw.open()
        raw.acted(0)
        told = both[1].raw().open()
        assert told["error"]["name"] == "held" and "another process" in told["error"]["message"]
        told = both[1].raw().open(session="0123456789abcdef")
        assert told["error"]["name"] == "unknown_session"
        assert raw.acted(1).sequence == 1 and owners(both, "r1") == [True, False]
        raw.channel.close()
        until(lambda: both[1].raw().open()["kind"] == "opened")  # it has said good-bye
        # A new session in another process: its breakers and epochs go on, its memory does not.
        assert both[1].host.registry.places["r1"].session.epoch == own["epoch"] + 1
        assert owners(both, "r1") == [False, True]


def blind(running: Running) -> None:
    """Do not look at records any more, as if stopped."""
    own = running.host.registry.handover
    assert own is not None
    own.holds.look = lambda then: then()  # type: ignore[method-assign]


def test_whoever_was_stopped_itself_takes_no_robot_from_an_owner_that_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pair(tmp_path) as both:
        raw = both[0].raw()
        own = raw.open()
        raw.acted(0)
        other = both[1].host.registry.handover
        assert other is not None
        reads = other.leases.read

        def slow(robot: str) -> Any:
            monkeypatch.undo()
            time.sleep(0.5)
            return reads(robot)

        with monkeypatch.context() as patch:
            patch.setattr(handover, "PATIENCE", 0.3)
            monkeypatch.setattr(other.leases, "read", slow)
            opened = both[1].raw().open(session=own["session"], answered=0)
        # Its owner has let it go, after it had written its memory.
        assert (opened["memory"], opened["steps_lost"]) == ("restored", 0)


def test_a_stale_owner_neither_answers_nor_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that does not hear that the robot is wanted elsewhere, as if it had been stopped."""
    monkeypatch.setattr(handover, "PATIENCE", 0.2)

    async def deaf(*_: object) -> None:
        pass

    monkeypatch.setattr(handover.Handover, "_consider", deaf)
    with pair(tmp_path) as both:
        blind(both[0])
        stale = both[0].raw()
        own = stale.open()
        for i in range(3):
            stale.acted(i)
        raw = both[1].raw()
        opened = raw.open(session=own["session"], answered=2)
        # What it did since its last snapshot, which was of its opening, is lost, and told.
        assert opened["memory"] == "restored" and opened["steps_lost"] == 3
        assert raw.acted(3, state=state(0.5)).step == 1
        assert owners(both, "r1") == [True, True]  # the first one does not know yet
        place = both[0].host.registry.places["r1"]
        asked = both[0].seats[place.seat].asked
        assert stale.refused(3, state=state(-0.5)) == "moved"
        assert both[0].seats[place.seat].asked == asked + 1  # it was stepped, and not told
        assert stale.closed() == 4421
        until(lambda: owners(both, "r1") == [False, True])
        assert raw.acted(4).step == 2
        store = both[1].host.registry.store
        assert store is not None
    found = store.read("r1")
    assert found is not None and found.sequence == 4  # the second one's, though both have stopped


@pytest.mark.parametrize("local", [True, False])
def test_a_process_that_was_killed_is_not_waited_for(
    tmp_path: Path, local: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sessions go on from their last snapshots; what is lost is counted. A lock that a file
    server keeps may be lost by a process that lives: it answers no more before the robot goes on.
    """
    monkeypatch.setattr(handover, "is_local", lambda folder: local)
    with pair(tmp_path) as both:
        raw = both[0].raw()
        own = raw.open()
        raw.acted(0)
        first = both[0].host.registry
        assert first.handover is not None
        until(lambda: first.places["r1"].kept is not None)
        first.handover.leases.close()  # what the system does with a process that is killed
        for i in range(1, 4):
            raw.acted(i)
        other, began = both[1].raw(), time.monotonic()
        opened = other.open(session=own["session"], answered=3)
        assert (opened["memory"], opened["steps_lost"]) == ("restored", 4)
        if local:  # where nobody answers who has lost a lock, this one's look still counts
            time.sleep(OVER)
        assert (time.monotonic() - began >= OVER) and raw.refused(4) == "moved"


def test_over_http_a_session_is_found_again_by_its_next_observation(
    tmp_path: Path, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    with pair(tmp_path, route_by=ROBOT_HEADER) as both:
        own: dict[str, Any] = {}

        def ask(where: int, path: str, routed: str | None = "r1", **values: Any) -> Any:
            host, port = both[where].tcp.removeprefix("http://").split(":")
            connection = http.client.HTTPConnection(host, int(port), timeout=20.0)
            headers = {} if routed is None else {ROBOT_HEADER: routed}
            body = json.dumps({"version": 1, "robot": "r1", **values})
            connection.request("POST", path, body, {"Content-Type": "application/json", **headers})
            answer = connection.getresponse()
            told = json.loads(answer.read())
            connection.close()
            return answer.status, answer.headers.get("x-wmrt-steps-lost"), told

        def act(where: int, sequence: int, **changes: Any) -> Any:
            known = {"session": own["session"], "epoch": own["epoch"], **changes}
            return ask(where, "/v1/act", sequence=sequence, state=state(canary), **known)

        canary = float(np.float32(round(rng.uniform(-1, 1), 4)))
        status, _, told = ask(0, "/v1/reset", routed=None)
        assert status == 421 and told["error"]["name"] == "misrouted"
        assert f"header {ROBOT_HEADER} is missing" in told["error"]["message"]
        status, _, told = ask(0, "/v1/reset", routed="r2")
        assert status == 421 and "is 'r2'" in told["error"]["message"]
        status, _, own = ask(0, "/v1/reset")
        assert status == 200 and own["steps_lost"] == 0
        assert act(0, 0)[:2] == (200, None)
        status, lost, told = act(1, 1)
        assert (status, lost) == (200, "0") and abs(told["action"][0] - canary) < 1e-6
        assert owners(both, "r1") == [False, True] and round(told["action"][1] * 1e4) == 2
        assert act(0, 2, session="0123456789abcdef")[2]["error"]["name"] == "unknown_session"
        assert act(1, 2)[:2] == (200, None)
        # A snapshot of before a reset is of another episode.
        status, _, told = act(0, 3, epoch=own["epoch"] + 1)
        assert (status, told["error"]["name"]) == (409, "unknown_session")


def test_a_connection_of_another_robot_is_misrouted(tmp_path: Path) -> None:
    with service(tmp_path, route_by=ROBOT_HEADER) as running:
        assert running.raw().open()["error"]["name"] == "misrouted"
        with connect(running.address, "r1", deadline=20.0) as client:  # which sends the header
            assert client.act(state(0.5)).action[0] == 0.5


def test_a_reset_is_kept_at_once(tmp_path: Path) -> None:
    """Whoever restores the session must not go on with the episode before."""
    with pair(tmp_path) as both:
        raw = both[0].raw()
        raw.open()
        raw.acted(0)
        raw.say({"kind": "reset", "version": 1, "robot": "r1"})
        epoch = raw.hear()["epoch"]
        store = both[0].host.registry.store
        assert store is not None
        found = store.read("r1")
        assert found is not None and (found.epoch, found.sequence) == (epoch, 0)


def test_a_client_that_was_taken_over_does_not_come_back_through_a_kill(tmp_path: Path) -> None:
    with pair(tmp_path, on_second_client="takeover") as both:
        first, second = both[0].raw(), both[0].raw()
        old = first.open()
        first.acted(0)
        new = second.open()
        assert first.closed() == 4409
        leases = both[0].host.registry.handover
        assert leases is not None
        leases.leases.close()  # killed
        told = both[1].raw().open(session=old["session"])
        assert told["error"]["name"] == "unknown_session"
        assert both[1].raw().open(session=new["session"])["memory"] == "restored"


def test_a_robot_that_cannot_be_kept_is_not_given_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pair(tmp_path) as both:
        raw = both[0].raw()
        own = raw.open()
        raw.acted(0)
        store = both[0].host.registry.store
        assert store is not None

        def full(*_: object) -> None:
            raise UsageError("no space left")

        monkeypatch.setattr(store, "_write", full)
        told = both[1].raw().open(session=own["session"])
        assert told["error"]["name"] == "not_ready"
        assert raw.acted(1).sequence == 1 and owners(both, "r1") == [True, False]
        monkeypatch.undo()
        opened = both[1].raw().open(session=own["session"], answered=1)
        assert opened["memory"] == "restored" and opened["steps_lost"] == 0


def test_a_stop_that_was_pressed_goes_with_the_robot(tmp_path: Path) -> None:
    """Before any action latched it: the next one is another process's."""
    with pair(tmp_path) as both:
        raw = both[0].raw()
        own = raw.open()
        raw.acted(0)
        asyncio.run_coroutine_threadsafe(
            operations.operate(
                both[0].host, "estop", OperatorMessage(robot="r1"), operator=False, client="test"
            ),
            both[0].host.outbox.loop,
        ).result(10.0)
        store = both[0].host.registry.store
        assert store is not None
        until(lambda: (kept := store.read("r1")) is not None and kept.breakers == "latched")
        other = both[1].raw()
        assert other.open(session=own["session"])["memory"] == "restored"
        answer = other.acted(1, state=state(0.5))
        assert (answer.source, answer.breakers) == ("fallback", "latched")


def test_a_folder_that_cannot_be_used_is_told_and_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pair(tmp_path) as both:
        leases = both[0].host.registry.handover
        assert leases is not None

        def full(*_: object) -> None:
            raise UsageError("no space left")

        monkeypatch.setattr(leases.leases, "take", full)
        assert both[0].raw().open()["error"]["name"] == "not_ready"
        monkeypatch.undo()
        assert both[0].raw().open()["kind"] == "opened"


def test_a_place_that_is_full_takes_no_robot_from_another_process(tmp_path: Path) -> None:
    with pair(tmp_path) as both:
        raws = [both[0].raw() for _ in range(2)]
        for i, raw in enumerate(raws):
            raw.open(f"own-{i}")
        moving = both[1].raw()
        own = moving.open("r1")
        moving.acted(0)
        told = both[0].raw().open("r1", session=own["session"])
        assert told["error"]["name"] == "too_many_robots"
        assert moving.acted(1).sequence == 1
