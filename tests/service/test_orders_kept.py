"""What a stop that was answered is worth: no process that ends, or has lost its robot, heals it."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.service.doubles import OPERATOR, name, service, until
from tests.service.raw import state
from tests.service.test_handover import blind, owners, pair
from tests.service.test_orders import driving, handover_of, post
from wmrt.core.errors import UsageError
from wmrt.service import keeping, orders
from wmrt.service.leases import Leases
from wmrt.service.orders import Order, Orders
from wmrt.service.snapshots import SnapshotStore


def test_a_stop_reaches_a_robot_that_this_process_has_lost_unawares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a process was stopped for so long that another one took its robot by force."""
    with pair(tmp_path, operator_token=OPERATOR, audit=tmp_path / "audit") as both:
        a, b = both
        blind(a)
        raw = driving(a)
        record = handover_of(b).leases.read("r1")
        assert record is not None
        until(lambda: a.host.registry.places["r1"].kept is not None)
        lease = handover_of(b).leases.take("r1", record)
        assert lease is not None
        handover_of(b).leases.release(lease)
        taken = driving(b, session=f"{a.host.registry.places['r1'].session.id:016x}")
        assert owners(both, "r1") == [True, True]
        answer = post(a, "estop")
        told = answer.json()
        assert answer.status_code == 200 and told["owner"] == handover_of(b).leases.owner
        got = taken.acted(1, state=state(0.5))
        assert (got.source, got.breakers) == ("fallback", "latched")
        until(lambda: owners(both, "r1") == [False, True])
        assert raw.closed() == 4421


@pytest.mark.parametrize("action", ["estop", "disengage"])
@pytest.mark.parametrize("shared", [False, True])
def test_a_stop_is_on_disk_before_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: str, shared: bool
) -> None:
    """A process that is killed right after its answer must not heal it."""
    write = SnapshotStore.write_standing

    def slow(*arguments: Any) -> None:
        time.sleep(0.2)
        write(*arguments)

    with service(tmp_path, tcp=True, snapshots=tmp_path / "kept", shared=shared) as running:
        driving(running)
        monkeypatch.setattr(SnapshotStore, "write_standing", slow)
        assert post(running, action).status_code == 200
        store = running.host.registry.store
        assert store is not None
        found = store.read_standing("r1")
        assert found is not None
        stands = ("latched", True) if action == "estop" else ("closed", False)
        assert (found.breakers, found.engaged) == stands


@pytest.mark.parametrize("action", ["estop", "disengage"])
@pytest.mark.parametrize("hangs", [False, True])
def test_a_stop_that_the_disk_does_not_take_is_not_called_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: str, hangs: bool
) -> None:
    go = threading.Event()

    def full(*_: object) -> None:
        if not hangs or not go.wait(60.0):
            raise UsageError(f"{tmp_path} cannot be written: No space left on device")

    with service(tmp_path, tcp=True, snapshots=tmp_path / "kept") as running:
        raw = driving(running)
        monkeypatch.setattr(keeping, "DISK", 0.3)
        monkeypatch.setattr(SnapshotStore, "write_standing", full)
        answer = post(running, action)
        go.set()
        assert answer.status_code == 503 and name(answer) == "unconfirmed"
        said = answer.json()["error"]["message"]
        assert "NOT known to outlive" in said and str(tmp_path) not in said
        got = raw.acted(1, state=state(0.5))  # here it holds
        assert got.source == "fallback"


def test_an_order_that_nobody_waits_for_is_withdrawn_although_it_is_written_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, wrote = threading.Event(), threading.Event()
    write = orders._write

    def slow(path: Path, data: dict[str, Any]) -> None:
        go.wait(60.0)
        write(path, data)
        wrote.set()

    async def asked(leases: Leases) -> None:
        own = Orders(leases)
        ask = own.ask("owner", Order(leases.owner, "r1", "reset", {}, "c"))
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(ask, 0.1)
        go.set()
        while own._tasks:
            await asyncio.sleep(0.01)

    monkeypatch.setattr(orders, "_write", slow)
    leases = Leases(tmp_path)
    asyncio.run(asked(leases))
    assert wrote.is_set() and leases.heard() == []
