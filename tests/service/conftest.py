"""What holds for all tests of the service."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import httpx
import pytest

from tests.service.doubles import TOKEN, Running, takers
from wmrt.service import interpreter


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often services would settle this process, which is not theirs alone."""
    calls: list[int] = []
    monkeypatch.setattr(interpreter, "settle", lambda: calls.append(1))
    return calls


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
