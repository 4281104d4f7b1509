"""Clients for whom there is no place: many, in one small event loop, and how long each waits.

A thread and a client library for each of them would wait for one another, and that would be
measured. Here a try costs some tenths of a millisecond, and `lag_ms` is what the loop itself was
late by, as every waiting time may hold that much of the harness.
"""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from tools.wire import TEXT, frame, frames_of, handshake

#: Seconds after which a try that nobody answers is given up.
GIVEN_UP = 10.0
#: Seconds between two looks at how late the loop is.
LOOK = 0.005


async def knock(host: str, port: int, name: str) -> tuple[str, float]:
    """Ask for a place for robot ``name``: what is said, and milliseconds until it is.

    ``served`` if there is one; else the refusal's name, or that of what went wrong.
    """
    began = time.monotonic()
    try:
        said = await asyncio.wait_for(_ask(host, port, name), GIVEN_UP)
    except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError) as error:
        said = type(error).__name__
    return said, 1e3 * (time.monotonic() - began)


async def _ask(host: str, port: int, name: str) -> str:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(handshake())
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 101"):
            return head.split(b"\r\n")[0].decode("latin-1")
        wanted = {"kind": "open", "version": 1, "robot": name}
        writer.write(frame(TEXT, json.dumps(wanted).encode()))
        data = b""
        while True:
            part = await reader.read(65536)
            if not part:
                return "closed without a word"
            data += part
            for opcode, payload in frames_of(data):
                if opcode == TEXT:
                    return _said(json.loads(payload))
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


def _said(message: dict[str, Any]) -> str:
    return "served" if message["kind"] == "opened" else str(message["error"]["name"])


async def _one(address: tuple[str, int], name: str, due: float, every: float, end: float) -> Any:
    """One client, which tries again every ``every`` seconds."""
    told = []
    while due < end:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        told.append(await knock(*address, name))
        due += every
    return told


async def _lags(end: float) -> list[float]:
    """Milliseconds that the loop was late by."""
    lags = []
    while (began := time.monotonic()) < end:
        await asyncio.sleep(LOOK)
        lags.append(1e3 * (time.monotonic() - began - LOOK))
    return lags


async def _all(address: str, clients: int, every: float, start: float, seconds: float) -> Any:
    parts, end = urlsplit(address), start + seconds
    where = (parts.hostname or "", parts.port or 80)
    await asyncio.sleep(max(0.0, start - time.monotonic()))
    lags = asyncio.create_task(_lags(end))
    tries = [
        _one(where, f"one-too-many-{number}", start + every * number / clients, every, end)
        for number in range(clients)
    ]
    told = [one for tries in await asyncio.gather(*tries) for one in tries]
    return {"told": told, "lag_ms": await lags}


def intrude(
    address: str, clients: int, every: float, start: float, seconds: float
) -> dict[str, Any]:
    """Ask with ``clients`` clients, spread evenly over ``every`` seconds, each again after that.

    Args:
        address: ``ws://host:port``. start: `time.monotonic` seconds. seconds: for which they ask.

    Returns:
        ``told``: what each try was told and after how many milliseconds. ``lag_ms``: see above.
    """
    return asyncio.run(_all(address, clients, every, start, seconds))  # type: ignore[no-any-return]
