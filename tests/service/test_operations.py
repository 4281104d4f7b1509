"""What an operator does, and what the audit log says of it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.service.doubles import OPERATOR, name, observation, opened, service
from wmrt.service.messages import OperatorMessage
from wmrt.service.operations import operate


def test_what_failed_is_not_told_as_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    audit = tmp_path / "audit.jsonl"
    with service(tmp_path, audit=audit) as running:
        raw = running.raw()
        raw.open()
        controller = running.host.registry.places["r1"].desk.controller

        def fails(*_: object) -> None:
            raise RuntimeError("a fault of ours")

        message = OperatorMessage(robot="r1", operator="A. Person")
        with monkeypatch.context() as patch:
            patch.setattr(controller, "disengage", fails)
            done = operate(running.host, "disengage", message, False, "test")
            with pytest.raises(RuntimeError, match="a fault of ours"):
                asyncio.run_coroutine_threadsafe(done, running.host.outbox.loop).result(20.0)
        done = operate(running.host, "disengage", message, False, "test")
        asyncio.run_coroutine_threadsafe(done, running.host.outbox.loop).result(20.0)
    told = [json.loads(line) for line in audit.read_text().splitlines()]
    told = [line.get("refused") for line in told if line["event"] == "breakers_disengage"]
    assert told == ["a fault of ours", None]


def shown(http: httpx.Client) -> dict[str, set[Any]]:
    """How robot r1 is, by every way of looking: each has one answer."""
    robots = [
        http.get("/v1/info").json()["robots"]["r1"],
        http.get("/v1/breakers?robot=r1").json()["robots"]["r1"],
        http.get("/v1/breakers").json()["robots"]["r1"],
        frame(http)["robots"]["r1"],
    ]
    series = dict(line.rsplit(" ", 1) for line in http.get("/metrics").text.splitlines())
    states = [
        state
        for state in ("closed", "degraded", "half_open", "open", "latched")
        if series[f'wmrt_breakers_state{{robot="r1",state="{state}"}}'] == "1.0"
    ]
    ready = http.get("/readyz").json()
    waits = "latched until an operator resets: r1"
    assert (waits in ready.get("reasons", [])) is not ready["ready"]
    assert series["wmrt_ready"] == str(float(ready["ready"]))
    return {
        "breakers": {*states, *(robot["breakers"] for robot in robots)},
        "engaged": {
            series['wmrt_robot_engaged{robot="r1"}'] == "1.0",
            *(robot["engaged"] for robot in robots),
        },
        "ready": {ready["ready"]},
    }


def frame(http: httpx.Client) -> dict[str, Any]:
    """What the live page is shown."""
    with http.stream("GET", "/v1/live?robot=r1") as stream:
        for line in stream.iter_lines():
            told = json.loads(line.removeprefix("data:")) if line.startswith("data:") else {}
            if told.get("kind") == "frame":
                return dict(told)
    raise AssertionError("no frame came")


CLEAR = {"breakers": {"closed"}, "engaged": {True}, "ready": {True}}
LATCHED = {"breakers": {"latched"}, "engaged": {False}, "ready": {False}}


def test_a_stop_is_a_latch_from_the_press_on(tmp_path: Path) -> None:
    """The robot is idle: no action comes that would latch it."""
    audit = tmp_path / "audit.jsonl"
    with service(tmp_path, tcp=True, operator_token=OPERATOR, audit=audit) as running:
        headers = {"Authorization": f"Bearer {OPERATOR}"}
        with httpx.Client(base_url=running.tcp, headers=headers, trust_env=False) as http:

            def does(action: str) -> httpx.Response:
                person = {"robot": "r1", "operator": "A. Person"}
                return http.post(f"/v1/breakers/{action}", json=person)

            own = opened(http)
            assert http.post("/v1/act", json=observation(own, 0)).json()["source"] == "policy"
            assert shown(http) == CLEAR
            for again in range(2):  # the second time it is latched already
                for action in ("estop", "release"):
                    told = does(action).json()
                    assert (told["breakers"], told["engaged"]) == ("latched", False)
                    assert told["stop_pressed"] is (action == "estop")
                    for hasty in ("reset", "engage"):
                        refused = does(hasty)
                        assert (refused.status_code, name(refused)) == (409, "refused")
                        assert (
                            f"{hasty}: the emergency stop was pressed and latches" in refused.text
                        )
                        assert "after that action" in refused.text
                    assert shown(http) == LATCHED
                answer = http.post("/v1/act", json=observation(own, 1 + again)).json()
                assert (answer["breakers"], answer["source"]) == ("latched", "fallback")
                assert shown(http) == LATCHED
            assert does("reset").json()["breakers"] == "open"
            assert does("engage").json()["engaged"] is True
            assert shown(http) == {"breakers": {"open"}, "engaged": {True}, "ready": {True}}
    told = [json.loads(line) for line in audit.read_text().splitlines()]
    lines = [(line["event"], line["state"]) for line in told if "breakers_" in line["event"]]
    once = [("estop", "latched"), ("reset", "latched"), ("engage", "latched")]
    once += [("release", "latched"), *once[1:]]
    expected = [*once, *once, ("reset", "open"), ("engage", "open")]
    assert lines == [(f"breakers_{action}", state) for action, state in expected]
