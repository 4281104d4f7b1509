"""Who may do what over HTTP, and what is refused before it is read."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.service.doubles import (
    OPERATOR,
    TOKEN,
    Running,
    name,
    observation,
    opened,
    service,
)
from wmrt.core.wire import ROBOT_HEADER


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    with service(tmp_path, tcp=True, token=TOKEN, operator_token=OPERATOR) as one:
        yield one


def test_a_request_that_was_sent_here_for_another_robot_is_refused(
    http: httpx.Client, running: Running
) -> None:
    own, other = {ROBOT_HEADER: "r1"}, {ROBOT_HEADER: "r2"}
    data = http.post("/v1/reset", json={"robot": "r1"}, headers=own).json()
    requests: list[dict[str, Any]] = [
        {"url": "/v1/reset", "json": {"robot": "r1"}},
        {"url": "/v1/act", "json": observation(data, 0)},
        {"url": "/v1/breakers/disengage", "json": {"robot": "r1"}},
        {"url": "/v1/breakers?robot=r1", "method": "GET"},
    ]
    for request in requests:
        request = {"method": "POST", **request}
        assert name(http.request(**request, headers=other)) == "misrouted"
        for both in ([*own.items(), *other.items()], [*other.items(), *own.items()]):
            assert name(http.request(**request, headers=both)) == "misrouted", request["url"]
    assert running.seats[0].steps == 0 and running.host.registry.places["r1"].desk.breakers.engaged
    assert http.post("/v1/act", json=observation(data, 0), headers=own).json()["step"] == 1
    assert http.get("/v1/breakers", headers=other).status_code == 200  # of all robots


def test_what_has_no_token_gets_nothing(running: Running) -> None:
    with httpx.Client(base_url=running.tcp, trust_env=False) as http:
        for path in ("/v1/info", "/v1/schema", "/openapi.json", "/nowhere", "/v1/breakers"):
            answer = http.get(path)
            assert (answer.status_code, name(answer)) == (401, "unauthorized"), path
            assert answer.headers["www-authenticate"] == "Bearer"
            assert answer.json()["error"]["message"].startswith("send the token: ")
        wrong = http.get("/v1/info", headers={"Authorization": "Bearer another"})
        assert wrong.json()["error"]["message"].startswith("this token does not open that; send ")
        basic = http.get("/v1/info", headers={"Authorization": f"Basic {TOKEN}"})
        assert basic.status_code == 401
        assert http.get("/healthz").json() == {"ok": True}
        assert http.get("/readyz").json()["ready"] is True


def test_an_operator_resets_and_nobody_else(http: httpx.Client, running: Running) -> None:
    own = opened(http)
    http.post("/v1/act", json=observation(own, 0))
    newer = http.post("/v1/breakers/estop", json={"version": 2, "robot": "r1"})
    assert name(newer) == "malformed" and not running.host.registry.places["r1"].stop_pressed
    pressed = http.post("/v1/breakers/estop", json={"version": 1, "robot": "r1"})
    assert pressed.status_code == 200
    answer = http.post("/v1/act", json=observation(own, 1)).json()
    assert answer["breakers"] == "latched" and answer["source"] == "fallback"
    assert http.get("/readyz").status_code == 503
    assert http.get("/readyz?for=routing").status_code == 200  # the latch is here, nowhere else
    person = {"robot": "r1", "operator": "A. Person"}
    for action in ("release", "reset", "engage"):
        refused = http.post(f"/v1/breakers/{action}", json=person)
        assert (refused.status_code, name(refused)) == (403, "forbidden")
    operator = {"Authorization": f"Bearer {OPERATOR}"}

    def operate(action: str, **changes: Any) -> httpx.Response:
        return http.post(f"/v1/breakers/{action}", json=person | changes, headers=operator)

    assert name(operate("reset")) == "refused"  # still pressed
    assert operate("release").status_code == 200
    assert name(operate("reset", operator=" ")) == "refused"  # who?
    assert name(operate("engage")) == "refused"  # latched
    assert operate("reset").json()["breakers"] == "open"
    assert http.post("/v1/act", json=observation(own, 2)).json()["source"] == "fallback"
    assert operate("engage", measured=[0.0, 0.0]).json()["engaged"] is True
    assert http.get("/readyz").status_code == 200
    sources = {
        http.post("/v1/act", json=observation(own, 3 + i)).json()["source"] for i in range(8)
    }
    assert "policy" in sources
    assert operate("disengage").json()["engaged"] is False


def test_the_audit_log_tells_what_was_refused(tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    with service(tmp_path, tcp=True, operator_token=OPERATOR, audit=audit) as running:
        headers = {"Authorization": f"Bearer {OPERATOR}"}
        with httpx.Client(base_url=running.tcp, headers=headers, trust_env=False) as http:
            opened(http)
            person = {"robot": "r1", "operator": "A. Person"}
            assert name(http.post("/v1/breakers/reset", json=person)) == "refused"
            assert http.post("/v1/breakers/engage", json=person).status_code == 200
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    told = {line["event"]: line for line in lines}
    assert "nothing is latched" in told["breakers_reset"]["refused"]
    assert "refused" not in told["breakers_engage"]


def test_without_an_operator_s_token_nobody_resets(tmp_path: Path) -> None:
    with service(tmp_path, tcp=True) as running:
        http = httpx.Client(base_url=running.tcp, trust_env=False)
        with http:
            opened(http)
            refused = http.post("/v1/breakers/reset", json={"robot": "r1", "operator": "A"})
            assert name(refused) == "forbidden" and "WMRT_SERVE_OPERATOR_TOKEN" in refused.text


def test_a_hundred_megabytes_are_refused_unread(tmp_path: Path) -> None:
    with service(tmp_path, tcp=True) as running:
        with httpx.Client(base_url=running.tcp, trust_env=False) as http:
            began = time.monotonic()
            try:
                answer = http.post("/v1/act", content=bytes(100_000_000))
                assert (answer.status_code, name(answer)) == (413, "too_large")
            except httpx.WriteError:
                pass  # the answer came, and the connection was closed, while it still sent
            assert time.monotonic() - began < 5.0

            def parts() -> Iterator[bytes]:  # no length is told
                for _ in range(64):
                    yield bytes(65536)

            try:
                assert name(http.post("/v1/act", content=parts())) == "too_large"
            except httpx.WriteError:
                pass
            assert http.get("/healthz").status_code == 200


@pytest.mark.parametrize("host", ["[", "[::1", "http://["])
def test_a_host_that_is_no_address_is_malformed(running: Running, host: str) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with httpx.Client(base_url=running.tcp, headers=headers, trust_env=False) as http:
        for name_of in ("Host", "Origin"):
            answer = http.get("/v1/info", headers={name_of: host})
            assert answer.status_code in (400, 403) and answer.json()["kind"] == "refused"
        assert name(http.get("/v1/info", headers={"Host": "["})) == "malformed"


def test_who_guesses_tokens_is_slowed_alone(running: Running, http: httpx.Client) -> None:
    statuses = []
    with httpx.Client(base_url=running.tcp, trust_env=False) as wrong:
        for i in range(150):
            headers = {"Authorization": f"Bearer {i:032d}"} if i % 2 else {}
            statuses.append(wrong.get("/v1/info", headers=headers).status_code)
    assert set(statuses) == {401, 429} and statuses[:100] == [401] * 100
    assert http.get("/v1/info").status_code == 200  # from the same address


def test_a_body_that_is_refused_unread_ends_its_connection(running: Running) -> None:
    with httpx.Client(base_url=running.tcp, trust_env=False) as http:
        large = http.post("/v1/act", content=bytes(100_000))
        assert large.status_code == 401 and large.headers["connection"] == "close"
        small = http.post("/v1/act", content=b"{}")
        assert small.status_code == 401 and "connection" not in small.headers


def test_pages_of_other_sites_and_made_up_names_are_refused(running: Running) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with httpx.Client(base_url=running.tcp, headers=headers, trust_env=False) as http:
        assert name(http.get("/v1/info", headers={"Origin": "https://evil.example"})) == "forbidden"
        assert name(http.get("/v1/info", headers={"Host": "evil.example"})) == "forbidden"
        own = httpx.URL(running.tcp)
        same = http.get("/v1/info", headers={"Origin": f"http://{own.host}:{own.port}"})
        assert same.status_code == 200


def test_an_open_service_has_any_name_and_nothing_without_the_token(tmp_path: Path) -> None:
    """A page whose owner has his own name lead here cannot speak for whoever looks at it."""
    with pytest.raises(ValueError, match="needs a token"), service(tmp_path, tcp=True, open=True):
        pass
    with service(tmp_path, tcp=True, open=True, token=TOKEN) as running:
        with httpx.Client(base_url=running.tcp, trust_env=False) as http:
            made_up = {"Host": "evil.example", "Origin": "http://evil.example"}
            own = {"Authorization": f"Bearer {TOKEN}"}
            assert name(http.get("/v1/info", headers=made_up)) == "unauthorized"
            assert http.get("/v1/info", headers=made_up | own).status_code == 200
            assert http.get("/healthz", headers={"Host": "10.0.0.7:8420"}).status_code == 200


def test_a_host_s_names_are_read_in_any_case(tmp_path: Path) -> None:
    names = ("Robot-7.local", "[fe80::7]")
    with service(tmp_path, tcp=True, token=TOKEN, names=names) as running:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        with httpx.Client(base_url=running.tcp, headers=headers, trust_env=False) as http:
            for host in ("robot-7.local", "ROBOT-7.LOCAL:1", "[fe80::7]:8420", "Localhost:2"):
                assert http.get("/v1/info", headers={"Host": host}).status_code == 200, host
            assert name(http.get("/v1/info", headers={"Host": "robot-8.local"})) == "forbidden"
