"""A fleet without Ray: settings, replicas, what is told. With Ray: test_fleet_ray.py."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn

from tests.deploy.proxy import free_port
from tests.service.doubles import CanarySeat
from wmrt.cli.main import main
from wmrt.core.errors import MissingExtraError, UsageError
from wmrt.core.wire import ROBOT_HEADER, Observed
from wmrt.service import fleet, fleet_ray
from wmrt.service.fleet_status import where
from wmrt.service.leases import Leases
from wmrt.service.messages import opened_json

SEATS = "tests.service.doubles:canary_seats"
TOKEN = "s3cret" * 5


def values(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    return {"snapshots": tmp_path / "kept", "period": 0.01, "deadline": 10.0, **changes}


@pytest.fixture
def environment() -> Iterator[None]:
    """What a test sets in the environment goes with it."""
    before = dict(os.environ)
    for name in [name for name in before if name.startswith(("RAY_", "WMRT_SERVE_", "FORWARDED_"))]:
        del os.environ[name]
    yield
    os.environ.clear()
    os.environ.update(before)


def test_replicas_share_a_folder_and_are_found_by_the_robot_s_name(tmp_path: Path) -> None:
    own, rest = fleet.read_fleet({"replicas": 3, "robots": None, **values(tmp_path)})
    settings = fleet.replica_settings(rest, "replica-7")
    assert (own.replicas, own.seats, settings.robots) == (3, None, 16)
    assert (settings.shared, settings.route_by, settings.label) == (True, ROBOT_HEADER, "replica-7")
    # Several processes on one processor would wait for each other.
    assert (settings.cpu, settings.snapshot_every, settings.idle) == (-1, 1.0, 30.0)
    assert fleet.replica_settings({**rest, "cpu": 0, "idle": 5.0}).idle == 5.0


def test_what_the_environment_says_is_not_overridden(tmp_path: Path, environment: None) -> None:
    os.environ["WMRT_SERVE_ROBOTS"] = "3"
    assert fleet.replica_settings(values(tmp_path)).robots == 3
    assert fleet.replica_settings(values(tmp_path, robots=2)).robots == 2
    os.environ["WMRT_SERVE_SNAPSHOTS"] = str(tmp_path / "other")
    assert fleet.replica_settings({}).snapshots == tmp_path / "other"
    os.environ["WMRT_SERVE_SOCKET"] = "/run/x"
    with pytest.raises(UsageError, match="WMRT_SERVE_SOCKET"):
        fleet.replica_settings(values(tmp_path))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"replicas": 0}, "replicas: .*greater than or equal to 1.*0"),
        ({"socket": "/run/x"}, "socket is a setting of one process"),
        ({"shared": True}, "shared is a setting of one process"),
        ({"robots": 17}, "robots: .*16"),
        ({"snapshots": None}, "snapshots: a fleet's robots go .* through a folder"),
        ({"host": "0.0.0.0"}, "pass --open"),
        ({"host": "0.0.0.0", "open": True}, "needs a token"),
    ],
)
def test_a_fleet_that_cannot_be_meant_is_one_line(
    tmp_path: Path, given: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        fleet.replica_settings(fleet.read_fleet({**values(tmp_path), **given})[1])
    assert "\n" not in str(caught.value)


def test_a_token_is_no_argument_and_a_replica_without_one_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray keeps arguments where others can read them; and an environment may get lost."""
    needs = fleet.Fleet(seats=SEATS, token=True)
    with pytest.raises(UsageError, match="WMRT_SERVE_TOKEN is not in a replica's environment"):
        fleet.Replica(needs, values(tmp_path), "one")
    monkeypatch.setenv("WMRT_SERVE_TOKEN", TOKEN)
    made = fleet.Replica(needs, values(tmp_path), "one")
    assert made.host.settings.token is not None
    asyncio.run(made.stop())
    monkeypatch.setitem(sys.modules, "ray.serve", sys)  # not looked at before that is refused
    with pytest.raises(UsageError, match="set WMRT_SERVE_TOKEN instead") as caught:
        fleet.application({**values(tmp_path), "token": TOKEN})
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize("name", ["nowhere:seats", "tests.service.doubles:none", "x", ""])
def test_seats_that_are_not_there_are_told(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"module:function"):
        fleet.load_seats(name, fleet.replica_settings(values(tmp_path)))


def test_a_replica_that_stops_puts_its_robots_away_and_another_goes_on(tmp_path: Path) -> None:
    """What Serve does to a replica that it replaces."""

    async def life() -> None:
        first, second = (
            fleet.Replica(fleet.Fleet(seats=SEATS), values(tmp_path), name) for name in "ab"
        )
        await asyncio.gather(first.host.start(), second.host.start())
        await first.check_health()
        opened = await first.host.open("r1", None, None, None)
        own = opened.session.id
        seen = Observed("r1", own, 0, 0, {"canary": 0.5})
        assert (await first.host.act(seen)).action[0] == 0.5
        assert [(row["state"], row["token"]) for row in where(tmp_path / "kept")] == [("served", 1)]
        await first.stop()
        await first.stop()  # as Serve ends the application afterwards
        assert [row["state"] for row in where(tmp_path / "kept")] == ["free"]
        found = await second.host.resume(seen._replace(sequence=1))
        assert found is not None and found.memory == "restored" and found.steps_lost == 0
        assert opened_json(second.host, found)["steps_lost"] == 0
        answer = await second.host.act(seen._replace(sequence=1))
        assert round(answer.action[1] * 1e4) == 2
        row = where(tmp_path / "kept")[0]
        assert row["owner"].startswith("b-") and row["token"] == 2 and row["sequence"] == 0
        await second.stop()

    asyncio.run(life())


def test_a_replica_s_audit_log_is_had_before_the_work_and_written_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    monkeypatch.setattr(fleet, "load_seats", lambda *_: made.append(CanarySeat()) or made)
    wrong = values(tmp_path) | {"audit": str(tmp_path / "no" / "folder")}
    with pytest.raises(UsageError, match=r"audit: .*cannot be written"):
        fleet.Replica(fleet.Fleet(seats=SEATS), wrong, "one")
    assert not made
    path = tmp_path / "audit.jsonl"
    replica = fleet.Replica(
        fleet.Fleet(seats=SEATS), values(tmp_path) | {"audit": str(path)}, "one"
    )
    for _ in range(150):
        replica.host.audit.note("unauthorized")
    asyncio.run(replica.stop())
    last = json.loads(path.read_text().splitlines()[-1])
    assert (last["event"], last["of"]) == ("left_out", "unauthorized")


def test_a_replica_whose_model_fails_is_unhealthy(tmp_path: Path) -> None:
    async def life() -> None:
        made = fleet.Replica(fleet.Fleet(seats=SEATS), values(tmp_path), "one")
        made._failed(ValueError("no such kernel"))
        with pytest.raises(RuntimeError, match="cannot be stepped: no such kernel"):
            await made.check_health()
        await made.stop()

    asyncio.run(life())


def test_a_model_is_stepped_before_robots_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seats = [CanarySeat()]
    monkeypatch.setattr(fleet, "load_seats", lambda *_: seats)
    made = fleet.Replica(fleet.Fleet(seats=SEATS), values(tmp_path), "one")
    assert seats[0].asked > 0
    asyncio.run(made.stop())


def test_status_tells_where_each_robot_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "kept"
    with pytest.raises(UsageError, match="no such folder"):
        where(folder)
    living, dead = Leases(folder, "living"), Leases(folder, "dead")
    for robot, leases in (("r1", living), ("r2", dead), ("r3", living)):
        lease = leases.take(robot, None)
        assert lease is not None
        if robot == "r3":
            leases.release(lease)
    dead.close()
    (folder / "r1.safetensors").write_bytes(b"damaged")
    rows = {row["robot"]: row for row in where(folder)}
    assert {name: row["state"] for name, row in rows.items()} == {
        "r1": "served", "r2": "orphaned", "r3": "free"
    }  # fmt: skip
    assert "no snapshot that can be read" in rows["r1"]["fault"] and rows["r2"]["fault"] is None
    monkeypatch.setenv("COLUMNS", "200")  # else a long name is told in two lines
    assert main(["fleet", "--status", "--snapshots", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "orphaned" in shown and living.owner in shown
    assert main(["fleet", "--status", "--snapshots", str(tmp_path / "none")]) == 2


def test_without_ray_the_extra_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    environment: None,
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "ray"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ray", None)  # type: ignore[arg-type]
    with pytest.raises(MissingExtraError, match=r"pip install 'wmrt\[fleet\]'"):
        fleet.application(values(tmp_path))
    monkeypatch.setenv("WMRT_SERVE_PORT", str(free_port()))
    for proxy in ("ray", "haproxy"):
        assert main(["fleet", "--snapshots", str(tmp_path / "kept"), "--proxy", proxy]) == 2
        assert "pip install 'wmrt[fleet]'" in capsys.readouterr().err


def test_ray_reports_to_nobody_and_lets_nobody_in(environment: None) -> None:
    fleet_ray.prepare_environment()
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    assert os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"
    assert os.environ["RAY_SERVE_ENABLE_HA_PROXY"] == "0"
    os.environ["RAY_AUTH_MODE"] = "disabled"
    with pytest.raises(UsageError, match=r"RAY_AUTH_MODE=disabled: .* runs code"):
        fleet_ray.prepare_environment()


@pytest.mark.parametrize("proxy", ["ray", "haproxy"])
def test_only_the_proxy_that_robots_reach_may_be_public(
    monkeypatch: pytest.MonkeyPatch, environment: None, proxy: str
) -> None:
    """With HAProxy, what Ray is given is also where the replicas' own servers listen."""
    started: list[Any] = []
    ray = SimpleNamespace(init=lambda **given: started.append(given))
    serve = SimpleNamespace(start=lambda **given: started.append(given["http_options"]))
    config = SimpleNamespace(HTTPOptions=dict)
    for name, module in (("ray", ray), ("ray.serve", serve), ("ray.serve.config", config)):
        monkeypatch.setitem(sys.modules, name, module)  # type: ignore[arg-type]
    fleet_ray.prepare_environment({} if proxy == "haproxy" else None)
    fleet_ray.Cluster("0.0.0.0", 8420, 2, ("cert", "key"))
    assert started[0]["_node_ip_address"] == "127.0.0.1"
    host, *tls = ("0.0.0.0", "cert", "key") if proxy == "ray" else ("127.0.0.1", None, None)
    names = ("host", "port", "ssl_certfile", "ssl_keyfile")
    assert started[1] == dict(zip(names, (host, 8420, *tls), strict=True))


def test_ray_s_own_proxy_believes_no_client_that_names_another_address(environment: None) -> None:
    async def whence() -> Any:
        found: list[Any] = []

        async def told(scope: Any, *_: Any) -> None:
            found.append(scope["client"][0])

        config = uvicorn.Config(told, lifespan="off", log_config=None)  # else as Ray makes it
        config.load()
        headers = [(b"x-forwarded-for", b"6.6.6.6")]
        scope = {"type": "http", "client": ("127.0.0.1", 7), "headers": headers}
        own: Any = config.loaded_app
        await own(scope, None, None)
        return found[0]

    assert asyncio.run(whence()) == "6.6.6.6"
    fleet_ray.prepare_environment()
    assert asyncio.run(whence()) == "127.0.0.1"
    assert "FORWARDED_ALLOW_IPS" in os.environ
    os.environ["FORWARDED_ALLOW_IPS"] = "127.0.0.1"  # somebody has a proxy of their own
    fleet_ray.prepare_environment()
    assert asyncio.run(whence()) == "6.6.6.6"


def test_status_only_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked by root before the first start, it left a folder that the service could not write."""
    folder = tmp_path / "kept"
    folder.mkdir()
    assert where(folder) == [] and list(folder.iterdir()) == []
    own = Leases(folder, "dead")
    assert own.take("r1", None) is not None
    living = Leases(folder, "living")
    assert living.take("r2", None) is not None
    own._living = os.close(own._living or -1)  # killed: its file is left

    def tree() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}

    before = tree()
    assert [row["state"] for row in where(folder)] == ["orphaned", "served"]
    assert tree() == before

    def denied(path: Path) -> list[str]:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "listdir", denied)  # root may read everything
    with pytest.raises(UsageError, match=r"snapshots .*kept: .*kept: Permission denied"):
        where(folder)
