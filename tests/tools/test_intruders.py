"""Clients too many: what they are told, and that the harness tells its own delay."""

from __future__ import annotations

import asyncio
import sys
import time

import pytest

from tools.intruders import intrude, knock
from tools.service_rig import free_port, serving
from wmrt.client import connect


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc: Linux only")
def test_what_a_client_too_many_is_told() -> None:
    with serving(robots=1, rate=2000.0) as service:
        with connect(service.unix, "first", opening=20.0) as robot:
            robot.act({"canary": 0.5, "wait": 0.0, "lane": "left"})
            found = intrude(service.tcp, 20, 0.4, time.monotonic(), 1.0)
            assert robot.act({"canary": -0.5, "wait": 0.0, "lane": "left"}).action[0] == -0.5
        assert asyncio.run(knock("127.0.0.1", service.port, "first"))[0] == "served"
    names, waits = zip(*found["told"], strict=True)
    assert set(names) == {"too_many_robots"} and len(names) == 50  # 20 each 0.4 s, in 1 s
    assert all(0.0 < ms < 10_000.0 for ms in waits)
    assert found["lag_ms"]


def test_a_loop_that_is_held_up_is_told() -> None:
    async def held() -> list[float]:
        from tools.intruders import _lags

        asyncio.get_running_loop().call_later(0.05, time.sleep, 0.2)
        return await _lags(time.monotonic() + 0.4)

    assert max(asyncio.run(held())) > 150.0


def test_nobody_there_is_told_by_its_name() -> None:
    said, _ = asyncio.run(knock("127.0.0.1", free_port(), "first"))
    assert said == "ConnectionRefusedError"
