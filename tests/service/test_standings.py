"""Where robots' breakers stand, on disk within milliseconds: what kill -9 leaves, others find."""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.service.doubles import CanarySeat, Running, service, until
from tests.service.raw import Raw, state
from wmrt.core.errors import CheckpointError, UsageError
from wmrt.runtime.snapshot import Snapshot
from wmrt.safety import State
from wmrt.service import standings
from wmrt.service.audit import Audit
from wmrt.service.leases import Lease, Leases
from wmrt.service.memories import UNKNOWN, Memory, Standing, Trouble, merged, worst
from wmrt.service.memory_files import pack_standing, unpack_standing
from wmrt.service.snapshots import SnapshotStore

SNAPSHOT = CanarySeat().snapshot()
KEPT = Memory("r1", 7, 3, 70, 90, (0.5, -0.25), "closed", True, SNAPSHOT)
STOOD = Standing("r1", 7, 3, 75, (0.25, 0.0), "closed", True)


def kept_in(running: Running) -> SnapshotStore:
    store = running.host.registry.store
    assert store is not None
    return store


def stood(running: Running, breakers: str, engaged: bool = True) -> Standing:
    """What the disk says, once it says this."""
    store = kept_in(running)

    def says() -> bool:
        found = store.read_standing("r1")
        return found is not None and (found.breakers, found.engaged) == (breakers, engaged)

    until(says)
    found = store.read_standing("r1")
    assert found is not None
    return found


def killed(running: Running, tmp_path: Path) -> dict[str, Any]:
    """The settings of a service that finds what this one would leave, killed now."""
    left = tmp_path / "left"
    hidden = shutil.ignore_patterns(".*")  # of files that are being written
    shutil.copytree(kept_in(running).folder, left, ignore=hidden)
    return {"snapshots": left, "snapshot_every": 0.0}


def snapshot_of(running: Running) -> None:
    """Keep the memory as it is now."""
    host = running.host
    keeping = host.registry.keep(host.registry.places["r1"])
    assert asyncio.run_coroutine_threadsafe(keeping, host.outbox.loop).result(10.0)


def trip(running: Running, raw: Raw) -> None:
    assert raw.acted(1, state={"canary": None}).breakers == "open"
    stood(running, "open")


def disengage(running: Running, raw: Raw) -> None:
    desk = running.host.registry.places["r1"].desk
    desk.call(desk.controller.disengage).result(10.0)
    stood(running, "closed", False)


def latch(running: Running, raw: Raw) -> None:
    running.host.registry.places["r1"].desk.controller.estop()
    assert raw.acted(1).breakers == "latched"
    stood(running, "latched", False)


@pytest.mark.parametrize("how", [trip, disengage, latch])
@pytest.mark.parametrize("resumes", [True, False])
def test_kill_9_heals_nothing_that_is_younger_than_the_snapshot(
    tmp_path: Path, how: Callable[[Running, Raw], None], resumes: bool
) -> None:
    with service(tmp_path, snapshots=tmp_path / "kept", snapshot_every=0.0) as running:
        raw = running.raw()
        own = raw.open()
        raw.acted(0)
        snapshot_of(running)
        memory = kept_in(running).read("r1")
        assert memory is not None and memory.breakers == "closed" and memory.engaged
        how(running, raw)
        options = killed(running, tmp_path)
        before = running.host.registry.places["r1"].desk.breakers.state.value
    with service(tmp_path, **options) as running:
        raw = running.raw()
        opened = raw.open(**({"session": own["session"]} if resumes else {}))
        assert opened["memory"] == ("restored" if resumes else "fresh")
        answer = raw.acted(9, state=state(0.5))
        assert answer.source == "fallback"
        breakers = running.host.registry.places["r1"].desk.breakers
        assert breakers.engaged is (how is trip)
        assert answer.breakers == ("latched" if how is latch else before)


def test_a_stop_is_on_disk_while_the_policy_hangs(tmp_path: Path) -> None:
    """A snapshot waits for the step; whoever kills the process for it does not."""
    go = threading.Event()
    go.set()
    seat = CanarySeat(lambda: go.wait(30.0) * 0.0)
    options: dict[str, Any] = {"snapshots": tmp_path / "kept", "snapshot_every": 0.0}
    try:
        with service(tmp_path, [seat], deadline=0.1, **options) as running:
            raw = running.raw()
            own = raw.open()
            raw.acted(0)
            snapshot_of(running)
            go.clear()
            assert raw.acted(1).late
            running.host.registry.places["r1"].desk.estop(True)
            stood(running, "latched")
            left = killed(running, tmp_path)
            go.set()
    finally:
        go.set()
    with service(tmp_path, **left) as running:
        raw = running.raw()
        raw.open(session=own["session"])
        assert raw.acted(9).breakers == "latched"


def test_an_episode_that_began_after_the_snapshot_has_no_past(tmp_path: Path) -> None:
    with service(tmp_path, snapshots=tmp_path / "kept", snapshot_every=0.0) as running:
        raw = running.raw()
        own = raw.open()
        for i in range(5):
            raw.acted(i)
        snapshot_of(running)
        raw.say({"kind": "reset", "version": 1, "robot": "r1"})
        assert raw.hear()["epoch"] == 1
        until(lambda: (kept := kept_in(running).read_standing("r1")) is not None and kept.epoch)
        left = killed(running, tmp_path)
    with service(tmp_path, **left) as running:
        raw = running.raw()
        opened = raw.open(session=own["session"])
        assert (opened["epoch"], opened["sequence"], opened["memory"]) == (1, 4, "restored")
        assert round(raw.acted(5, epoch=1).action[1] * 1e4) == 1


def test_a_session_that_another_one_has_followed_is_not_restored(tmp_path: Path) -> None:
    options: dict[str, Any] = {"snapshot_every": 0.0, "hold": 0.01}
    with service(tmp_path, snapshots=tmp_path / "kept", **options) as running:
        raw = running.raw()
        own = raw.open()
        raw.acted(0)
        snapshot_of(running)
        raw.channel.close()
        until(lambda: running.host.registry.places["r1"].session.holder is None)
        time.sleep(0.05)
        assert running.raw().open()["epoch"] == 1
        until(lambda: (kept := kept_in(running).read_standing("r1")) is not None and kept.epoch)
        left = killed(running, tmp_path)
    with service(tmp_path, **left) as running:
        assert running.raw().open(session=own["session"])["error"]["name"] == "unknown_session"
        assert running.raw().open()["epoch"] == 2


def test_a_service_that_stops_leaves_them_as_they_were(tmp_path: Path) -> None:
    with service(tmp_path, snapshots=tmp_path / "kept") as running:
        raw = running.raw()
        raw.open()
        raw.acted(0)
        store = kept_in(running)
    found = store.read_standing("r1")
    assert found is not None and (found.breakers, found.engaged) == ("closed", True)
    assert store.standing_path("r1").stat().st_mode & 0o077 == 0  # it holds the session


def test_a_session_that_cannot_be_restored_leaves_the_file(tmp_path: Path) -> None:
    """What it says is not of the desk that was set up in vain."""
    with service(tmp_path, snapshots=tmp_path / "kept") as running:
        raw = running.raw()
        own = raw.open()
        trip(running, raw)

    class Other(CanarySeat):
        def restore(self, snapshot: Snapshot) -> None:
            raise UsageError("another model's")

    with service(tmp_path, [Other()], snapshots=tmp_path / "kept") as running:
        assert running.raw().open(session=own["session"])["error"]["name"] == "unknown_session"
        assert running.host.registry.keeper.standings is not None
        assert running.host.registry.keeper.standings.settle()
        found = kept_in(running).read_standing("r1")
        assert found is not None and found.breakers == "open"


def test_a_file_that_cannot_be_read_is_a_latch(tmp_path: Path) -> None:
    with service(tmp_path, snapshots=tmp_path / "kept") as running:
        raw = running.raw()
        own = raw.open()
        raw.acted(0)
        store = kept_in(running)
    whole = store.standing_path("r1").read_text()
    for old, new in (
        (whole, ""),
        ('"closed"', '"ajar"'),
        ('"version": 2', '"version": 9'),
        ('"version": 2', '"version": 1'),
        ('"digest"', '"digets"'),
        ("[0.0", "[0.5"),
        ('"closed"', '"open"'),
        ('"epoch": 0', '"epoch": -1'),
        ('"robot": "r1"', '"robot": "r2"'),
        ('"engaged": true', '"engaged": 1'),
        ("[", "[2.0, "),
    ):
        assert old in whole
        store.standing_path("r1").write_text(whole.replace(old, new))
        with pytest.raises(CheckpointError, match="r1"):
            store.read_standing("r1")
    with service(tmp_path, snapshots=tmp_path / "kept") as running:
        raw = running.raw()
        assert raw.open(session=own["session"])["memory"] == "restored"
        assert raw.acted(1).breakers == "latched"


def test_a_file_of_before_there_were_digests_can_be_read() -> None:
    told = json.loads(pack_standing(STOOD))
    assert len(told.pop("digest")) == 32
    assert unpack_standing({**told, "version": 1}) == STOOD
    with pytest.raises(KeyError, match="digest"):
        unpack_standing(told)


def test_a_disk_that_takes_nothing_is_told_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standings, "AGAIN", 0.02)
    with service(tmp_path, snapshots=tmp_path / "kept", snapshot_every=0.0) as running:
        raw = running.raw()
        raw.open()
        raw.acted(0)
        stood(running, "closed")

        def full(*_: object) -> None:
            raise UsageError("No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(SnapshotStore, "_replace", full)
            assert raw.acted(1, state={"canary": None}).breakers == "open"
            until(running.host.registry.keeper.unwritten)
            assert "r1 stand is not on disk: No space left" in running.host.warnings()[0]
        assert stood(running, "open").sequence == 1
        until(lambda: not running.host.registry.keeper.unwritten())


def test_what_a_killed_process_left_half_written_goes(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    with service(tmp_path, snapshots=kept) as running:
        for name in ("r1.safetensors", "r1.breakers.json", "r2.safetensors"):
            (kept / f".{name}.1").write_text("half")
        running.raw().open("r1")
        assert [one.name for one in kept.glob(".r*.1")] == [".r2.safetensors.1"]


def test_the_worse_of_two_files_counts() -> None:
    order = ["closed", "degraded", "half_open", "open", "latched"]
    assert {state.value for state in State} == set(order)
    for (i, a), (j, b), one, other in itertools.product(
        enumerate(order), enumerate(order), (True, False), (True, False)
    ):
        memory = KEPT._replace(breakers=a, engaged=one)
        found = merged(memory, STOOD._replace(breakers=b, engaged=other), False)
        wanted = Trouble(order[max(i, j)], one and other)
        assert found.trouble == (None if wanted == ("closed", True) else wanted)
        assert found.memory is not None
        assert (found.memory.breakers, found.memory.engaged) == wanted
    assert worst([]) is None
    assert merged(None, None, True).trouble == UNKNOWN
    assert merged(KEPT, None, True).memory == KEPT._replace(breakers="latched", engaged=False)


def test_the_later_of_two_files_says_where_a_session_is() -> None:
    assert merged(KEPT, None, False) == (KEPT, None, 3)
    assert merged(None, STOOD, False) == (None, None, 3)
    # The file about the breakers knows of later actions, not what the model made of them.
    assert merged(KEPT, STOOD, False).memory == KEPT._replace(last_action=(0.25, 0.0))
    assert merged(KEPT, STOOD._replace(sequence=69), False).memory == KEPT
    later = merged(KEPT, STOOD._replace(epoch=4), False)
    assert later.epoch == 4
    assert later.memory == KEPT._replace(
        epoch=4, sequence=75, last_action=(0.25, 0.0), snapshot=None
    )
    assert merged(KEPT, STOOD._replace(epoch=4, session=8), False).memory is None
    assert merged(KEPT, STOOD._replace(epoch=2, session=8), False).memory == KEPT


def test_nothing_is_written_while_nothing_changes(tmp_path: Path) -> None:
    with service(tmp_path, snapshots=tmp_path / "kept", snapshot_every=0.0) as running:
        raw = running.raw()
        raw.open()
        for i in range(30):
            raw.acted(i)
        own = running.host.registry.keeper.standings
        assert own is not None and own.settle() and own.written == 1  # the session's beginning


def test_a_robot_is_let_go_when_they_are_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = SnapshotStore.write_standing

    def slow(*arguments: Any) -> None:
        time.sleep(0.3)
        write(*arguments)

    monkeypatch.setattr(SnapshotStore, "write_standing", slow)
    with service(tmp_path, snapshots=tmp_path / "kept", shared=True) as running:
        raw = running.raw()
        raw.open()
        raw.acted(0)
        registry = running.host.registry
        registry.places["r1"].desk.estop(True)
        leaves = registry.leave(registry.places["r1"])
        asyncio.run_coroutine_threadsafe(leaves, running.host.outbox.loop).result(10.0)
        found = kept_in(running).read_standing("r1")
        assert found is not None and found.breakers == "latched"


def test_they_are_not_written_by_a_process_that_has_lost_the_robot(tmp_path: Path) -> None:
    first, second = Leases(tmp_path, "first"), Leases(tmp_path, "second")
    store, audit, lost = SnapshotStore(tmp_path, first), Audit(None), list[Lease]()
    own = standings.Standings(store, lost.append, audit)
    lease = first.take("r1", None)
    assert lease is not None
    own.put(STOOD, lease)
    assert own.settle() and store.read_standing("r1") == STOOD
    assert second.take("r1", second.read("r1")) is not None
    own.put(STOOD._replace(breakers="open"), lease)
    assert own.settle() and lost == [lease] and not own.waiting
    assert store.read_standing("r1") == STOOD
    own.close()
    audit.close()
    first.close()
    second.close()
