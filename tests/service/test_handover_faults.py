"""Robots that change hands while processes die, fight over them, or lose the folder."""

from __future__ import annotations

import asyncio
import errno
import itertools
import json
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.service.doubles import Running, service, until
from tests.service.raw import state
from wmrt.core.wire import Acted
from wmrt.service import handover, holding
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


def test_a_record_that_cannot_be_read_is_nobody_else_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read last counts for a while; then no action leaves, and the robot stays."""
    read, audit = os.read, tmp_path / "audit.jsonl"

    def stale(descriptor: int, size: int) -> bytes:
        if size == 4096:
            raise OSError(errno.ESTALE, "Stale file handle")
        return read(descriptor, size)

    with service(tmp_path, snapshots=tmp_path / "kept", shared=True, audit=audit) as running:
        raw, names = running.raw(), list[str]()
        raw.open()
        assert raw.acted(0).sequence == 0
        sequence, own = 0, running.host.registry.handover
        assert own is not None
        (hold,) = own.holds._held.values()
        until(hold.fresh)
        with monkeypatch.context() as patch:
            patch.setattr(os, "read", stale)
            until(lambda: own.holds.reason)
            end = time.monotonic() + 20.0
            while not names:
                assert time.monotonic() < end, "actions leave that nobody has allowed"
                sequence += 1
                got = raw.ask(sequence)
                names += [] if isinstance(got, Acted) else [got["error"]["name"]]
            assert names == ["not_ready"] and not hold.fresh() and sequence > 1
            assert "Stale file handle" in str(running.host.warnings())
            assert running.host.dying() == [] and own.holds.failed > 5
            assert not asyncio.run_coroutine_threadsafe(  # a snapshot is not written either
                running.host.registry.keep(running.host.registry.places["r1"]),
                running.host.outbox.loop,
            ).result(20.0)
        assert raw.acted(sequence + 1).sequence == sequence + 1  # over the same connection
        until(lambda: "Stale" not in str([w for w in running.host.warnings() if "whose" in w]))
    told = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [line["robot"] for line in told if line["event"] == "lease_unreadable"] == ["r1"]
    assert not any(line["event"] == "lost_robot" for line in told)


def test_a_folder_that_hangs_holds_up_no_robot_s_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every replica would be started again, for a file server that does not answer."""
    go, opens = threading.Event(), os.open
    monkeypatch.setattr(holding, "FRESH", 2.0)

    def hangs(path: Any, *arguments: Any, **options: Any) -> int:
        if str(path).endswith(".owners/r1.json"):
            go.wait(60.0)
        return opens(path, *arguments, **options)

    with service(
        tmp_path, snapshots=tmp_path / "kept", shared=True, deadline=1.0, stuck_after=1.0
    ) as running:
        raw, names, waits = running.raw(), list[str](), list[float]()
        raw.open()
        own = running.host.registry.handover
        assert own is not None
        (hold,) = own.holds._held.values()
        until(hold.fresh)
        try:
            with monkeypatch.context() as patch:
                patch.setattr(os, "open", hangs)
                while names.count("not_ready") < 20:
                    began = time.monotonic()
                    got = raw.ask(len(names))
                    waits.append(time.monotonic() - began)
                    names.append("acted" if isinstance(got, Acted) else got["error"]["name"])
                    time.sleep(0.01)
                assert "has not answered for" in str(running.host.warnings())
                assert running.host.dying() == []
        finally:
            go.set()
        acted = names.count("acted")
        assert acted > 1 and names == ["acted"] * acted + ["not_ready"] * (len(names) - acted)
        assert max(waits) < 20.0  # who waited for the folder would still wait
        until(hold.fresh)
        assert raw.acted(len(names)).sequence == len(names)


def test_a_folder_that_fails_is_told_to_the_next_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with service(tmp_path, snapshots=tmp_path / "kept", shared=True) as running:
        with monkeypatch.context() as patch:
            patch.setattr(leases_of(running), "is_alive", gone)
            patch.setattr(leases_of(running), "take", gone)
            assert running.raw().open()["error"]["name"] == "not_ready"
        raw = running.raw()
        assert raw.open()["kind"] == "opened"
        assert raw.acted(9, state=state(0.5)).sequence == 9


def test_a_robot_s_damaged_record_is_named_where_somebody_can_mend_it(tmp_path: Path) -> None:
    """It does not pass by itself."""
    kept, audit = tmp_path / "kept", tmp_path / "audit.jsonl"
    with service(tmp_path, snapshots=kept, shared=True, audit=audit) as running:
        record = kept / ".owners" / "r1.json"
        record.write_text('{"token": 1,')
        told = running.raw().open()["error"]
        assert told["name"] == "not_ready" and "log says what to do" in told["message"]
        assert str(kept) not in told["message"]
        record.unlink()
        assert running.raw().open()["kind"] == "opened"
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    (reason,) = [line["reason"] for line in lines if line["event"] == "lease_failed"]
    assert reason.startswith(f"{record}: ") and "remove this file once no process" in reason


def test_a_robot_taken_by_force_steps_after_its_owner_s_last_look_has_run_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An owner whose looks hang answers for as long as its last one counts, and no longer."""
    monkeypatch.setattr(handover, "PATIENCE", 0.2)
    options: dict[str, Any] = {"snapshots": tmp_path / "kept", "shared": True}
    for one in ("a", "b"):
        (tmp_path / one).mkdir()
    with service(tmp_path / "a", label="a", **options) as a:
        with service(tmp_path / "b", label="b", **options) as b:
            stale, after = a.raw(), list[float]()
            session = stale.open()["session"]
            stale.acted(0)
            own = a.host.registry.handover
            assert own is not None
            go = threading.Event()
            (hold,) = own.holds._held.values()
            until(hold.fresh)
            monkeypatch.setattr(own, "_look", lambda: go.wait(60.0) and [])
            hold.at = time.monotonic()  # the last that it has read
            raw, taken = b.raw(), list[float]()

            def takes() -> None:
                raw.open(session=session)
                taken.append(time.monotonic())

            taking = threading.Thread(target=takes)
            taking.start()
            for sequence in itertools.count(1):
                got = stale.ask(sequence)
                if not isinstance(got, Acted):
                    break
                after.append(time.monotonic())
                time.sleep(0.005)
            taking.join(20.0)
            go.set()
            assert got["error"]["name"] == "moved" and raw.opened["memory"] == "restored"
            record = b.host.registry.places["r1"].lease
            assert record is not None and record.token == 2 and len(after) > 1
            assert after[-1] < taken[0], "two processes answered at once"


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
