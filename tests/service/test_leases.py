"""Who serves a robot: one at a time, and whoever has lost it finds out."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.service.doubles import until
from tests.service.test_snapshots import memory
from wmrt.core.errors import CheckpointError, UsageError
from wmrt.service import leases
from wmrt.service.folder_lock import FolderLock
from wmrt.service.leases import Lease, Leases, Owned
from wmrt.service.refusals import Refusal
from wmrt.service.snapshots import SnapshotStore


@pytest.fixture
def two(tmp_path: Path) -> tuple[Leases, Leases]:
    return Leases(tmp_path, "one"), Leases(tmp_path, "two")


def test_a_token_grows_whenever_a_robot_changes_hands(two: tuple[Leases, Leases]) -> None:
    first, second = two
    assert first.read("r1") is None
    lease = first.take("r1", None)
    assert lease == Lease("r1", 1) and first.holds(lease) and not second.holds(lease)
    assert first.read("r1") == Owned(1, first.owner, True)
    first.release(lease)
    assert not first.holds(lease) and second.read("r1") == Owned(1, first.owner, False)
    taken = second.take("r1", second.read("r1"))
    assert taken == Lease("r1", 2) and second.holds(taken)
    again = first.take("r1", first.read("r1"))
    assert again == Lease("r1", 3) and not second.holds(taken)
    first.release(lease)  # an old lease lets nobody's robot go
    assert first.holds(again) and first.robots() == ["r1"]


def test_of_takers_that_saw_the_same_record_one_gets_the_robot(tmp_path: Path, seed: int) -> None:
    """Threads stand for processes here: a lock is that of its descriptor."""
    rng = np.random.default_rng(seed)
    takers = [Leases(tmp_path, f"taker-{i}") for i in range(int(rng.integers(3, 7)))]
    for _ in range(20):
        found = takers[0].read("r1")
        start, got = threading.Barrier(len(takers)), []

        def take(own: Leases) -> None:
            start.wait(10.0)  # noqa: B023
            got.append(own.take("r1", found))  # noqa: B023

        threads = [threading.Thread(target=take, args=(own,)) for own in takers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20.0)
        won = [lease for lease in got if lease is not None]
        assert len(got) == len(takers) and len(won) == 1
        assert won[0].token == (0 if found is None else found.token) + 1


def test_a_stale_owner_writes_no_snapshot(two: tuple[Leases, Leases], seed: int) -> None:
    first, second = two
    folder = first.folder.parent
    old, new = SnapshotStore(folder, first), SnapshotStore(folder, second)
    lease = first.take("r1", None)
    assert lease is not None
    old.write(memory(seed), lease)
    taken = second.take("r1", first.read("r1"))
    assert taken is not None
    new.write(memory(seed, sequence=80), taken)
    with pytest.raises(Refusal, match="another process serves robot r1") as caught:
        old.write(memory(seed, sequence=75), lease)
    assert caught.value.name == "moved" and caught.value.status == 421
    found = new.read("r1")
    assert found is not None and found.sequence == 80


def test_a_robot_does_not_change_hands_while_its_snapshot_is_written(
    two: tuple[Leases, Leases],
) -> None:
    first, second = two
    lease, order = first.take("r1", None), []
    assert lease is not None
    found = first.read("r1")

    def take() -> None:
        assert second.take("r1", found) is not None
        order.append("taken")

    with first.fenced(lease):
        thread = threading.Thread(target=take)
        thread.start()
        thread.join(0.1)
        order.append("written")
    thread.join(10.0)
    assert order == ["written", "taken"]


def test_a_lock_that_is_never_freed_is_told(
    two: tuple[Leases, Leases], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "LOCK_SECONDS", 0.05)
    first, second = two
    lease = first.take("r1", None)
    assert lease is not None
    with first.fenced(lease), pytest.raises(UsageError, match=r"r1\.lock has been locked"):
        second.take("r1", first.read("r1"))


def test_a_process_is_known_to_be_dead_however_it_died(tmp_path: Path) -> None:
    own = Leases(tmp_path)
    assert own.is_alive(own.owner) and not own.is_alive("nobody")
    code = (
        "import sys, time; from pathlib import Path; from wmrt.service.leases import Leases\n"
        f"own = Leases(Path({str(tmp_path)!r}), 'child'); own.take('r1', None)\n"
        "print(own.owner, flush=True); time.sleep(60)"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    with child, child.stdout:
        owner = child.stdout.readline().strip()
        assert owner.startswith("child-") and own.is_alive(owner)
        assert own.read("r1") == Owned(1, owner, True)
        os.kill(child.pid, signal.SIGKILL)
        child.wait(10.0)
    until(lambda: not own.is_alive(owner))
    assert (own.folder / f"{owner}.alive").exists()
    Leases(tmp_path).close()  # the next one clears what is left
    assert not (own.folder / f"{owner}.alive").exists() and own.is_alive(own.owner)
    own.close()
    assert not own.is_alive(own.owner)


def test_a_damaged_record_is_no_lease(two: tuple[Leases, Leases]) -> None:
    first, _ = two
    lease = first.take("r1", None)
    assert lease is not None
    for text in ("", "[]", '{"token": "1", "owner": "x", "held": true}'):
        (first.folder / "r1.json").write_text(text)
        with pytest.raises(CheckpointError, match=r"r1\.json"):
            first.read("r1")
        assert not first.holds(lease)


def test_a_claim_says_who_wants_a_robot_and_what_came_of_it(two: tuple[Leases, Leases]) -> None:
    first, second = two
    assert first.claims() == [] and first.claimed("r1") is None
    second.claim("r1", 77)
    claim = first.claimed("r1")
    assert first.claims() == ["r1"] and claim is not None
    assert claim == (second.owner, 77, None)
    first.withdraw("r1")  # another's
    assert first.claims() == ["r1"]
    first.deny("r1", claim, "held")
    assert second.claimed("r1") == (second.owner, 77, "held")
    second.withdraw("r1")
    assert first.claims() == []


def test_a_folder_is_one_service_s_or_those_that_share_it(tmp_path: Path) -> None:
    alone = FolderLock(tmp_path / "kept", shared=False)
    for shared in (False, True):
        with pytest.raises(UsageError, match=r"another service uses this folder.*--shared"):
            FolderLock(tmp_path / "kept", shared)
    alone.close()
    both = [FolderLock(tmp_path / "kept", shared=True) for _ in range(2)]
    with pytest.raises(UsageError, match="another service"):
        FolderLock(tmp_path / "kept", shared=False)
    for lock in both:
        lock.close()
    FolderLock(tmp_path / "kept", shared=False).close()


_CONTENDER = """
import os, random, sys, time
from pathlib import Path
from wmrt.service import leases
from wmrt.service.leases import Leases
from wmrt.service.refusals import Refusal

leases.LOCK_SECONDS = 60.0  # on a busy machine whoever has it may not run for seconds
folder, seed, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
rng, own, refused, rounds = random.Random(seed), Leases(folder, "contender"), 0, 0
(folder / f"ready-{seed}").touch()
while len(list(folder.glob("ready-*"))) < count:
    time.sleep(0.001)
end = time.monotonic() + 2.0
while time.monotonic() < end or rounds < 30:
    rounds += 1
    lease = own.take("r1", own.read("r1"))  # by force, as from an owner that does not answer
    if lease is None:
        continue
    for _ in range(rng.randrange(1, 6)):
        try:
            with own.fenced(lease):
                with open(folder / "log", "a") as log:
                    log.write(f"{lease.token} ")
                    log.flush()
                    os.sched_yield()
                    log.write(f"{lease.token} {own.owner}\\n")
        except Refusal:
            refused += 1
            assert not own.holds(lease)
print(refused)
"""


def test_processes_that_fight_for_a_robot_write_one_after_the_other(
    tmp_path: Path, seed: int
) -> None:
    """What lies on disk is in the order of the tokens, each of one owner, whoever is how slow."""
    command = [sys.executable, "-c", _CONTENDER, str(tmp_path)]
    refused = 0
    with contextlib.ExitStack() as stack:  # pipes of processes that failed would fail other tests
        started = [
            stack.enter_context(
                subprocess.Popen([*command, str(seed + i), "3"], stdout=subprocess.PIPE, text=True)
            )
            for i in range(3)
        ]
        for process in started:
            said, _ = process.communicate(timeout=120.0)
            assert process.returncode == 0
            refused += int(said)
    lines = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    assert all(len(line) == 3 and line[0] == line[1] for line in lines)
    tokens = [int(line[0]) for line in lines]
    assert tokens == sorted(tokens) and len(set(tokens)) > 3
    owners: dict[str, set[str]] = {}
    for token, _, owner in lines:
        owners.setdefault(token, set()).add(owner)
    assert all(len(names) == 1 for names in owners.values())
    assert refused > 0, "nobody lost the robot while it wrote: this run shows nothing"


def test_who_is_just_beginning_is_not_taken_for_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process looks for the dead between the making of its file and the lock on it."""
    lock, others = fcntl.flock, []

    def slow(descriptor: int, kind: int) -> None:
        if kind == fcntl.LOCK_EX and not others:
            others.append(None)
            others.append(Leases(tmp_path, "other"))
        lock(descriptor, kind)

    monkeypatch.setattr(fcntl, "flock", slow)
    first = Leases(tmp_path, "first")
    assert len(others) == 2 and first.is_alive(first.owner)
    others[1].close()
    first.close()


def test_a_record_is_on_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut there would be an empty one, which is no record, and no process takes."""
    own, flushed, fsync = Leases(tmp_path), list[int](), os.fsync

    def noting(descriptor: int) -> None:
        flushed.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noting)
    lease = own.take("r1", None)
    assert lease is not None
    record = tmp_path / ".owners/r1.json"
    taken = record.stat().st_ino
    own.release(lease)
    assert flushed == [taken, record.stat().st_ino]
    own.close()
