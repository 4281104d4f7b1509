"""Addresses: what is one, and that what is none is told."""

from __future__ import annotations

from typing import Any

import pytest

from wmrt.client.address import Address
from wmrt.core.errors import UsageError


@pytest.mark.parametrize(
    ("text", "host", "port", "tls", "uri"),
    [
        ("ws://robot:8420", "robot", 8420, False, "ws://robot:8420/v1/stream"),
        ("ws://robot", "robot", 80, False, "ws://robot:80/v1/stream"),
        ("wss://robot/", "robot", 443, True, "wss://robot:443/v1/stream"),
        ("WS://[::1]:1", "::1", 1, False, "ws://[::1]:1/v1/stream"),
        ("wss://10.0.0.1:65535", "10.0.0.1", 65535, True, "wss://10.0.0.1:65535/v1/stream"),
    ],
)
def test_hosts(text: str, host: str, port: int, tls: bool, uri: str) -> None:
    own = Address(text)
    assert (own.host, own.port, own.tls, own.uri, own.path) == (host, port, tls, uri, "")


@pytest.mark.parametrize("text", ["unix:/run/a#b?c.sock", "unix:///run/a#b?c.sock"])
def test_files(text: str) -> None:
    own = Address(text)
    assert own.path == "/run/a#b?c.sock" and own.uri == "ws://localhost/v1/stream"


@pytest.mark.parametrize(
    "text",
    [
        *("", "http://x", "ws://", "ws://:80", "unix:", "unix:relative", "unix://run/x", "unix:/"),
        *("ws://host:port", "ws://host:0", "ws://host:00", "ws://host:65536", "ws://host:-1"),
        *("ws://[::1", "ws://host:80/v1/other", "ws://host?x=1", "ws://host#x", "ws://me:no@host"),
        *("ws://" + "x" * 64 + ":80", "ws://a..b:80"),
        *(None, 8420, b"unix:/x"),
    ],
)
def test_what_is_none(text: Any) -> None:
    with pytest.raises(UsageError, match=r"ws://host:port, .*1 to 65535") as caught:
        Address(text)
    assert str(text)[:200] in str(caught.value)
