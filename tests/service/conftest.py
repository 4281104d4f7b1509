"""What holds for all tests of the service."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.core.codecs import MOSTLY, arm
from tests.service.doubles import TOKEN, Running, service, takers
from wmrt.service import interpreter


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often services would settle this process, which is not theirs alone."""
    calls: list[int] = []
    monkeypatch.setattr(interpreter, "settle", lambda: calls.append(1))
    return calls


@pytest.fixture(params=MOSTLY)
def each_codec(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What makes and reads the messages: what is said here holds for both."""
    arm(request.param, monkeypatch)


@pytest.fixture(params=["owned", "direct", "asgi"])
def each_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever takes binary messages: what is said here holds."""
    monkeypatch.setenv("WMRT_SERVE_WEBSOCKET", request.param)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    """A service of one robot, for modules that have no other."""
    with service(tmp_path) as one:
        yield one


@pytest.fixture
def http(running: Running) -> Iterator[httpx.Client]:
    """A client with the token of the module's own service."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with httpx.Client(base_url=running.tcp, headers=headers, trust_env=False) as client:
        yield client


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Observations by the thread that took them in."""
    return takers(monkeypatch)
