"""Over HTTP: routes, what is refused and how, operators, what OpenAPI promises."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import hypothesis
import pytest
import schemathesis
from schemathesis.specs.openapi import checks

from tests.conftest import FULL
from tests.service.doubles import (
    OPERATOR,
    TOKEN,
    CanarySeat,
    Lines,
    Running,
    logging_to,
    name,
    observation,
    opened,
    service,
    until,
)
from tests.service.raw import state

PROMISES = [
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.status_code_conformance,
    schemathesis.checks.not_a_server_error,
]


QUIET = hypothesis.settings(
    max_examples=200 if FULL else 8,
    database=None,
    suppress_health_check=list(hypothesis.HealthCheck),
    phases=[hypothesis.Phase.generate],
)


JSON = {"Content-Type": "application/json"}


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    with service(tmp_path, tcp=True, token=TOKEN, operator_token=OPERATOR) as one:
        yield one


def test_a_control_step(http: httpx.Client) -> None:
    own = opened(http)
    assert own["memory"] == "fresh" and own["period"] == 0.01
    answer = http.post("/v1/act", json=observation(own, 0))
    assert answer.status_code == 200
    data = answer.json()
    assert data["action"][0] == 0.5 and data["source"] == "policy" and data["sequence"] == 0
    again = http.post("/v1/act", json=observation(own, 0))
    assert (again.status_code, name(again)) == (409, "duplicate")
    lost = http.post("/v1/act", json=observation(own | {"session": "0" * 16}, 1))
    assert (lost.status_code, name(lost)) == (409, "unknown_session")


def test_a_reset_is_a_new_episode_of_the_session(http: httpx.Client, running: Running) -> None:
    own = opened(http)
    http.post("/v1/act", json=observation(own, 0))
    held = http.post("/v1/reset", json={"robot": "r1"})
    assert (held.status_code, name(held)) == (409, "held")
    new = opened(http, session=own["session"], measured=[0.5, -0.5])
    assert new["epoch"] == 1 and new["session"] == own["session"]
    old = http.post("/v1/act", json=observation(own, 1))
    assert name(old) == "stale_epoch"
    assert running.host.registry.places["r1"].desk.breakers.reference == (0.5, -0.5)
    wrong = http.post("/v1/reset", json={"robot": "r1", "session": own["session"], "measured": [1]})
    assert (wrong.status_code, name(wrong)) == (409, "refused")


def test_a_position_that_fits_no_actuators_changes_nothing(
    http: httpx.Client, running: Running
) -> None:
    own = opened(http)
    for place in ({"session": own["session"]}, {}):
        running.host.registry.places["r1"].session.seen = -1e9  # it is nobody's any more
        wrong = http.post("/v1/reset", json={"robot": "r1", "measured": [0.1] * 3, **place})
        assert (wrong.status_code, name(wrong)) == (409, "refused")
    answer = http.post("/v1/act", json=observation(own, 0))
    assert answer.status_code == 200 and answer.json()["epoch"] == own["epoch"]


def test_a_body_that_is_not_called_json_is_told_so(http: httpx.Client) -> None:
    body = json.dumps({"robot": "r1"})
    for kind in ("application/x-www-form-urlencoded", "text/plain"):
        answer = http.post("/v1/reset", content=body, headers={"Content-Type": kind})
        assert (answer.status_code, name(answer)) == (400, "malformed")
        said = answer.json()["error"]["message"]
        assert said == f"content-type {kind}: send application/json"
    listed = http.post("/v1/reset", content="[]", headers=JSON)
    assert "content-type" not in listed.json()["error"]["message"]


def test_head_is_get_without_its_body(http: httpx.Client, running: Running) -> None:
    """Load balancers probe with it."""
    for path in ("/", "/healthz", "/readyz", "/metrics", "/v1/info", "/v1/schema", "/v1/live"):
        head = http.head(path)
        assert (head.status_code, head.content) == (200, b""), path
        if path not in ("/v1/live", "/metrics", "/v1/info"):  # which differ every time
            assert head.headers["content-length"] == http.get(path).headers["content-length"]
    assert http.head("/v1/act").status_code == 405
    assert http.head("/none").status_code == 404
    bare = httpx.Client(base_url=running.tcp)
    assert bare.head("/v1/info").status_code == 401 and bare.head("/readyz").status_code == 200
    opened(http)
    running.host.registry.places["r1"].desk.controller.estop()
    running.host.registry.places["r1"].desk.controller.act(None)
    assert http.head("/readyz").status_code == 503
    bare.close()


def test_facts(http: httpx.Client) -> None:
    schema = http.get("/v1/schema").json()
    assert schema["schema"]["fields"][0]["name"] == "canary"
    assert schema["actions"][0]["name"] == "a"
    own = opened(http)
    http.post("/v1/act", json=observation(own, 0))
    info = http.get("/v1/info").json()
    assert info["ready"] and info["robots"]["r1"]["observations"]["answered"] == 1
    told = http.get("/v1/breakers").json()["robots"]["r1"]
    assert told["breakers"] == "closed" and told["stats"]["steps"] == 1 and not told["busy"]
    assert name(http.get("/v1/breakers?robot=r9")) == "unknown_session"


@pytest.mark.parametrize("value", [math.nan, math.inf, "fast", [1], None, 1e400])
def test_a_reading_that_is_none_never_becomes_an_action(
    http: httpx.Client, running: Running, value: Any
) -> None:
    own = opened(http)
    body = json.dumps(observation(own, 0, state=state() | {"canary": value}))
    answer = http.post("/v1/act", content=body, headers=JSON)
    assert answer.status_code == 200, answer.text
    data = answer.json()
    assert data["source"] == "fallback" and data["tripped"] == [0]
    assert all(map(math.isfinite, data["action"])) and running.seats[0].seen == []


def test_requests_that_are_wrong_are_told_what_is(http: httpx.Client) -> None:
    own = opened(http)
    whole = observation(own, 0)
    cases: list[tuple[Any, str]] = [
        (b"", "Field required"),
        (b"{", "JSON"),
        (b"\xff\xfe", "JSON"),
        (b"[" * 100_000, "no body that can be read"),
        (b"[]", "valid dictionary"),
        ({}, "version"),
        ({**whole, "version": 2}, "version"),
        ({**whole, "sequence": -1}, "sequence"),
        ({**whole, "sequence": 1.5}, "sequence"),
        ({**whole, "sequence": 2**63}, "sequence"),
        ({**whole, "state": []}, "state"),
        ({**whole, "more": 1}, "more"),
        ({**whole, "session": "xyz"}, "16 hex digits"),
    ]
    for body, said in cases:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        answer = http.post("/v1/act", content=content, headers=JSON)
        assert (answer.status_code, name(answer)) == (400, "malformed"), body
        assert said in answer.text, (body, answer.text)
        assert "Traceback" not in answer.text and "/" not in answer.json()["error"]["message"]
    assert http.get("/nowhere").status_code == 404 and name(http.get("/nowhere")) == "not_found"
    assert name(http.put("/v1/act")) == "not_allowed"
    assert name(http.post("/v1/breakers/explode", json={"robot": "r1"})) == "malformed"
    assert http.post("/v1/act", json=whole).status_code == 200


def test_many_unknown_fields_are_one_fault(http: httpx.Client) -> None:
    many = {f"f{i}": i for i in range(1000)}
    for path in ("/v1/act", "/v1/reset", "/v1/breakers/estop"):
        answer = http.post(path, json=many)
        assert name(answer) == "malformed" and "1000 fields" in answer.text


def test_health_is_told_while_a_step_runs(tmp_path: Path) -> None:
    """However long it takes: here, until all of it has been asked."""
    go = threading.Event()
    go.set()
    with service(tmp_path, [CanarySeat(lambda: go.wait(30.0) * 0.0)], tcp=True) as running:
        raw = running.raw()
        raw.open()
        go.clear()
        raw.say(raw.packed(0))
        place = running.host.registry.places["r1"]
        until(lambda: place.session.sequence == 0)
        with httpx.Client(base_url=running.tcp, trust_env=False) as http:
            took = []
            for _ in range(15):
                began = time.monotonic()
                assert http.get("/healthz").json() == {"ok": True}
                took.append(time.monotonic() - began)
            assert http.get("/readyz").json()["ready"] is True
            assert http.get("/v1/info").json()["robots"]["r1"]["observations"] == {"taken": 1}
            told = http.get("/v1/breakers").json()["robots"]["r1"]
        assert sorted(took)[len(took) // 2] < 0.05, took
        assert told["busy"] and told["stats"] is None
        assert place.session.counts["answered"] == 0
        go.set()
        assert raw.hear().sequence == 0


@pytest.mark.parametrize("form", ["json", "text"])
@pytest.mark.parametrize("path", ["/v1/info", "/v1/act"])  # FastAPI's, and what goes past it
def test_a_fault_of_ours_tells_a_client_nothing_and_the_log_all(
    running: Running, http: httpx.Client, monkeypatch: pytest.MonkeyPatch, path: str, form: str
) -> None:
    own = opened(http)

    def fails(*_: Any) -> None:
        raise RuntimeError("a secret at /secret/path")

    monkeypatch.setattr("wmrt.service.operations.info", fails)
    monkeypatch.setattr(running.host, "submit", fails)
    lines = Lines()
    with logging_to(lines, form=form):
        answer = http.get(path) if path == "/v1/info" else http.post(path, json=observation(own, 0))
        until(lambda: "RuntimeError" in lines.text)  # it is logged after it is answered
    assert (answer.status_code, name(answer)) == (500, "internal")
    assert "secret" not in answer.text and answer.headers["connection"] == "close"
    assert lines.text.count("RuntimeError: a secret at /secret/path") == 1
    assert lines.text.count("Traceback (most recent call last)") == 1
    assert "in fails" in lines.text and answer.headers["x-request-id"] in lines.text


def test_openapi_is_kept(running: Running, http: httpx.Client, seed: int) -> None:
    """Random requests that fit the document: every answer is one that it has, and never a 5xx."""
    document = http.get("/openapi.json").json()
    for model in ("ObservationMessage", "OpenMessage", "OperatorMessage", "Action", "Opened"):
        assert document["components"]["schemas"][model]["examples"], model
    headers = {"Authorization": f"Bearer {OPERATOR}"}
    seen = set()

    def asks(case: Any) -> None:
        answer = case.call(base_url=running.tcp, headers=headers)
        seen.add((case.path, answer.status_code))
        case.validate_response(answer, checks=PROMISES)

    for result in schemathesis.openapi.from_dict(document).get_all_operations():
        drawn = hypothesis.given(case=result.ok().as_strategy())(asks)
        hypothesis.seed(seed)(QUIET(drawn))()
    assert len({path for path, _ in seen}) == len(document["paths"])
    assert {status for _, status in seen} >= {200, 409}
    assert http.get("/healthz").status_code == 200
