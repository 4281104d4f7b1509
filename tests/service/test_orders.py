"""What is done to a robot that another process serves, or none: it is done, or told that it is
not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.service.doubles import OPERATOR, CanarySeat, Running, name, service, until
from tests.service.raw import Raw, state
from tests.service.test_handover import owners, pair
from wmrt.core.errors import UsageError
from wmrt.service import elsewhere
from wmrt.service.handover import Handover
from wmrt.service.leases import Leases, moved
from wmrt.service.orders import Order
from wmrt.service.snapshots import SnapshotStore

BY = {"Authorization": f"Bearer {OPERATOR}"}
PERSON = {"robot": "r1", "operator": "A. Person"}


def post(running: Running, action: str, robot: str = "r1", **more: Any) -> httpx.Response:
    body = {"robot": robot, **({"operator": "A. Person"} if more else {})}
    url = f"{running.tcp}/v1/breakers/{action}"
    return httpx.post(url, json=body, trust_env=False, timeout=30.0, **more)


def look(running: Running, robot: str = "r1") -> httpx.Response:
    url = f"{running.tcp}/v1/breakers?robot={robot}"
    return httpx.get(url, trust_env=False, timeout=30.0)


def handover_of(running: Running) -> Handover:
    found = running.host.registry.handover
    assert found is not None
    return found


def driving(running: Running, **wanted: Any) -> Raw:
    raw = running.raw()
    raw.open(**wanted)
    assert raw.acted(0, state=state(0.5)).source == "policy"
    return raw


def audited(path: Path, event: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line for line in lines if line["event"] == event]


def test_a_stop_reaches_a_robot_whose_connection_another_process_has(tmp_path: Path) -> None:
    """As after a process came back: its robots' requests go to it, their connections stay."""
    with pair(tmp_path, operator_token=OPERATOR) as both:
        a, b = both
        raw = driving(b)
        answer = post(a, "estop")
        told = answer.json()
        assert answer.status_code == 200 and told["owner"] == handover_of(b).leases.owner
        assert told["stop_pressed"] and told["connected"] and owners(both, "r1") == [False, True]
        got = raw.acted(1, state=state(0.5))
        assert (got.source, got.breakers) == ("fallback", "latched")
        shown = look(a).json()["robots"]["r1"]
        assert shown == look(b).json()["robots"]["r1"] and shown["breakers"] == "latched"
        # What starts it again takes the operator's token, and is refused for the same reasons.
        assert name(post(a, "release")) == "forbidden" and name(post(a, "reset")) == "forbidden"
        assert name(post(a, "reset", headers=BY)) == "refused"
        for action in ("release", "reset", "engage"):
            assert post(a, action, headers=BY).status_code == 200, action
        assert not b.host.registry.places["r1"].stop_pressed
        until(lambda: raw.acted(raw_next(raw, b), state=state(0.5)).source == "policy")
        assert post(b, "estop").json().get("owner", "its own") == "its own"
        assert handover_of(a).leases.heard() == []


def raw_next(raw: Raw, running: Running) -> int:
    return running.host.registry.places["r1"].session.sequence + 1


def test_both_processes_note_who_did_it(tmp_path: Path) -> None:
    logs = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    options: dict[str, Any] = {"snapshots": tmp_path / "kept", "shared": True, "tcp": True}
    for one in ("a", "b"):
        (tmp_path / one).mkdir()
    with service(tmp_path / "a", audit=logs[0], label="a", **options) as a:
        with service(tmp_path / "b", audit=logs[1], label="b", **options) as b:
            raw = driving(b)
            assert post(a, "disengage").json()["engaged"] is False
            assert raw.acted(1, state=state(0.5)).source == "fallback"
            asking, owner = (handover_of(one).leases.owner for one in (a, b))
    (asked,) = audited(logs[0], "breakers_disengage_elsewhere")
    (done,) = audited(logs[1], "breakers_disengage")
    assert asked["owner"] == owner and asked["robot"] == done["robot"] == "r1"
    assert done["client"] == f"{asked['client']} by way of {asking}"
    assert "refused" not in asked and "refused" not in done


def test_an_owner_that_hangs_is_named_and_stops_its_robot_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What starts a robot is done at once or never."""
    monkeypatch.setattr(elsewhere, "PATIENCE", 0.5)
    with pair(tmp_path, operator_token=OPERATOR) as both:
        a, b = both
        raw = driving(b)
        orders = handover_of(b).orders
        with monkeypatch.context() as patch:
            patch.setattr(orders, "heed", lambda names: None)
            engaged = post(a, "engage", headers=BY)
            assert (engaged.status_code, name(engaged)) == (503, "unconfirmed")
            until(lambda: handover_of(a).leases.heard() == [])
            answer = post(a, "estop")
            assert (answer.status_code, name(answer)) == (503, "unconfirmed")
            said = answer.json()["error"]["message"]
            assert "estop of robot r1 is NOT known to be done" in said
            assert handover_of(b).leases.owner in said
            assert raw.acted(1, state=state(0.5)).source == "policy"  # which was not claimed
        place = b.host.registry.places["r1"]
        until(lambda: place.stop_pressed)
        assert raw.acted(2, state=state(0.5)).breakers == "latched"
        until(lambda: handover_of(a).leases.heard() == [])  # nobody waits for that answer


@pytest.mark.parametrize("action", ["estop", "disengage"])
def test_a_stop_holds_for_a_robot_whose_process_is_dead(tmp_path: Path, action: str) -> None:
    with pair(tmp_path) as both:
        a, b = both
        raw = driving(b)
        session = raw.opened["session"]
        until(lambda: b.host.registry.places["r1"].kept is not None)
        handover_of(b).leases.close()  # what the system does with a process that is killed
        answer = post(a, action)
        assert answer.status_code == 200 and not answer.json()["engaged"]
        assert not answer.json()["connected"] and "owner" not in answer.json()
        again = a.raw()
        assert again.open(session=session)["memory"] == "restored"
        got = again.acted(9, state=state(0.5))
        assert got.source == "fallback"
        assert (got.breakers == "latched") == (action == "estop")
        assert not a.host.registry.places["r1"].desk.breakers.engaged


@pytest.mark.parametrize("action", ["estop", "disengage"])
@pytest.mark.parametrize("lost", ["nothing", "standing", "memory"])
def test_a_stop_holds_between_a_restart_and_the_robot_s_return(
    tmp_path: Path, action: str, lost: str
) -> None:
    """Also through one more restart."""
    changes: dict[str, Any] = {"snapshots": tmp_path / "kept", "operator_token": OPERATOR}
    with service(tmp_path, **changes) as running:
        session = driving(running).opened["session"]
    store = SnapshotStore(tmp_path / "kept")
    gone = {"standing": store.standing_path("r1"), "memory": store.path("r1")}.get(lost)
    if gone is not None:
        gone.unlink()
    with service(tmp_path, tcp=True, **changes) as running:
        refused = post(running, "engage", headers=BY)
        assert (refused.status_code, name(refused)) == (409, "refused")
        assert name(look(running)) == "unknown_session"
        answer = post(running, action)
        assert answer.status_code == 200 and not answer.json()["engaged"]
        assert running.host.registry.places == {}
    with service(tmp_path, **changes) as running:
        raw = running.raw()
        raw.open(**({} if lost == "memory" else {"session": session}))
        assert raw.opened["memory"] == ("fresh" if lost == "memory" else "restored")
        got = raw.acted(9, state=state(0.5))
        assert got.source == "fallback"
        assert (got.breakers == "latched") == (action == "estop")
        assert not running.host.registry.places["r1"].desk.breakers.engaged


def test_a_stop_that_no_disk_takes_is_told_and_holds_in_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes: dict[str, Any] = {"snapshots": tmp_path / "kept", "tcp": True}
    with service(tmp_path, **changes) as running:
        session = driving(running).opened["session"]
    with service(tmp_path, **changes) as running:

        def full(*_: object) -> None:
            raise UsageError("No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(SnapshotStore, "_replace", full)
            answer = post(running, "estop")
            assert (answer.status_code, name(answer)) == (503, "unconfirmed")
        raw = running.raw()
        assert raw.open(session=session)["memory"] == "restored"
        assert raw.acted(9, state=state(0.5)).breakers == "latched"


def test_a_robot_that_gave_its_place_away_is_stopped_without_a_disk(tmp_path: Path) -> None:
    """It is known to have been disengaged; of one of which nothing is known that is told."""
    seats = [CanarySeat()]
    with service(tmp_path, seats, tcp=True, idle=0.0, hold=0.01) as running:
        raw = driving(running)
        assert post(running, "disengage").status_code == 200
        raw.channel.close()

        def opens(robot: str) -> bool:
            nonlocal raw
            raw = running.raw()
            return bool(raw.open(robot)["kind"] == "opened")

        until(lambda: opens("r2"))
        raw.channel.close()
        assert "r1" in running.host.registry.parted
        told = post(running, "estop").json()
        assert told["breakers"] == "latched" and not told["connected"]
        answer = post(running, "estop", "r3")
        assert (answer.status_code, name(answer)) == (409, "unknown_session")
        assert "estop was NOT done" in answer.json()["error"]["message"]
        assert name(post(running, "estop", "../r1")) == "malformed"
        until(lambda: opens("r1"))
        assert raw.acted(9, state=state(0.5)).breakers == "latched"


def test_nobody_makes_files_of_robots_that_are_not_known(tmp_path: Path) -> None:
    with pair(tmp_path) as both:
        before = sorted((tmp_path / "kept").rglob("*"))
        for action in ("estop", "disengage"):
            answer = post(both[0], action)
            assert (answer.status_code, name(answer)) == (409, "unknown_session")
        assert sorted((tmp_path / "kept").rglob("*")) == before


def test_an_order_follows_a_robot_that_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pair(tmp_path) as both:
        raw = driving(both[1])
        orders = handover_of(both[1]).orders
        whole, asked = orders.obey, list[Order]()
        assert whole is not None

        async def left(order: Order) -> dict[str, Any]:
            asked.append(order)
            if len(asked) < 3:
                raise moved(order.robot)
            return await whole(order)

        monkeypatch.setattr(orders, "obey", left)
        assert post(both[0], "estop").json()["stop_pressed"] and len(asked) == 3
        assert raw.acted(1).breakers == "latched"


def test_a_robot_that_its_owner_has_taken_and_does_not_serve_is_stopped_too(
    tmp_path: Path,
) -> None:
    """It could not be seated, for one, nor let go of."""
    with pair(tmp_path) as both:
        a, b = both
        assert handover_of(b).leases.take("r1", None) is not None
        answer = post(a, "estop")
        assert (answer.status_code, answer.json()["breakers"]) == (200, "latched")
        assert answer.json()["owner"] == handover_of(b).leases.owner
        raw = a.raw()
        raw.open()
        assert raw.acted(0, state=state(0.5)).breakers == "latched"


def test_of_a_dead_process_s_orders_those_that_stop_are_obeyed(tmp_path: Path) -> None:
    with pair(tmp_path) as both:
        leases, place = handover_of(both[1]).leases, None
        raw = driving(both[1])
        place = both[1].host.registry.places["r1"]
        assert post(both[1], "disengage").status_code == 200
        dead = Leases(tmp_path / "kept", "dead")
        dead.close()
        for number, action in (("0", "engage"), ("1", "estop")):
            order = Order(dead.owner, "r1", action, PERSON, "somebody")
            path = leases.words / f"{leases.owner}.{number}.order"
            made = path.with_name(f".{path.name}")
            made.write_text(json.dumps(order._asdict()))
            made.rename(path)
        until(lambda: place.stop_pressed)
        assert not place.desk.breakers.engaged
        assert raw.acted(1).breakers == "latched"
        until(lambda: leases.heard() == [f"{dead.owner}.1.answer"])
        Leases(tmp_path / "kept", "next").close()  # which clears what is for nobody
        assert leases.heard() == []


def test_a_word_that_nobody_can_read_is_left_alone(tmp_path: Path) -> None:
    with pair(tmp_path) as both:
        leases = handover_of(both[1]).leases
        raw = driving(both[1])
        (leases.words / f"{leases.owner}.0.order").write_text("{")
        assert post(both[0], "estop").status_code == 200
        assert raw.acted(1).breakers == "latched"
        assert leases.heard() == [f"{leases.owner}.0.order"]
