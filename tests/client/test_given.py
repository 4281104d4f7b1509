"""What a client is given: what it takes, and what it tells before it is sent."""

from __future__ import annotations

import time
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from tests.client.support import QUICK
from tests.service.doubles import CanarySeat, service, until
from tests.service.raw import state
from wmrt.client import connect
from wmrt.core.errors import SchemaError, ServiceError, StateError, UsageError


@pytest.mark.parametrize("end", ["", "\n", " \r\n"])
def test_a_token_as_it_stands_in_its_file(tmp_path: Path, end: str) -> None:
    with service(tmp_path, token="t" * 32) as running:
        with connect(running.address, "r1", token="t" * 32 + end, **QUICK) as robot:
            assert robot.act(state(0.5)).action[0] == 0.5


@pytest.mark.parametrize("token", ["secret\r\nHost: x", "secret\x00", "s\u00e9cret" * 4])
def test_a_token_that_no_header_carries_is_told_and_not_shown(token: str) -> None:
    with pytest.raises(UsageError, match="visible ASCII") as caught:
        connect("unix:/tmp/none", "r1", token=token)
    assert "cret" not in str(caught.value)


@pytest.mark.parametrize("encoding", ["floats", "msgpack", "json"])
def test_states_and_times_of_numpy_are_sent(tmp_path: Path, encoding: Any) -> None:
    own = state() | {"canary": np.float32(0.25), "gap": np.float64(3.0), "wet": np.bool_(True)}
    own["pose"] = np.array([1.0, 2.0], np.float32)
    with service(tmp_path) as running:
        with connect(running.address, "r1", encoding=encoding, **QUICK) as robot:
            answer = robot.act(own, captured_ns=np.int64(time.monotonic_ns()))  # type: ignore[arg-type]
            assert answer.action[0] == 0.25 and answer.source == "policy"


@pytest.mark.parametrize("encoding", ["msgpack", "json"])
@pytest.mark.parametrize("value", [object(), 1j, b"x", 2**70])
def test_a_state_that_cannot_be_sent_is_told(tmp_path: Path, encoding: Any, value: Any) -> None:
    with service(tmp_path) as running:
        with connect(running.address, "r1", encoding=encoding, **QUICK) as robot:
            if (encoding, type(value)) in (("msgpack", bytes), ("json", int)):  # these it can hold
                assert robot.act(state() | {"canary": value}).source == "fallback"
            else:
                with pytest.raises(StateError, match=f"{encoding} cannot hold"):
                    robot.act(state() | {"canary": value})
            assert robot.state == "connected"


@pytest.mark.parametrize("captured", [-5, 1.5, 2**70, "now", float("nan")])
def test_a_time_that_is_none_is_told(tmp_path: Path, captured: Any) -> None:
    with service(tmp_path) as running:
        with connect(running.address, "r1", **QUICK) as robot:
            with pytest.raises(UsageError, match=r"captured_ns=.*time\.monotonic_ns"):
                robot.act(state(), captured_ns=captured)
            assert robot.act(state(0.5)).action[0] == 0.5


def test_a_time_of_another_clock_is_told_which_one_is_meant(tmp_path: Path) -> None:
    wall = getattr(time, "time_ns")()  # noqa: B009 - the house does not read it, and users do
    with service(tmp_path) as running, connect(running.address, "r1", **QUICK) as robot:
        with pytest.raises(ServiceError, match=r"time\.monotonic_ns, not time\.time_ns") as caught:
            robot.act(state(), captured_ns=wall)
        assert caught.value.name == "malformed"
        assert robot.act(state(0.5), captured_ns=time.monotonic_ns()).source == "policy"


def test_states_that_do_not_fit_are_told_before_they_are_sent(tmp_path: Path) -> None:
    with service(tmp_path) as running, connect(running.address, "r1", **QUICK) as robot:
        with pytest.raises(StateError, match="fuel"):
            robot.act(state(fuel=1.0))
        assert robot.act(state(0.5)).action[0] == 0.5


def test_requests_that_cannot_be_meant() -> None:
    with pytest.raises(UsageError, match="raise or reopen"):
        connect("unix:/x", "r1", on_lost="ignore")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="floats, msgpack, json"):
        connect("unix:/x", "r1", encoding="pickle")  # type: ignore[arg-type]
    for wrong in (0.0, -1.0, float("nan"), True, "1", None, [1.0]):
        with pytest.raises(UsageError, match=f"above 0, got {type(wrong).__name__}"):
            connect("unix:/x", "r1", deadline=wrong)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="above 0"):
            connect("unix:/x", "r1", opening=wrong)  # type: ignore[arg-type]
    for robot in (5, None, b"r1", ["r1"]):
        with pytest.raises(UsageError, match=f"robot=.*a text, got {type(robot).__name__}"):
            connect("unix:/x", robot)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("token", 5, "the token: a text, got int"),
        ("measured", 0.5, "one number for each, got float"),
        ("measured", "00", "one number for each, got str"),
        ("measured", [None, 0.0], "one number for each, got list"),
        ("measured", [10**400], "one number for each, got list"),
        ("spin", "1", r"spin='1': seconds, 0 to 1"),
        ("backoff", 0.1, "a wmrt.client.Backoff, got float"),
        ("on_event", "print", r"a function \(name, details\), got str"),
        ("tls", "ca.pem", "an ssl.SSLContext, got str"),
    ],
)
def test_arguments_of_another_type(name: str, value: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        connect("unix:/x", "r1", **{name: value})


@pytest.mark.parametrize("encoding", ["floats", "msgpack", "json"])
@pytest.mark.parametrize("wrong", [None, 5, "ego_speed", [1.0], []])
def test_what_is_no_state_is_told(tmp_path: Path, encoding: Any, wrong: Any) -> None:
    with service(tmp_path) as running:
        with connect(running.address, "r1", encoding=encoding, **QUICK) as robot:
            for call in (robot.act, robot.send):
                with pytest.raises(
                    UsageError, match=f"state=.*mapping.*, got {type(wrong).__name__}"
                ):
                    call(wrong)
            with pytest.raises(UsageError, match="above 0, got str"):
                robot.act(state(), deadline="1")  # type: ignore[arg-type]
            with pytest.raises(UsageError, match="one number for each"):
                robot.reset(["left", 0.0])  # type: ignore[list-item]
            assert robot.act(MappingProxyType(state(0.5))).action[0] == 0.5
            assert robot.counters["lost"] == 0


def test_an_instruction_needs_another_encoding(tmp_path: Path) -> None:
    from tests.model.networks import schemas

    class Talking(CanarySeat):
        schema = schemas()["an instruction"]

        def step(self, state: Any, previous_action: Any) -> Any:
            return super().step({"canary": 0.0}, previous_action)

    with service(tmp_path, [Talking()]) as running:
        with pytest.raises(SchemaError, match="msgpack or JSON"):
            connect(running.address, "r1")
        until(lambda: running.host.registry.places["r1"].session.holder is None)
        with connect(running.address, "r1", encoding="json", **QUICK) as robot:
            assert robot.act({"a": 1.0, "say": "stop"}).step == 1
