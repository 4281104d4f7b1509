"""For how long a process goes by what it has read of a robot's record."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from pathlib import Path

import pytest

from tests.service.doubles import until
from wmrt.service import handover, holding
from wmrt.service.audit import Audit
from wmrt.service.holding import Holds
from wmrt.service.leases import Lease, Leases
from wmrt.service.settings import ServeSettings


def holds_of(leases: Leases) -> tuple[Holds, list[str], Lease]:
    told: list[str] = []
    lease = leases.take("r1", leases.read("r1"))
    assert lease is not None
    return Holds(leases, lambda robot, why: told.append(f"{robot}: {why}")), told, lease


def nothing() -> None:
    pass


def test_who_has_lost_a_robot_is_told_by_a_look(tmp_path: Path) -> None:
    """Its robot's client may have gone to another process, and nobody ever asks this one."""
    leases, other = Leases(tmp_path, "one"), Leases(tmp_path, "two")
    holds, _, lease = holds_of(leases)
    lost: list[int] = []
    hold = holds.add(lease, lambda: lost.append(1))
    holds.look(leases.heard)
    assert hold.fresh() and lost == []
    assert other.take("r1", leases.read("r1")) is not None
    hold.at -= holding.FRESH / 2
    holds.look(leases.heard)
    assert lost == [1]
    holds.drop(lease)
    assert holds.ask(hold) is False and lost == [1]  # it was let go, not lost


def test_a_reading_counts_for_a_while(tmp_path: Path) -> None:
    leases, other = Leases(tmp_path, "one"), Leases(tmp_path, "two")
    holds, told, lease = holds_of(leases)
    hold = holds.add(lease, nothing)
    assert not hold.fresh() and holds.ask(hold) is True and hold.fresh()
    hold.at -= holding.FRESH
    assert not hold.fresh()
    holds.look(leases.heard)
    assert hold.fresh()
    assert other.take("r1", leases.read("r1")) is not None
    assert hold.fresh()  # which is why the other one waits
    holds.look(leases.heard)
    assert hold.fresh()  # so soon it is not read again
    hold.at -= holding.FRESH / 2
    assert hold.fresh()
    holds.look(leases.heard)
    assert not hold.fresh() and holds.ask(hold) is False
    assert told == [] and holding.OVER > holding.FRESH < handover.PATIENCE


def test_what_was_let_go_is_not_gone_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor by a look that had begun before; whoever takes the robot then does not wait."""
    leases = Leases(tmp_path)
    holds, _, lease = holds_of(leases)
    hold, reading, go = holds.add(lease, nothing), threading.Event(), threading.Event()
    whole = leases.holds

    def slow(lease: Lease) -> bool:
        found = whole(lease)
        reading.set()
        go.wait(20.0)
        return found

    monkeypatch.setattr(leases, "holds", slow)
    looking = threading.Thread(target=holds.look, args=(leases.heard,))
    looking.start()
    assert reading.wait(20.0)
    holds.drop(lease)
    leases.holds = whole  # type: ignore[method-assign]
    leases.release(lease)
    go.set()
    looking.join(20.0)
    assert hold.at > 0 and not hold.fresh() and holds.ask(hold) is False


def test_whoever_lets_a_robot_go_answers_for_it_no_more(tmp_path: Path) -> None:
    leases, audit = Leases(tmp_path), Audit(None)
    own = handover.Handover(leases, ServeSettings(socket=tmp_path / "s"), audit)
    lease = leases.take("r1", None)
    assert lease is not None
    hold = own.holds.add(lease, nothing)
    own.holds.look(leases.heard)
    assert hold.fresh()
    asyncio.run(own.release(lease))
    assert not hold.fresh() and own.holds._held == {}
    own.close()
    audit.close()


def test_an_error_is_told_once_and_says_nothing_of_whose_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases = Leases(tmp_path)
    holds, told, lease = holds_of(leases)
    hold = holds.add(lease, nothing)
    holds.look(leases.heard)
    before = hold.at = hold.at - holding.FRESH / 4

    def none(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", none)
        for _ in range(3):
            holds.look(leases.heard)
        assert hold.at == before and hold.fresh() and holds.ask(hold) is None
    assert told == ["r1: [Errno 24] Too many open files"] and holds.failed == 4 and holds.reason
    holds.look(leases.heard)
    assert holds.reason == "" and hold.at > before
    (tmp_path / ".owners/r1.json").unlink()  # a record that is not there is no error
    assert holds.ask(hold) is False and holds.failed == 4


@pytest.mark.parametrize("where", ["holds", "heard"])
def test_nobody_waits_where_a_look_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setattr(holding, "FRESH", 0.2)
    leases = Leases(tmp_path)
    holds, _, lease = holds_of(leases)
    hold, go = holds.add(lease, nothing), threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr(leases, where, lambda *_: go.wait(60.0))
        looking = threading.Thread(target=holds.look, args=(leases.heard,))
        looking.start()
        until(lambda: holds.hangs() > holding.FRESH / 2)
        assert holds.ask(hold) is None
        go.set()
        looking.join(20.0)
    assert holds.hangs() == 0.0 and holds.ask(hold) is True
