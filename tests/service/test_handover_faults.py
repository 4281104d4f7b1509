"""Robots that change hands while processes die, fight over them, or lose the folder."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.service.doubles import Running, service, until
from tests.service.raw import state
from wmrt.service import handover
from wmrt.service.audit import Audit
from wmrt.service.leases import Lease, Leases
from wmrt.service.refusals import Refusal
from wmrt.service.settings import ServeSettings


def leases_of(running: Running) -> Leases:
    own = running.host.registry.handover
    assert own is not None
    return own.leases


def test_a_process_that_died_while_it_asked_is_given_nothing(tmp_path: Path) -> None:
    """Its word lies there for good: the robot would be sent away whenever it comes."""
    with service(tmp_path, snapshots=tmp_path / "kept", shared=True) as running:
        raw = running.raw()
        raw.open()
        dead = Leases(tmp_path / "kept", "dead")
        dead.claim("r1", int(raw.opened["session"], 16))
        dead.close()
        until(lambda: not leases_of(running).claims())
        assert raw.acted(0).sequence == 0 and "r1" in running.host.registry.places


def test_a_folder_that_fails_ends_no_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose robot it is cannot be told: no action leaves, and the next client is told why."""
    read = os.read

    def stale(descriptor: int, size: int) -> bytes:
        if size == 4096:
            raise OSError(errno.ESTALE, "Stale file handle")
        return read(descriptor, size)

    with service(tmp_path, snapshots=tmp_path / "kept", shared=True) as running:
        raw = running.raw()
        own = raw.open()
        assert raw.acted(0).sequence == 0
        with monkeypatch.context() as patch:
            patch.setattr(os, "read", stale)
            assert raw.refused(1) == "moved"
            until(lambda: "r1" not in running.host.registry.places)

        def gone(*_: object) -> None:
            raise OSError(errno.EIO, "Input/output error")

        with monkeypatch.context() as patch:
            patch.setattr(leases_of(running), "is_alive", gone)
            patch.setattr(leases_of(running), "take", gone)
            assert running.raw().open()["error"]["name"] == "not_ready"
        raw = running.raw()
        assert raw.open(session=own["session"])["memory"] == "restored"
        assert raw.acted(9, state=state(0.5)).sequence == 9


def test_whose_word_was_written_over_asks_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner has answered another process; it would answer this one as well."""
    monkeypatch.setattr(handover, "PATIENCE", 0.5)
    owner, first, second = (Leases(tmp_path, name) for name in ("owner", "first", "second"))
    lease = owner.take("r1", None)
    assert lease is not None
    audit = Audit(None)
    asks = handover.Handover(first, ServeSettings(socket=tmp_path / "s"), audit)
    seen: list[str] = []

    async def both() -> Lease:
        taking = asyncio.create_task(asks.acquire("r1", None))
        while (claim := owner.claimed("r1")) is None or claim.by != first.owner:
            await asyncio.sleep(0.001)
        second.claim("r1", None)  # over it
        claim = owner.claimed("r1")
        assert claim is not None and claim.by == second.owner
        owner.deny("r1", claim, "held")
        second.withdraw("r1")
        while not taking.done():
            claim = owner.claimed("r1")
            if claim is not None and claim.by == first.owner and claim.denied is None:
                seen.append(claim.by)
                owner.deny("r1", claim, "held")
            await asyncio.sleep(0.001)
        return await taking

    with pytest.raises(Refusal, match="another client holds robot r1") as caught:
        asyncio.run(both())
    assert caught.value.name == "held" and seen == [first.owner] and owner.holds(lease)
    audit.close()
    for one in (owner, first, second):
        one.close()


def test_who_has_got_the_robot_meanwhile_is_asked_in_his_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """He is not taken for one that does not answer: the time of another was nearly over."""
    now = [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr(handover, "time", clock)
    owner, first, second = (Leases(tmp_path, name) for name in ("owner", "first", "second"))
    assert owner.take("r1", None) is not None
    audit = Audit(None)
    asks = handover.Handover(first, ServeSettings(socket=tmp_path / "s"), audit)
    word = tmp_path / ".owners/claims/r1.json"

    async def both() -> Any:
        taking = asyncio.create_task(asks.acquire("r1", None))
        while not word.exists():
            await asyncio.sleep(0.001)
        before = word.stat().st_mtime_ns
        now[0] = 0.9 * handover.PATIENCE
        taken = second.take("r1", owner.read("r1"))
        assert taken is not None
        end = time.monotonic() + 20.0
        while word.stat().st_mtime_ns == before:
            assert time.monotonic() < end, "he was not asked"
            await asyncio.sleep(0.001)
        now[0] = 1.8 * handover.PATIENCE
        await asyncio.sleep(0.1)
        claim = second.claimed("r1")
        assert claim is not None and second.holds(taken) and not taking.done()
        second.deny("r1", claim, "held")
        return await taking

    with pytest.raises(Refusal, match="another client holds robot r1"):
        asyncio.run(both())
    audit.close()
    for one in (owner, first, second):
        one.close()
