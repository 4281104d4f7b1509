"""A service in a thread of this process, over seats whose answers are known."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from tests.service.raw import Raw, state
from wmrt.control import Channel
from wmrt.core.types import ActionDim, ActionSpec
from wmrt.model.schema import StateSchema, category, flag, numeric, vector
from wmrt.runtime.snapshot import Origin, Snapshot
from wmrt.service.crew import Crew
from wmrt.service.host import Host
from wmrt.service.logs import Logs
from wmrt.service.owned import OwnedWebSocket
from wmrt.service.seats import ModelSeat
from wmrt.service.server import Server, addresses, listening
from wmrt.service.settings import ServeSettings
from wmrt.service.telemetry import Telemetry

SCHEMA = StateSchema(
    {
        "canary": numeric("m", -1.0, 1.0, decimals=4, required=True),
        "gap": numeric("m", 0.0, 100.0),
        "pose": vector(2, "m", -10.0, 10.0),
        "lane": category(["left", "right"]),
        "wet": flag(),
    },
    neutral=(0.0, 0.0),
)
#: So quick that no rate limit gets between a robot and its canary.
ACTIONS = ActionSpec(
    (ActionDim("a", "m", -1.0, 1.0, 1e6, 1e6), ActionDim("b", "m", -1.0, 1.0, 1e6, 1e6))
)
TOKEN, OPERATOR = "client-" + "t" * 16, "operator-" + "o" * 16


class QuickSeat(ModelSeat):
    """So quick that no rate limit gets between what the model says and what is sent: after a
    restore the limit counts as from a start, by one command where it was by two."""

    @property
    def actions(self) -> ActionSpec:
        dims = self._model.actions.dims
        return ActionSpec(tuple(replace(dim, rate_up=1e6, rate_down=1e6) for dim in dims))


class CanarySeat:
    """Answers with the observation's canary and with how often it was asked since its reset."""

    schema: Any = SCHEMA
    actions = ACTIONS

    def __init__(self, seconds: float | Callable[[], float] = 0.0) -> None:
        self.seconds = seconds
        self.steps = self.asked = 0
        self.seen: list[float] = []

    def reset(self) -> None:
        self.steps = 0
        self.seen = []

    def step(self, state: Mapping[str, Any], previous_action: Any) -> Any:
        self.asked += 1
        wait = self.seconds() if callable(self.seconds) else self.seconds
        if wait:
            time.sleep(wait)
        self.steps += 1
        canary = state["canary"] or 0.0
        self.seen.append(canary)
        return SimpleNamespace(action=np.array([canary, self.steps / 1e4], np.float32))

    def snapshot(self) -> Snapshot:
        origin = Origin("schema", {}, "weights", {"name": "canary"})
        return Snapshot(origin, {"steps": torch.tensor([self.steps])}, torch.zeros(1), (0.0, 0.0))

    def restore(self, snapshot: Snapshot) -> None:
        self.steps = int(snapshot.tensors["steps"])

    def enter(self) -> None:
        pass

    def leave(self) -> None:
        pass


def canary_seats(settings: ServeSettings) -> list[CanarySeat]:
    """For `wmrt fleet --seats`."""
    return [CanarySeat() for _ in range(settings.robots)]


class Running:
    """A service that runs.

    Attributes:
        address: over its Unix socket. tcp: ``http://host:port``.
    """

    def __init__(
        self,
        settings: ServeSettings,
        seats: list[Any],
        channels: tuple[Channel, ...] = (),
        **parts: Any,
    ) -> None:
        self.seats = seats
        self.settings = settings
        crew = Crew(seats, settings)
        crew.channels = channels
        self.server = Server(crew, settings, **parts)
        self.host = self.server.host
        self._stack = contextlib.ExitStack()
        sockets = self._stack.enter_context(listening(settings))
        found = addresses(sockets, settings)
        self.address = next((a for a in found if a.startswith("unix:")), found[0])
        self.tcp = next((a.replace("ws://", "http://") for a in found if "ws:" in a), "")
        self._thread = threading.Thread(target=self.server.run, args=(sockets,), daemon=True)
        self._thread.start()
        until(lambda: self.host.warm or self.server.should_exit)

    def raw(self, token: str | None = None) -> Raw:
        """A connection, closed at the end."""
        return self._stack.enter_context(Raw(self.address, token))

    def stop(self) -> None:
        self.server.should_exit = True
        self._thread.join(20.0)
        alive = self._thread.is_alive()
        self._stack.close()
        assert not alive
        self.host.audit.close()


@contextlib.contextmanager
def service(
    tmp_path: Path,
    seats: list[Any] | None = None,
    *,
    tcp: bool = False,
    telemetry: Telemetry | None = None,
    channels: tuple[Channel, ...] = (),
    **changes: Any,
) -> Iterator[Running]:
    """A service on a Unix socket in ``tmp_path``, and on TCP if asked for."""
    changes.setdefault("period", 0.01)
    changes.setdefault("deadline", 10.0)  # what it does must not depend on how busy the machine is
    changes.setdefault("stuck_after", max(10.0, changes["deadline"]))
    changes.setdefault("rate", 1e6)
    changes.setdefault("cpu", -1)
    if tcp:
        changes.setdefault("port", 0)
    own = [CanarySeat()] if seats is None else seats
    settings = ServeSettings(socket=tmp_path / "wmrt.sock", robots=len(own), **changes)
    running = Running(settings, own, channels, telemetry=telemetry)
    try:
        yield running
    finally:
        running.stop()


def until(true: Callable[[], Any], seconds: float = 10.0) -> None:
    """Wait until something is so."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come to be"
        time.sleep(0.002)


def takers(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Observations by the thread that took them in, from here on."""
    found: Counter[str] = Counter()
    post = Host._post

    def counting(self: Host, *arguments: Any) -> None:
        found[threading.current_thread().name] += 1
        post(self, *arguments)

    monkeypatch.setattr(Host, "_post", counting)
    return found


def protocol(running: Running) -> OwnedWebSocket:
    """Of the one WebSocket that is open."""
    found = [one for one in running.server.server_state.connections if hasattr(one, "share")]
    assert len(found) == 1 and isinstance(found[0], OwnedWebSocket)
    return found[0]


def owned(running: Running, raw: Raw, sequence: int = 0) -> OwnedWebSocket:
    """Have the policy's thread wait for the socket."""
    if not raw.opened:
        raw.open()
    assert raw.acted(sequence).sequence == sequence
    one = protocol(running)
    until(lambda: one._watched)
    return one


def opened(http: httpx.Client, robot: str = "r1", **more: Any) -> dict[str, Any]:
    answer = http.post("/v1/reset", json={"robot": robot, **more})
    assert answer.status_code == 200, answer.text
    data: dict[str, Any] = answer.json()
    return data


def observation(own: dict[str, Any], sequence: int, **changes: Any) -> dict[str, Any]:
    keys = {key: own[key] for key in ("robot", "session", "epoch")}
    return {"version": 1, **keys, "sequence": sequence, "state": state(0.5), **changes}


def name(answer: httpx.Response) -> str:
    data = answer.json()
    assert data["kind"] == "refused"
    return str(data["error"]["name"])


class Lines:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.data: list[bytes] = []

    def __call__(self, line: bytes) -> None:
        self.data.append(line)

    @property
    def text(self) -> str:
        return b"".join(self.data).decode()

    @property
    def json(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.data]

    def event(self, name: str) -> dict[str, Any]:
        return next(line for line in self.json if line["event"] == name)


@contextlib.contextmanager
def logging_to(lines: Any, **changes: Any) -> Iterator[Logs]:
    with Logs(lines, changes.pop("clean", str), **changes).installed() as own:
        yield own


def full_pipe() -> tuple[int, int]:
    """A pipe that takes nothing more: its ends."""
    ends = os.pipe()
    fcntl.fcntl(ends[1], fcntl.F_SETFL, os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(ends[1], b"x" * 4096)
    fcntl.fcntl(ends[1], fcntl.F_SETFL, 0)
    return ends
