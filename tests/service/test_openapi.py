"""The document of the routes: examples of everything, and answers as it promises, to anything."""

from __future__ import annotations

import itertools
import secrets
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import hypothesis
import pytest
import schemathesis

from tests.conftest import FULL
from tests.service.doubles import OPERATOR, TOKEN, CanarySeat, Running, observation, opened, service
from tests.service.raw import state
from tests.service.test_http import PROMISES
from tools.service_rig import SECRETS
from wmrt.service import messages, security

CASES = 400 if FULL else 12
WANTED = hypothesis.settings(
    max_examples=CASES,
    database=None,
    deadline=None,
    suppress_health_check=list(hypothesis.HealthCheck),
    phases=[hypothesis.Phase.generate],
)


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    monkeypatch.setattr(security, "GUESSES", 1e6)  # it is 401 that is looked at, not 429
    seats = [CanarySeat() for _ in range(4)]
    with service(
        tmp_path, seats, tcp=True, token=TOKEN, operator_token=OPERATOR, idle=0.0, hold=0.01
    ) as one:
        yield one


def document(running: Running) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with httpx.Client(base_url=running.tcp, headers=headers, trust_env=False) as http:
        found: dict[str, Any] = http.get("/openapi.json").json()
        return found


def has_example(found: dict[str, Any], part: dict[str, Any]) -> bool:
    """Of a media type or parameter: its own, its schema's, or that of what the schema refers to."""
    schema = part.get("schema", {})
    if "$ref" in schema:
        schema = found["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    own = {"example", "examples"} & {*part, *schema}
    return bool(own) or "enum" in schema


def test_everything_has_an_example(running: Running) -> None:
    found, looked = document(running), 0
    for path, methods in found["paths"].items():
        for method, operation in methods.items():
            assert operation.get("description"), (method, path)
            parts = [(one["name"], one) for one in operation.get("parameters", [])]
            bodies = [operation.get("requestBody", {}), *operation["responses"].values()]
            parts += [item for body in bodies for item in body.get("content", {}).items()]
            for name, part in parts:
                assert has_example(found, part), (method, path, name)
                looked += 1
    assert looked > 40
    assert not has_example(found, {"schema": {"type": "object"}})


@pytest.mark.parametrize("name", ["ObservationMessage", "OpenMessage", "OperatorMessage"])
def test_examples_of_messages_are_messages(running: Running, name: str) -> None:
    model: Any = getattr(messages, name)
    examples = document(running)["components"]["schemas"][name]["examples"]
    assert examples
    for example in examples:
        model.model_validate(example)


@pytest.mark.parametrize("token", [OPERATOR, TOKEN, "x" * 32, None])
def test_anything_is_answered_as_promised(running: Running, token: str | None, seed: int) -> None:
    """Random requests that fit the document, each operation alone, with every kind of token."""
    seen: Counter[tuple[str, int]] = Counter()
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    def asks(case: Any) -> None:
        answer = case.call(base_url=running.tcp, headers=headers)
        seen[case.path, answer.status_code] += 1
        case.validate_response(answer, checks=PROMISES)
        assert not any(secret in answer.text for secret in SECRETS)

    found = document(running)
    for result in schemathesis.openapi.from_dict(found).get_all_operations():
        drawn = hypothesis.given(case=result.ok().as_strategy())(asks)
        hypothesis.seed(seed)(WANTED(drawn))()
    entitled = token in (OPERATOR, TOKEN)
    statuses = {status for path, status in seen if path not in security.OPEN_PATHS}
    assert (statuses == {401}) is not entitled
    assert {path for path, _ in seen} == set(found["paths"])


def test_anything_within_a_session_is_answered_as_promised(running: Running, seed: int) -> None:
    """The same where a request follows from the one before: a session that is open, sequence
    numbers that ascend, states in whose place anything may stand; resets and breakers between."""
    headers = {"Authorization": f"Bearer {OPERATOR}"}
    http = httpx.Client(base_url=running.tcp, headers=headers, trust_env=False)
    numbers, seen = itertools.count(), Counter[tuple[str, int]]()
    own: dict[str, Any] = {}

    def asks(case: Any) -> None:
        if not own or next(numbers) % 40 == 0:
            own.update(opened(http, f"r-{secrets.token_hex(4)}"))
        if case.path == "/v1/act" and isinstance(case.body, dict):
            drawn = case.body.get("state")
            mixed = state(0.5) | drawn if isinstance(drawn, dict) else state(0.5)
            case.body = observation(own, next(numbers), state=mixed)
        elif isinstance(case.body, dict):
            case.body["robot"] = own["robot"]
            if case.path == "/v1/reset":
                case.body["session"] = own["session"]
        answer = case.call(base_url=running.tcp, headers=headers)
        if case.path == "/v1/reset" and answer.status_code == 200:
            own.update(answer.json())
        seen[case.path, answer.status_code] += 1
        case.validate_response(answer, checks=PROMISES)

    with http:
        for result in schemathesis.openapi.from_dict(document(running)).get_all_operations():
            operation = result.ok()
            if operation.method == "post":
                drawn = hypothesis.given(case=operation.as_strategy())(asks)
                hypothesis.seed(seed)(WANTED(drawn))()
    assert seen["/v1/act", 200] > CASES // 2 and seen["/v1/reset", 200] > 0
    assert not any(status >= 500 for _, status in seen)
