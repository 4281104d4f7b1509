"""Which code reads and writes the messages of the control step: C, or the Python it is held to.

The C takes a whole message in one call, and hands whatever is not plain (a message that is none, a
value of an unusual type) to the Python, so that every error has one wording. A step that comes
every few ms finds no cache warm: ten functions in Python, there and back, took 65 us of it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from wmrt.core.errors import UnsupportedError, UsageError
from wmrt.core.wire import FLOATS, TRIPPED, Acted, Observed, pack_acted, pack_observed, unpack_acted
from wmrt.core.wire_state import FLAGS, TEXTS, StateLayout

if TYPE_CHECKING:
    from wmrt.core import _codec

#: Of the environment: one of `KINDS`; ``auto`` is C where it is built.
VARIABLE = "WMRT_CODEC"
KINDS = ("auto", "c", "python")


class Choice(NamedTuple):
    """What was asked for, what it is, and why it is not C where it could have been."""

    requested: str
    resolved: str
    reason: str = ""


class Codec:
    """Messages of the control step, in C or in Python.

    Args:
        native: the module in C; None for Python.

    Attributes:
        choice: which one, and why.
        pack_acted, unpack_acted: of `wmrt.core.wire`.
    """

    def __init__(self, choice: Choice, native: Any = None) -> None:
        self.choice, self.native = choice, native
        self.pack_acted: Callable[[Acted], bytes] = pack_acted
        self.unpack_acted: Callable[[bytes], Acted] = unpack_acted
        if native is not None:
            self.answers: _codec.Answers = native.Answers(Acted, TRIPPED, pack_acted, unpack_acted)
            self.pack_acted, self.unpack_acted = self.answers.pack, self.answers.unpack

    def writer(self, layout: StateLayout) -> Callable[[Observed], bytes]:
        """Makes messages of observations with their state; errors as of `StateLayout.pack` and
        `pack_observed`."""

        def write(seen: Observed) -> bytes:
            return pack_observed(seen, FLOATS, layout.pack(seen.state))

        return write if self.native is None else self._columns(layout, write, _unread).write

    def reader(
        self, layout: StateLayout, read: Callable[[bytes], Observed]
    ) -> _codec.Columns | None:
        """What reads observations of a layout in C; ``read`` reads the others. None in Python."""
        return None if self.native is None else self._columns(layout, _unwritten, read)

    def _columns(
        self,
        layout: StateLayout,
        write: Callable[[Observed], bytes],
        read: Callable[[bytes], Observed],
    ) -> _codec.Columns:
        made: _codec.Columns = self.native.Columns(
            Observed, layout.described, FLAGS, TEXTS, write, read
        )
        return made


def codec() -> Codec:
    """The one that `VARIABLE` asks for.

    Raises:
        UsageError: it names none. UnsupportedError: C, and that cannot be had.
    """
    return _made(os.environ.get(VARIABLE, "auto"))


@functools.lru_cache(8)
def _made(requested: str) -> Codec:
    if requested not in KINDS:
        raise UsageError(f"{VARIABLE}={requested[:40]!r}: {', '.join(KINDS)}")
    if requested == "python":
        return Codec(Choice(requested, "python"))
    native, reason = load()
    if native is not None:
        return Codec(Choice(requested, "c"), native)
    if requested == "c":
        raise UnsupportedError(
            f"{VARIABLE}=c: {reason}; install gcc and Python's headers (Debian, Ubuntu: "
            "apt install gcc python3-dev) and install wmrt again (in a checkout: make clean setup)"
        )
    return Codec(Choice(requested, "python", reason))


def load() -> tuple[ModuleType | None, str]:
    """The module in C, or why there is none."""
    try:
        from wmrt.core import _codec
    except ImportError as error:
        _, damaged, why = str(error).partition(".so: ")  # before it stands a path of this machine
        if damaged:
            return None, f"the codec in C does not load: {why}"
        return None, "the codec in C is not built for this Python"
    return _codec, ""


def _unread(data: bytes) -> Observed:
    raise UsageError("this codec only writes")


def _unwritten(seen: Observed) -> bytes:
    raise UsageError("this codec only reads")
