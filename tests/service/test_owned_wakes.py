"""Between an answer and the next look at the socket: who is woken by what the client says next."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.client.support import held
from tests.service.doubles import observation, owned, service, until
from tests.service.raw import state
from wmrt.service.direct import DirectWebSocket
from wmrt.service.owned import OwnedWebSocket


def test_an_observation_that_follows_at_once_waits_for_its_robot_s_thread(
    tmp_path: Path, taken: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = OwnedWebSocket.watch

    def slow(self: OwnedWebSocket) -> int:
        time.sleep(0.02)
        return watch(self)

    with service(tmp_path, websocket="owned") as running:
        raw = running.raw()
        owned(running, raw)
        monkeypatch.setattr(OwnedWebSocket, "watch", slow)
        taken.clear()
        for sequence in range(1, 31):
            assert raw.acted(sequence, state=state(0.5)).sequence == sequence
        assert sum(taken.values()) == 30
        assert taken["wmrt-policy"] >= 28


def test_a_step_that_follows_at_once_lets_the_event_loop_read(
    tmp_path: Path, taken: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What another client of the session asks for is begun before the thread looks at the socket,
    and hangs: what comes meanwhile is taken in, the newest is stepped."""
    go, seat = held()
    sent, on = threading.Event(), threading.Event()
    send_now = DirectWebSocket.send_now

    def paused(self: DirectWebSocket, message: bytes) -> bool:
        done = send_now(self, message)
        sent.set()
        assert on.wait(60.0)
        return done

    with service(tmp_path, [seat], websocket="owned", tcp=True, deadline=60.0) as running:
        raw = running.raw()
        one = owned(running, raw)
        place = running.host.registry.places["r1"]
        with monkeypatch.context() as patch:
            patch.setattr(DirectWebSocket, "send_now", paused)
            assert raw.acted(1).sequence == 1
            assert sent.wait(60.0)
            go.clear()
            asked = seat.asked
            told: list[Any] = []
            asking = threading.Thread(target=lambda: told.append(_asked(running, raw.opened)))
            asking.start()
            until(lambda: place.desk._waiting is not None)
            on.set()
            until(lambda: seat.asked == asked + 1)
            taken.clear()
            for sequence in (3, 4):
                raw.say(raw.packed(sequence, state=state(0.25)))
                until(lambda: sum(taken.values()) == sequence - 2)  # noqa: B023
        assert taken["wmrt-policy"] == 0 and not one._watched
        go.set()
        asking.join(60.0)
        assert told == ["action"]
        assert raw.hear()["error"]["name"] == "superseded"
        assert raw.hear().sequence == 4


def _asked(running: Any, own: dict[str, Any]) -> str:
    with httpx.Client(base_url=running.tcp, trust_env=False, timeout=60.0) as http:
        kind: str = http.post("/v1/act", json=observation(own, 2)).json()["kind"]
        return kind
