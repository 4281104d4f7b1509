"""The codec in C beside the one in Python, for tests that hold both to the same."""

from __future__ import annotations

from typing import Any

import pytest

from wmrt.core import codec as chosen
from wmrt.core.codec import VARIABLE, Codec
from wmrt.core.wire import FLOATS, Observed, unpack_observed
from wmrt.core.wire_state import StateLayout

ARMS = ("c", "python")
#: Of tests that are worth running where there is no C, too.
WAYS = ("auto", "python")
#: The same, of tests to which the messages' bytes are little: the second in `make test-full`.
MOSTLY = ("auto", pytest.param("python", marks=pytest.mark.full))


def require_native() -> Any:
    """The module in C; skips where this Python has no headers to build it with."""
    native, reason = chosen.load()
    if native is None:
        pytest.skip(f"{reason}: apt install gcc python3-dev, then make clean setup")
    return native


def arm(name: str, monkeypatch: pytest.MonkeyPatch) -> Codec:
    """Have everything that is made from now on use one of `ARMS` or `WAYS`."""
    if name == "c":
        require_native()
    monkeypatch.setenv(VARIABLE, name)
    return chosen.codec()


class Columns:
    """A state there and back through whole messages, with the interface of `StateLayout`."""

    def __init__(self, codec: Codec, layout: StateLayout) -> None:
        self.size = layout.size
        self._write = codec.writer(layout)

        def read(data: bytes) -> Observed:
            kind, head, body = unpack_observed(data)
            assert kind == FLOATS
            return head._replace(state=layout.unpack(body))

        native = codec.reader(layout, read)
        self._read = read if native is None else native.read
        self._head = len(self._write(Observed("", 0, 0, 0, {}))) - layout.bytes
        self._first = self._write(Observed("", 0, 0, 0, {}))[: self._head]

    def pack(self, state: Any) -> bytes:
        return self._write(Observed("", 0, 0, 0, state))[self._head :]

    def unpack(self, data: memoryview) -> dict[str, Any]:
        state: dict[str, Any] = self._read(self._first + bytes(data)).state
        return state
