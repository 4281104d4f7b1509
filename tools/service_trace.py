"""Where the time of a round trip goes: a service whose steps leave stamps, and what lies between.

Run by `tools/service_latency.py --segments`. All stamps are readings of one clock, in two processes
of one machine; taking them costs about 1 us each, so the pieces add up to a little more than a
round trip without them.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from wmrt.client import connect
from wmrt.client.address import Address
from wmrt.client.channel import Channel
from wmrt.core import measure
from wmrt.core.wire import FLOATS, Acted, Observed, pack_acted, pack_observed

#: Piece of a round trip: the stamps that it lies between.
PIECES = {
    "client: encode": ("called", "sending"),
    "to the policy's thread": ("sending", "received"),
    "read and parse": ("received", "submitted"),
    "begin the step": ("submitted", "put"),
    "controller: to the question": ("put", "asked"),
    "controller: around the policy": ("asked", "policy_begins"),
    "policy": ("policy_begins", "policy_ends"),
    "controller: decide": ("policy_ends", "decided"),
    "pack": ("decided", "answering"),
    "back to the client, and decode": ("answering", "heard"),
    "client: return": ("heard", "returned"),
}


def tiny(folder: Path) -> str:
    """A checkpoint of random weights, tiny, with highway's states and actions.

    Its action stays at rest: at a thousand steps a second the rate limits block every other one,
    and what a blocked step costs is not what a step costs.
    """
    from wmrt.model.checkpoint import load_checkpoint, save_checkpoint
    from wmrt.model.config import preset
    from wmrt.model.random_init import random_checkpoint

    config = preset("tiny")
    made = random_checkpoint("tiny", config, load_checkpoint("highway"), 0)
    weights, middle = made.tensors["action_head.out.weight"].zero_(), config.action_bins // 2
    # Equal logits for the two bins beside 0: a hidden layer's GELU sums to more than 0.
    weights.unflatten(0, (-1, config.action_bins))[:, middle - 1 : middle + 1] = 8.0
    save_checkpoint(folder / "tiny", made, card="random weights, for speed only\n")
    return str(folder / "tiny")


def serve(folder: Path, **arguments: Any) -> None:
    """A service on ``folder``/s until it is told to stop; its stamps are in ``folder``/stamps.
    ``arguments``: of `ServeSettings`."""
    from wmrt.control import TimedController
    from wmrt.control.consult import Panel
    from wmrt.service.crew import load_crew
    from wmrt.service.desk import Desk
    from wmrt.service.direct import DirectWebSocket
    from wmrt.service.host import Host
    from wmrt.service.owned import OwnedWebSocket
    from wmrt.service.seats import ModelSeat
    from wmrt.service.server import Server, listening
    from wmrt.service.settings import ServeSettings

    now: dict[str, int] = {}
    rows: list[dict[str, int]] = []
    stamped(DirectWebSocket, "data_received", now, before="received")  # of the first messages
    stamped(OwnedWebSocket, "take_in", now, before="received")
    stamped(Host, "_post", now, before="submitted")
    stamped(TimedController, "start", now, after="put")
    stamped(Panel, "reply", now, before="asked")
    stamped(ModelSeat, "step", now, before="policy_begins", after="policy_ends")
    stamped(Desk, "_decided", now, before="decided")
    stamped(DirectWebSocket, "send_now", now, before="answering", then=lambda: rows.append({**now}))
    settings = ServeSettings(socket=folder / "s", rate=1e6, deadline=1.0, **arguments)
    server = Server(load_crew(settings), settings)
    with listening(settings) as sockets:
        server.run_on(sockets)
    (folder / "stamps").write_text(json.dumps(rows))


def echo(path: str) -> None:
    """The floor, a uvicorn that answers an answer's bytes to every message."""
    import uvicorn

    answer = pack_acted(
        Acted("r1", 1, 0, 0, 1, (0.0, 0.0), "policy", "closed", (), False, 0, None, 0, 0, 0)
    )

    async def application(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "websocket":
            return
        await receive()
        await send({"type": "websocket.accept"})
        while (await receive())["type"] == "websocket.receive":
            await send({"type": "websocket.send", "bytes": answer})

    config = uvicorn.Config(
        application, uds=path, lifespan="off", log_config=None, ws="websockets-sansio",
        ws_per_message_deflate=False, ws_ping_interval=None,
    )  # fmt: skip
    asyncio.run(uvicorn.Server(config).serve())


def echo_arm(address: str) -> Callable[[], tuple[int, int, int, str]]:
    """The same bytes through a uvicorn that does nothing: the floor."""
    end = time.monotonic() + 60.0
    while True:
        try:
            channel = Channel(Address(address), None, end, None)
            break
        except Exception:  # it has not started yet
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
    data = pack_observed(Observed("r1", 1, 0, 0, None), FLOATS, bytes(4 + 4 * 16))

    def step() -> tuple[int, int, int, str]:
        began = time.monotonic_ns()
        channel.send(data, time.monotonic() + 10.0)
        channel.receive(time.monotonic() + 10.0)
        return time.monotonic_ns() - began, 0, 0, "echo"

    return step


def stamped(
    kind: type,
    name: str,
    stamps: dict[str, int],
    before: str | None = None,
    after: str | None = None,
    then: Callable[[], object] = lambda: None,
) -> None:
    """Have a method leave stamps before and after; ``then`` is called before it as well."""
    method = getattr(kind, name)

    def stamping(self: Any, *arguments: Any, **options: Any) -> Any:
        if before is not None:
            stamps[before] = time.monotonic_ns()
        then()
        result = method(self, *arguments, **options)
        if after is not None:
            stamps[after] = time.monotonic_ns()
        return result

    setattr(kind, name, stamping)


def ask(address: str, state: Callable[[dict[str, Any]], Any], count: int) -> list[dict[str, int]]:
    """Steps of one client, each with its side's stamps."""
    now: dict[str, int] = {}
    stamped(Channel, "send", now, before="sending")
    stamped(Channel, "answer", now, after="heard")
    rows = []
    with connect(address, "traced", opening=120.0, deadline=10.0) as client:
        given = state(client.schema)
        for _ in range(count):
            now["called"] = time.monotonic_ns()
            client.act(given)
            now["returned"] = time.monotonic_ns()
            rows.append({**now})
    return rows


def segments(
    client: list[dict[str, int]], service: list[dict[str, int]], skip: int
) -> dict[str, dict[str, Any]]:
    """Percentiles of every piece in microseconds, after ``skip`` steps.

    A thread that is asked may run before the one that asks has gone on; such a piece is negative.
    """
    both = [{**theirs, **ours} for theirs, ours in zip(service, client, strict=True)][skip:]
    return {
        name: measure.summary([(row[end] - row[begin]) / 1e3 for row in both])
        for name, (begin, end) in PIECES.items()
    }


def pieces(
    folder: Path, state: Callable[[dict[str, Any]], Any], skip: int, count: int
) -> Callable[[], dict[str, dict[str, Any]]]:
    """Ask ``skip`` and ``count`` times; what is returned tells the pieces once the service has
    ended."""
    client = ask(f"unix:{folder}/s", state, skip + count)
    return lambda: segments(client, json.loads((folder / "stamps").read_text()), skip)
