"""Round trips of observations, whatever was sent since."""

from __future__ import annotations

import random

import pytest

from wmrt.client import sent
from wmrt.client.sent import Sent


def test_round_trips_and_what_is_forgotten(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(seed)
    monkeypatch.setattr(sent, "SENT", 5)
    now = [10**9]
    monkeypatch.setattr(sent.time, "monotonic_ns", lambda: now[0])
    own, at = Sent(), {}
    for sequence in range(20):
        now[0] += draw.randint(1, 10**6)
        own.note(sequence, now[0])
        at[sequence] = now[0]
    now[0] += 7
    assert len(own) == 5
    assert own.since(3) == now[0] - at[15] < now[0] - at[3]  # it took longer than that
    assert own.since(17) == now[0] - at[17] and len(own) == 2
    own.note(19, at[19] + 3)  # sent again over another connection
    assert own.since(19) == now[0] - at[19] - 3 and len(own) == 0
    assert own.since(20) == 0
