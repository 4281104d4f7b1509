"""When memories are kept: a policy that hangs, or a disk that takes nothing, is in nobody's way."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.service.doubles import CanarySeat, service, until
from wmrt.core.errors import UsageError
from wmrt.runtime.snapshot import Snapshot
from wmrt.service import host, keeping, standings
from wmrt.service.audit import Audit
from wmrt.service.memories import Standing
from wmrt.service.snapshots import SnapshotStore

STOOD = Standing("r1", 7, 3, 75, (0.25, 0.0), "open", True)


class Hanging(CanarySeat):
    """Its steps wait for ``go``, and whoever wants its memory for their end."""

    def __init__(self) -> None:
        self.go, self.lock = threading.Event(), threading.Lock()
        self.go.set()
        super().__init__(lambda: self.go.wait(60.0) * 0.0)

    def step(self, *arguments: Any) -> Any:
        with self.lock:
            return super().step(*arguments)

    def snapshot(self) -> Snapshot:
        with self.lock:
            return super().snapshot()

    def reset(self) -> None:
        with self.lock:
            super().reset()


@pytest.mark.parametrize("by", ["timer", "thread"])
def test_a_snapshot_holds_no_robot_up_whose_policy_hangs(
    tmp_path: Path, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets the fallback's actions while its memory cannot be had."""
    monkeypatch.setattr(keeping, "PATIENCE", 0.05)
    seat = Hanging()
    kept: dict[str, Any] = {"snapshots": tmp_path / "kept", "snapshot_every": 0.02}
    with service(tmp_path, [seat], deadline=0.1, deadline_by=by, **kept) as running:
        raw, own = running.raw(), running.host.registry
        raw.open()
        raw.acted(0)
        try:
            seat.go.clear()
            assert raw.acted(1).late
            place = own.places["r1"]
            told = asyncio.run_coroutine_threadsafe(own.keep(place), running.host.outbox.loop)
            assert told.result(20.0) is False  # it says so, and does not wait
            for i in range(2, 6):
                answer = raw.acted(i)
                assert answer.source == "fallback" and answer.sequence == i
        finally:
            seat.go.set()
        store = own.store
        assert store is not None
        until(lambda: (found := store.read("r1")) is not None and found.sequence == 5)


def test_a_policy_that_hangs_keeps_no_other_robot_from_being_kept_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "PUT_AWAY", 2.0)
    monkeypatch.setattr(keeping, "PATIENCE", 0.2)
    seats = [Hanging(), Hanging()]
    kept: dict[str, Any] = {"snapshots": tmp_path / "kept", "snapshot_every": 0.0}
    try:
        with service(tmp_path, seats, deadline=0.1, **kept) as running:
            hung, other = running.raw(), running.raw()
            hung.open("r1")
            other.open("r2")
            other.acted(0)
            store = running.host.registry.store
            assert store is not None
            seats[running.host.registry.places["r1"].seat].go.clear()
            assert hung.acted(0).late
            running.server.should_exit = True
            until(lambda: (found := store.read("r2")) is not None and found.sequence == 0)
            until(lambda: not running._thread.is_alive(), 20.0)  # nor does the process hang
    finally:
        for seat in seats:
            seat.go.set()


class Disk(SnapshotStore):
    """Takes nothing while it is ``full``."""

    full = True

    def _replace(self, path: Path, data: bytes) -> None:
        if self.full:
            raise UsageError("No space left on device")
        super()._replace(path, data)


def test_where_breakers_stand_is_tried_again_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standings, "AGAIN", 600.0)
    disk, audit = Disk(tmp_path), Audit(None)
    own = standings.Standings(disk, lambda lease: None, audit)
    own.put(STOOD, None)
    until(lambda: own.waiting)
    disk.full = False
    own.close()
    audit.close()
    assert disk.read_standing("r1") == STOOD and not own.waiting


def test_where_breakers_stand_is_tried_again_whatever_others_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Robots whose breakers move faster than it is tried again."""
    monkeypatch.setattr(standings, "AGAIN", 0.2)
    disk, audit = Disk(tmp_path), Audit(None)
    own = standings.Standings(disk, lambda lease: None, audit)
    own.put(STOOD, None)
    until(lambda: own.waiting)
    disk.full = False
    end = time.monotonic() + 20.0
    while own.waiting:
        assert time.monotonic() < end, "it was not tried again"
        own.put(STOOD._replace(robot="r2"), None)
        time.sleep(0.01)
    own.close()
    audit.close()
    assert disk.read_standing("r1") == STOOD
