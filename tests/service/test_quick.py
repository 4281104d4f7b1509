"""Control steps over HTTP without a framework: they are answered as FastAPI's route answers."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import FULL
from tests.service.doubles import CanarySeat, Running, observation, opened, service, until
from tests.service.raw import state
from wmrt.core.wire import ROBOT_HEADER
from wmrt.service.quick import Quick

#: What two answers to one request may differ in.
OWN = ("session", "queue_ns", "policy_ns", "act_ns")
KINDS = [
    *("application/json", "application/json; charset=utf-8", "Application/JSON", "json", "a/b/c"),
    *("application/problem+json", "text/plain", "application/x-www-form-urlencoded"),
    *("application/xjson", "", "application/json, text/plain", "; application/json"),
]


def clients(running: list[Running]) -> list[httpx.Client]:
    return [httpx.Client(base_url=one.tcp, trust_env=False) for one in running]


@pytest.fixture
def both(tmp_path: Path) -> Iterator[list[httpx.Client]]:
    """The same service twice, one of them all FastAPI's."""
    quick, slow = tmp_path / "quick", tmp_path / "slow"
    quick.mkdir()
    slow.mkdir()
    with service(quick, tcp=True) as one, service(slow, tcp=True) as other:
        assert isinstance(other.server.gate.app, Quick)
        other.server.gate.app = other.server.gate.app.app
        made = clients([one, other])
        yield made
        for client in made:
            client.close()


def told(answer: httpx.Response) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Status, body and headers, without what is each answer's own."""
    data = {k: v for k, v in answer.json().items() if k not in OWN}
    mine = ("date", "content-length", "x-request-id")
    return answer.status_code, data, {k: v for k, v in answer.headers.items() if k not in mine}


def compare(both: list[httpx.Client], body: list[bytes], headers: dict[str, str]) -> Any:
    answers = []
    for client, content in zip(both, body, strict=True):
        request = client.build_request("POST", "/v1/act", content=content, headers=headers)
        answers.append(told(client.send(request)))
    assert answers[0] == answers[1], (body, headers)
    return answers[0]


def test_whatever_comes_is_answered_alike(both: list[httpx.Client], seed: int) -> None:
    rng = random.Random(seed)
    owns = [opened(client) for client in both]
    seen: set[tuple[int, str]] = set()
    for number in range(1500 if FULL else 120):
        message = damaged(rng, observation(owns[0], number, state=state(rng.uniform(-1, 1))))
        text = json.dumps(message)
        bodies = [text.replace(owns[0]["session"], own["session"]).encode() for own in owns]
        if rng.random() < 0.3:
            bodies = [spoiled(random.Random(number), body) for body in bodies]
        headers = {"Content-Type": "application/json", ROBOT_HEADER: "r1"}
        if rng.random() < 0.2:
            headers["Content-Type"] = rng.choice(KINDS)
        if rng.random() < 0.1:
            headers[ROBOT_HEADER] = "r2"
        status, data, _ = compare(both, bodies, headers)
        seen.add((status, data.get("error", {}).get("name", "")))
    assert {(200, ""), (400, "malformed"), (421, "misrouted")} <= seen


def damaged(rng: random.Random, message: dict[str, Any]) -> Any:
    """A message that may have something wrong with it."""
    wrong: list[Any] = [None, True, -1, 2**63, 1.0, 1.5, "1", [], {}, "r2", "x" * 16, float("nan")]
    odd: dict[str, Any] = {"more": 1, "state": {"canary": rng.choice(wrong)}}
    for _ in range(rng.choice([0, 0, 1, 2])):
        key = rng.choice([*message, *odd])
        if rng.random() < 0.3:
            message.pop(key, None)
        else:
            message[key] = odd.get(key, rng.choice(wrong))
    return rng.choice([[message], None, "text", 7]) if rng.random() < 0.05 else message


def spoiled(rng: random.Random, body: bytes) -> bytes:
    """A body that may be no JSON. Bytes are changed at its end, where the two say the same."""
    kind = rng.randrange(6)
    if kind == 0:
        return body[: rng.randrange(len(body))]
    if kind == 1:
        return body[:-1] + bytes([rng.randrange(256)])
    if kind == 2:
        return body + rng.choice([b" ", b"\n", b"{}", b"\x00", b"\xff"])
    if kind == 3:
        return body.decode().encode(rng.choice(["utf-16", "utf-32", "utf-8-sig"]))
    if kind == 4:
        return b"[" * rng.choice([1, 3, 5000])
    return body[:-1] + b', "robot": "r9"}'


def test_every_kind_of_content(both: list[httpx.Client]) -> None:
    for body in (b"", b"{}", b"[1]", b"null", b"\xff\xfe", b'{"a": 1'):
        for headers in ({}, *({"Content-Type": kind} for kind in KINDS)):
            status, data, _ = compare(both, [body, body], headers)
            assert status == 400 and data["error"]["name"] == "malformed"


def test_a_fault_of_its_own_is_told_and_logged(tmp_path: Path, caplog: Any) -> None:
    with service(tmp_path, [CanarySeat()], tcp=True) as running:
        (client,) = clients([running])
        with client:
            own = opened(client)

            async def fails(seen: Any) -> Any:
                raise ZeroDivisionError("planted")

            running.host.act = fails  # type: ignore[method-assign]
            answer = client.post("/v1/act", json=observation(own, 0))
            assert answer.status_code == 500 and answer.json()["error"]["name"] == "internal"
            assert "planted" not in answer.text and answer.headers["connection"] == "close"
            until(lambda: "planted" in caplog.text)  # it is logged once the answer is out
            assert running.host.counts["internal"] == 1
            assert client.get("/healthz").status_code == 200


def test_a_restored_session_tells_what_it_lost(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
    kept = {"snapshots": tmp_path / "kept", "snapshot_every": 0.0}
    with service(tmp_path / "one", tcp=True, **kept) as running:
        (client,) = clients([running])
        own = opened(client)
        client.post("/v1/act", json=observation(own, 0))
        client.close()
    with service(tmp_path / "two", tcp=True, **kept) as running:
        (client,) = clients([running])
        answer = client.post("/v1/act", json=observation(own, 9))
        client.close()
        assert answer.status_code == 200 and answer.headers["x-wmrt-steps-lost"] == "8"


def test_a_websocket_goes_past_the_framework(tmp_path: Path) -> None:
    async def fails(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("FastAPI was asked")

    with service(tmp_path) as running:
        running.server.gate.app.app = fails
        raw = running.raw()
        assert raw.open()["kind"] == "opened"
        assert raw.acted(0).sequence == 0
