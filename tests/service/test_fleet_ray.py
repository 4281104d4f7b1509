"""`wmrt fleet` on Ray Serve itself: replicas killed and replaced under load, nothing open.

``make test-fleet`` installs Ray; without it these tests skip.
"""

from __future__ import annotations

import http.client
import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tools.fleet_check import Fleet, events, faults, fleet
from wmrt.client import connect
from wmrt.core.errors import ServiceError
from wmrt.core.wire import ROBOT_HEADER

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="there is no Ray: make test-fleet"
    ),
]
TOKEN, OPERATOR = "s3cret" * 5, "0perator" * 5
CANARIES = ("--seats", "tests.service.doubles:canary_seats", "--period", "0.01", "--deadline", "5")


def port() -> int:
    return 20_000 + os.getpid() % 20_000


def listening(mark: str) -> dict[str, set[str]]:
    """Addresses and ports, as the kernel writes them, on which processes with ``mark`` in their
    environment listen; by process."""
    sockets = {}
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                sockets[f"socket:[{fields[9]}]"] = fields[1]
    found: dict[str, set[str]] = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() not in (process / "environ").read_bytes():
                continue
            held = {os.readlink(link) for link in (process / "fd").iterdir()}
            name = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:60]
        except OSError:  # it has ended
            continue
        addresses = {sockets[link] for link in held if link in sockets}
        if addresses:
            found.setdefault(name, set()).update(addresses)
    return found


def test_robots_survive_a_kill_a_redeployment_and_a_stop(tmp_path: Path) -> None:
    found = events(tmp_path, port(), replicas=3, robots=12, seconds=8.0)
    assert faults(found, 12) == [], found
    killed = found["kill"]
    assert killed["clients_lost"] >= killed["robots_of_killed"] > 0
    assert len(killed["killed"]) == killed["robots_of_killed"] < 12
    assert killed["clients_resumed"] == killed["clients_lost"]
    # A snapshot a second: what is lost is a second's steps and the time that one takes.
    assert killed["clients_steps_lost"] <= 40 * killed["robots_of_killed"]
    assert found["redeploy"]["clients_resumed"] > 0


@pytest.fixture
def secured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A fleet with tokens, whose processes can be told from all others."""
    mark = f"WMRT_TEST_MARK={os.urandom(8).hex()}"
    monkeypatch.setenv(*mark.split("="))
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "operator").write_text(OPERATOR)
    options = ("--token-file", f"{tmp_path}/token", "--operator-token-file", f"{tmp_path}/operator")
    public = ("--host", "0.0.0.0", "--open", "--audit", f"{tmp_path}/audit")
    with fleet(tmp_path, port() + 1, "--replicas", "2", *options, *public, *CANARIES) as running:
        yield running, mark


def ask(running: Fleet, method: str, path: str, body: Any = None, **headers: str) -> Any:
    host, number = running.address.removeprefix("ws://").split(":")
    connection = http.client.HTTPConnection(host, int(number), timeout=30.0)
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    content = None if body is None else json.dumps(body)
    connection.request(method, path, content, {"Content-Type": "application/json", **names})
    answer = connection.getresponse()
    told = json.loads(answer.read())
    connection.close()
    return answer.status, told


def test_who_gets_in_and_to_which_replica(secured: Any, tmp_path: Path) -> None:
    running, mark = secured
    # Nothing of Ray is reached from elsewhere, but the proxy where it was told to be.
    loopback = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
    found = listening(mark)
    all_of_them = {address for own in found.values() for address in own}
    public = {address for address in all_of_them if address.split(":")[0] not in loopback}
    assert len(found) > 5 and public == {f"00000000:{port() + 1:04X}"}, found
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    assert ask(running, "GET", "/v1/info")[0] == 401
    status, told = ask(running, "POST", "/v1/reset", {"robot": "r1"}, **bearer)
    assert (status, told["error"]["name"]) == (421, "misrouted")
    routed = {**bearer, ROBOT_HEADER: "r1"}
    status, own = ask(running, "POST", "/v1/reset", {"robot": "r1"}, **routed)
    assert (status, own["memory"]) == (200, "fresh")
    message = {"version": 1, "robot": "r1", "session": own["session"], "epoch": own["epoch"]}
    for sequence in range(3):
        one = {**message, "sequence": sequence, "state": {"canary": 0.25}}
        status, told = ask(running, "POST", "/v1/act", one, **routed)
        assert status == 200 and told["action"][0] == 0.25 and told["step"] == sequence + 1
    forged = {**routed, "X_Forwarded_For": "6.6.6.6"}
    status, told = ask(running, "POST", "/v1/breakers/reset", {"robot": "r1"}, **forged)
    assert (status, told["error"]["name"]) == (403, "forbidden")
    with pytest.raises(ServiceError) as caught:
        connect(running.address, "r2", opening=20.0)
    assert caught.value.name == "unauthorized"
    audited = (tmp_path / "audit").read_text()
    assert "127.0.0.1" in audited and "6.6.6.6" not in audited
    with connect(running.address, "r2", token=TOKEN, opening=20.0, deadline=20.0) as client:
        assert client.act({"canary": -0.5}).action[0] == -0.5
    assert {name for names in running.owners().values() for name in names} == {"r1", "r2"}
