"""What holds for all tests of the service."""

from __future__ import annotations

import pytest

from wmrt.service import interpreter


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often services would settle this process, which is not theirs alone."""
    calls: list[int] = []
    monkeypatch.setattr(interpreter, "settle", lambda: calls.append(1))
    return calls
