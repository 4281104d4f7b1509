"""Robots' memories on disk: whole or not at all, and what a restart brings back."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.runtime.models import model_of, states
from tests.service.doubles import CanarySeat, QuickSeat, Running, service, until
from tests.service.raw import Raw, state
from wmrt.core.errors import CheckpointError, UsageError
from wmrt.service.memories import Memory, Standing
from wmrt.service.seats import ModelSeat
from wmrt.service.snapshots import SnapshotStore


def memory(seed: int, robot: str = "r1", **changes: Any) -> Memory:
    model = model_of(seed)
    for given in states(model.schema, 5, seed):
        model.step(given)
    kept = Memory(
        robot=robot, session=seed << 20, epoch=3, sequence=70, steps=90, last_action=(0.5, -0.25),
        breakers="half_open", engaged=True, snapshot=model.snapshot(),
    )  # fmt: skip
    return kept._replace(**changes)


def test_a_memory_comes_back_bit_for_bit(tmp_path: Path, seed: int) -> None:
    store, kept = SnapshotStore(tmp_path / "new" / "folder"), memory(seed)
    assert store.read("r1") is None
    store.write(kept)
    found = store.read("r1")
    assert found is not None and found._replace(snapshot=kept.snapshot, channels=None) == kept
    assert found.snapshot.origin == kept.snapshot.origin
    assert found.snapshot.last_action == kept.snapshot.last_action
    assert torch.equal(found.snapshot.generator, kept.snapshot.generator)
    assert found.snapshot.tensors.keys() == kept.snapshot.tensors.keys()
    for name, tensor in kept.snapshot.tensors.items():
        assert torch.equal(found.snapshot.tensors[name], tensor), name
    assert store.path("r1").stat().st_mode & 0o077 == 0  # it holds the session
    assert store.written == 1


def test_a_file_in_which_one_bit_was_altered_is_refused(tmp_path: Path, seed: int) -> None:
    """Any bit, of numbers too, which are others without it and look as good."""
    store = SnapshotStore(tmp_path)
    store.write(memory(seed))
    whole, rng = store.path("r1").read_bytes(), np.random.default_rng(seed)
    numbers = 8 + int.from_bytes(whole[:8], "little")
    for at in (*rng.integers(0, numbers, 60), *rng.integers(numbers, len(whole), 60)):
        data = bytearray(whole)
        data[at] ^= 1 << rng.integers(8)
        store.path("r1").write_bytes(data)
        with pytest.raises(CheckpointError, match=r"r1\.safetensors: "):
            store.read("r1")
    store.path("r1").write_bytes(whole)
    assert store.read("r1") is not None


def test_a_file_of_version_1_says_nothing_of_channels(tmp_path: Path, seed: int) -> None:
    store, kept = SnapshotStore(tmp_path), memory(seed, channels=())
    store.write(kept)
    whole, names = store.path("r1").read_bytes(), ("version", "channels")
    assert store.read("r1").channels == ()  # type: ignore[union-attr]
    for old, new in (
        (rb"\"version\": 3", rb"\"version\": 1"),
        (rb"\"channels\"", rb"\"chanells\""),
        (b'"digest":', b'"tsegid":'),
    ):
        assert whole.count(old) == 1, names
        whole = whole.replace(old, new)
    store.path("r1").write_bytes(whole)
    found = store.read("r1")
    assert found is not None and found.channels is None
    assert found._replace(snapshot=None) == kept._replace(snapshot=None, channels=None)


def test_a_file_that_is_damaged_is_an_error_that_names_it(tmp_path: Path, seed: int) -> None:
    store = SnapshotStore(tmp_path)
    store.write(memory(seed))
    whole = store.path("r1").read_bytes()
    rng = np.random.default_rng(seed)
    for data in (b"", whole[:8], whole[: len(whole) // 2], b"x" * 100, rng.bytes(4096)):
        store.path("r1").write_bytes(data)
        with pytest.raises(CheckpointError, match=r"r1\.safetensors: no snapshot"):
            store.read("r1")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (rb"\"version\": 3", rb"\"version\": 4"),
        (rb"\"version\": 3", rb"\"version\": 2"),
        (rb"\"version\": 3", rb"\"version\": 0"),
        (b'"digest":', b'"digets":'),
        (rb"\"epoch\": 3", rb"\"epoch\":-3"),
        (rb"half_open", rb"wide_open"),
        (rb"[0.5, -0.25]", rb"[1.5, -0.25]"),
        (rb"\"engaged\": true", rb"\"engaged\": null"),
        (rb"\"session\": \"0", rb"\"session\": \"z"),
    ],
)
def test_a_file_that_says_something_else_is_refused(
    tmp_path: Path, seed: int, old: bytes, new: bytes
) -> None:
    store = SnapshotStore(tmp_path)
    store.write(memory(seed))
    whole = store.path("r1").read_bytes()
    assert whole.count(old) == 1
    store.path("r1").write_bytes(whole.replace(old, new))
    with pytest.raises(CheckpointError):
        store.read("r1")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("session", "zz"),
        ("session", 7),
        ("last_action", [10**400]),
        ("breakers", []),
        ("epoch", 1.0),
    ],
)
def test_where_breakers_stand_is_read_or_an_error(tmp_path: Path, field: str, value: Any) -> None:
    """A robot whose file is damaged is latched, not refused for good."""
    store = SnapshotStore(tmp_path)
    store.write_standing(Standing("r1", 7, 3, 75, (0.25, 0.0), "closed", True))
    told = json.loads(store.standing_path("r1").read_text())
    del told["digest"]  # as files of version 1 are, which hold none
    store.standing_path("r1").write_text(json.dumps({**told, "version": 1, field: value}))
    with pytest.raises(CheckpointError, match=r"r1\.breakers\.json: not where"):
        store.read_standing("r1")


def test_another_robot_s_file_is_refused(tmp_path: Path, seed: int) -> None:
    store = SnapshotStore(tmp_path)
    store.write(memory(seed, robot="r2"))
    os.rename(store.path("r2"), store.path("r1"))
    with pytest.raises(CheckpointError, match="a snapshot of robot 'r2'"):
        store.read("r1")


def test_a_disk_that_is_full_leaves_the_last_one(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, kept = SnapshotStore(tmp_path), memory(seed)
    store.write(kept)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UsageError, match="No space left"):
        store.write(kept._replace(sequence=71))
    monkeypatch.undo()
    found = store.read("r1")
    assert found is not None and found.sequence == 70 and store.failed == 1
    assert [path.name for path in tmp_path.iterdir()] == ["r1.safetensors"]


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        SnapshotStore(tmp_path / "file")


def test_a_restarted_service_goes_on_where_it_stopped(tmp_path: Path, seed: int) -> None:
    """The actions after a restart are those of a model that never stopped, bit for bit."""
    given = states(model_of(seed).schema, 12, seed)
    for one in given:
        one["speed"] = one["speed"] or 1.0
    seats = [QuickSeat(model_of(seed))]
    options: dict[str, Any] = {"snapshots": tmp_path / "kept", "period": 0.1, "clock": "step"}
    with service(tmp_path, seats, **options) as running:
        raw = running.raw()
        own = raw.open()
        whole = [raw.acted(i, state=one).action for i, one in enumerate(given)]
    with service(tmp_path, [QuickSeat(model_of(seed))], **options) as running:
        raw = running.raw()
        raw.open()
        first = [raw.acted(i, state=one).action for i, one in enumerate(given[:6])]
        own = raw.opened
    with service(tmp_path, [QuickSeat(model_of(seed))], **options) as running:
        raw = running.raw()
        opened = raw.open(session=own["session"])
        assert opened["memory"] == "restored" and opened["resumed"] and opened["sequence"] == 5
        assert opened["epoch"] == own["epoch"]
        assert raw.refused(5, state=given[5]) == "duplicate"
        rest = [raw.acted(6 + i, state=one).action for i, one in enumerate(given[6:])]
    assert whole == first + rest


def test_memories_are_kept_while_it_runs(tmp_path: Path) -> None:
    with service(tmp_path, snapshots=tmp_path / "kept", snapshot_every=0.05) as running:
        raw = running.raw()
        raw.open()
        raw.acted(7)
        store = running.host.registry.store
        assert store is not None
        until(lambda: store.path("r1").exists())
        until(lambda: (kept := store.read("r1")) is not None and kept.sequence == 7)
        written = store.written
        until(lambda: raw.acted(8).sequence == 8 and True)
        until(lambda: store.written > written)
    assert store.read("r1").sequence == 8  # type: ignore[union-attr]


def test_a_restart_heals_no_latch(tmp_path: Path) -> None:
    kept = {"snapshots": tmp_path / "kept"}
    with service(tmp_path, **kept) as running:
        raw = running.raw()
        own = raw.open()
        raw.acted(0)
        running.host.registry.places["r1"].desk.controller.estop()
        assert raw.acted(1).breakers == "latched"
    for session in (own["session"], None):  # neither for the old client nor for a new one
        with service(tmp_path, **kept) as running:
            raw = running.raw()
            raw.open(**({} if session is None else {"session": session}))
            assert any("latched" in reason for reason in running.host.reasons())
            assert raw.acted(5, state=state(0.5)).source == "fallback"


def test_a_latch_is_on_disk_before_anything_can_be_killed(tmp_path: Path) -> None:
    """Snapshots are written when it stops only, and it does not get to that."""
    with service(tmp_path, snapshots=tmp_path / "kept", snapshot_every=0.0) as running:
        raw = running.raw()
        raw.open()
        raw.acted(0)
        store = running.host.registry.store
        assert store is not None and not store.path("r1").exists()
        running.host.registry.places["r1"].desk.controller.estop()
        assert raw.acted(1).breakers == "latched"
        until(lambda: store.path("r1").exists())
        found = store.read("r1")
        assert found is not None and found.breakers == "latched"
        until(lambda: store.written == 1)  # counted after the file is there
        assert raw.acted(2).breakers == "latched"  # once is enough
        assert store.written == 1


def gave_away(running: Running, first: Raw) -> Raw:
    """``first`` goes, r2 gets its place and goes, and r1 has it again."""
    first.channel.close()
    opened_in_time(running, "r2").channel.close()
    return opened_in_time(running, "r1")


@pytest.mark.parametrize("how", ["latched", "stopped", "open", "disengaged", "closed"])
def test_who_gives_its_place_away_is_not_healed_without_snapshots(tmp_path: Path, how: str) -> None:
    with service(tmp_path, [CanarySeat()], idle=0.1, hold=0.1) as running:
        raw = running.raw()
        raw.open("r1")
        raw.acted(0)
        desk = running.host.registry.places["r1"].desk
        if how == "open":
            assert raw.acted(1, state={"canary": None}).breakers == "open"
        elif how == "disengaged":
            desk.controller.disengage()
        elif how != "closed":
            desk.estop(True)
            if how == "latched":  # else no action shows it yet
                assert raw.acted(1).breakers == "latched"
            desk.estop(False)
        raw = gave_away(running, raw)
        answer = raw.acted(0, state=state(0.5))
        assert answer.source == ("policy" if how == "closed" else "fallback")
        latched = how in ("latched", "stopped")
        assert (answer.breakers == "latched") is latched
        assert not running.host.registry.parted
        engaged = running.host.registry.places["r1"].desk.breakers.engaged
        assert engaged is (how in ("open", "closed"))


def test_a_robot_in_trouble_keeps_its_place_where_nobody_would_remember(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wmrt.service.registry.PARTED", 0)
    with service(tmp_path, [CanarySeat()], idle=0.0, hold=0.01) as running:
        raw = running.raw()
        raw.open("r1")
        raw.acted(0, state={"canary": None})
        raw.channel.close()
        until(lambda: running.host.registry.places["r1"].session.holder is None)
        time.sleep(0.05)
        assert running.raw().open("r2")["error"]["name"] == "too_many_robots"
        raw = opened_in_time(running, "r1")
        for i in range(30):  # good ones end it
            raw.acted(i)
        raw.channel.close()
        opened_in_time(running, "r2")


@pytest.mark.parametrize("broken", ["open", "disengaged"])
def test_a_restart_closes_no_breaker(tmp_path: Path, broken: str) -> None:
    kept = {"snapshots": tmp_path / "kept"}
    with service(tmp_path, **kept) as running:
        raw = running.raw()
        own = raw.open()
        raw.acted(0)
        if broken == "open":
            assert raw.acted(1, state={"canary": None}).breakers == "open"
        else:
            running.host.registry.places["r1"].desk.controller.disengage()
            raw.acted(1)
    with service(tmp_path, **kept) as running:
        raw = running.raw()
        raw.open(session=own["session"])
        answer = raw.acted(2, state=state(0.5))
        assert answer.source == "fallback"
        assert running.host.registry.places["r1"].desk.breakers.engaged is (broken == "open")


def test_a_snapshot_that_is_lost_or_damaged_is_told(tmp_path: Path) -> None:
    kept = {"snapshots": tmp_path / "kept"}
    with service(tmp_path, **kept) as running:
        raw = running.raw()
        own = raw.open()
        raw.acted(0)
    file = tmp_path / "kept/r1.safetensors"
    file.write_bytes(file.read_bytes()[:-5])
    with service(tmp_path, **kept) as running:
        raw = running.raw()
        assert raw.open(session=own["session"])["error"]["name"] == "unknown_session"
        raw = running.raw()
        assert raw.open()["memory"] == "fresh"
        # What it said of the breakers is not known, so somebody has to look.
        assert raw.acted(0).breakers == "latched"
    file.unlink()
    with service(tmp_path, **kept) as running:
        assert running.raw().open(session=own["session"])["error"]["name"] == "unknown_session"
        assert running.raw().open()["kind"] == "opened"


def test_another_model_s_snapshot_is_not_gone_on_with(tmp_path: Path, seed: int) -> None:
    kept = {"snapshots": tmp_path / "kept"}
    with service(tmp_path, [ModelSeat(model_of(seed))], **kept) as running:
        raw = running.raw()
        own = raw.open()
        raw.acted(0, state={"speed": 3.0})
    with service(tmp_path, [ModelSeat(model_of(seed + 1))], **kept) as running:
        assert running.raw().open(session=own["session"])["error"]["name"] == "unknown_session"


def test_a_robot_without_a_client_gives_its_place_away(tmp_path: Path) -> None:
    options: dict[str, Any] = {"snapshots": tmp_path / "kept", "idle": 0.2, "hold": 0.1}
    with service(tmp_path, [CanarySeat()], **options) as running:
        raw = running.raw()
        own = raw.open("r1")
        raw.acted(0)
        assert running.raw().open("r2")["error"]["name"] == "too_many_robots"
        raw.channel.close()
        second = opened_in_time(running, "r2")
        assert set(running.host.registry.places) == {"r2"}
        second.channel.close()
        # When the place is free again, the first one goes on where it was.
        assert opened_in_time(running, "r1", session=own["session"]).opened["memory"] == "restored"


def opened_in_time(running: Running, robot: str, **wanted: Any) -> Raw:
    """A connection that holds the robot, as soon as it can be had."""
    tried: list[Raw] = []

    def opens() -> bool:
        tried.append(running.raw())
        return bool(tried[-1].open(robot, **wanted)["kind"] == "opened")

    until(opens)
    return tried[-1]
