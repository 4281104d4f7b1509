"""Who has which seat: seats that must not be lost, given twice, or given away with a memory."""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from tests.service.doubles import CanarySeat, Running, service, until
from tests.service.raw import state
from wmrt.core.errors import UsageError
from wmrt.service import registry
from wmrt.service.snapshots import SnapshotStore


def run(running: Running, what: Coroutine[Any, Any, Any]) -> Any:
    """In the service's event loop."""
    return asyncio.run_coroutine_threadsafe(what, running.host.outbox.loop).result(20.0)


def test_a_desk_that_cannot_be_made_costs_no_seat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process without a free file, for one: the next client finds the seat there."""

    def none(*_: Any, **__: Any) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with service(tmp_path) as running:
        with monkeypatch.context() as patch:
            patch.setattr(registry, "Desk", none)
            for _ in range(3):
                assert running.raw().open()["error"]["name"] == "unknown_session"
        raw = running.raw()
        assert raw.open()["kind"] == "opened" and raw.acted(0).step == 1


def test_a_robot_that_leaves_gives_its_place_away_once(tmp_path: Path) -> None:
    """Else the next robot's memory would go with it."""
    seats = [CanarySeat(), CanarySeat()]
    with service(tmp_path, seats, idle=0.0, hold=0.01) as running:
        own = running.host.registry
        raws = [running.raw() for _ in range(2)]
        for i, raw in enumerate(raws):
            raw.open(f"r{i}")
            raw.acted(0)
        places = dict(own.places)
        for raw in raws:
            raw.channel.close()
        until(lambda: all(p.session.holder is None for p in places.values()))
        time.sleep(0.05)
        for place in places.values():
            place.leaving = True  # on its way to another process
        assert own._idlest() is None
        assert running.raw().open("r2")["error"]["name"] == "too_many_robots"
        places["r1"].leaving = False
        assert own._idlest() is places["r1"]


@pytest.mark.parametrize("resumes", [False, True])
def test_a_full_disk_heals_nobody_who_gave_his_place_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resumes: bool
) -> None:
    options: dict[str, Any] = {"idle": 0.0, "hold": 0.01, "snapshot_every": 0.0}
    with service(tmp_path, snapshots=tmp_path / "kept", **options) as running:
        own, raw = running.host.registry, running.raw()
        session = raw.open("r1")["session"]
        raw.acted(0)
        assert run(running, own.keep(own.places["r1"]))
        run(running, own.keeper.settle())

        def full(*_: object) -> None:
            raise UsageError("No space left on device")

        monkeypatch.setattr(SnapshotStore, "_replace", full)
        own.places["r1"].desk.estop(True)
        assert raw.acted(1).breakers == "latched"
        until(own.keeper.unwritten)
        raw.channel.close()
        until(lambda: own.places["r1"].session.holder is None)

        def opens(robot: str, **wanted: Any) -> bool:
            nonlocal raw
            raw = running.raw()
            return bool(raw.open(robot, **wanted)["kind"] == "opened")

        until(lambda: opens("r2"))
        raw.channel.close()
        until(lambda: opens("r1", **({"session": session} if resumes else {})))
        assert raw.opened["memory"] == ("restored" if resumes else "fresh")
        answer = raw.acted(9, state=state(0.5))
        assert (answer.source, answer.breakers) == ("fallback", "latched")
        assert not own.parted  # the desk knows


def test_a_robot_that_leaves_takes_its_session_along(tmp_path: Path) -> None:
    """A client that comes meanwhile neither changes it nor begins another one."""
    with service(tmp_path, hold=0.01) as running:
        raw = running.raw()
        own = raw.open()
        raw.acted(0)
        raw.channel.drop()
        place = running.host.registry.places["r1"]
        until(lambda: place.session.holder is None)
        time.sleep(0.05)
        place.leaving = True
        for wanted in ({}, {"session": own["session"]}):
            assert running.raw().open(**wanted)["error"]["name"] == "moved"
        assert f"{place.session.id:016x}" == own["session"] and place.session.epoch == own["epoch"]
        place.leaving = False
        assert running.raw().open(session=own["session"])["memory"] == "kept"
