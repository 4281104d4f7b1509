"""Frames of a WebSocket as far as the short way needs them: whole binary messages, no more.

websockets' own protocol knows the rest. Its way for such a message, there and back, took 40 us of
processor time in a client that steps every few ms.
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from websockets.utils import apply_mask as apply_mask
else:
    try:
        from websockets.speedups import apply_mask
    except ImportError:  # built without its C part
        from websockets.utils import apply_mask

#: First byte of a frame that is a whole binary message.
WHOLE_BINARY = 0x82
_MASKED = 0x80
_SHORT, _MIDDLE, _LONG = struct.Struct("!BB"), struct.Struct("!BBH"), struct.Struct("!BBQ")


def bounds(data: bytes, at: int) -> tuple[int, int] | None:
    """Where the payload of the frame at ``at`` begins and ends; None if its head is not whole."""
    if len(data) < at + 2:
        return None
    second = data[at + 1]
    size, begin = second & 0x7F, at + 2
    if size >= 126:
        form = _MIDDLE if size == 126 else _LONG
        begin = at + form.size
        if len(data) < begin:
            return None
        size = form.unpack_from(data, at)[2]
    begin += 4 * (second >> 7)
    return begin, begin + size


def head(size: int, mask: int = 0) -> bytes:
    """What precedes the payload of a whole binary message. ``mask``: 0x80 if a key follows."""
    if size < 126:
        return _SHORT.pack(WHOLE_BINARY, mask | size)
    if size < 1 << 16:
        return _MIDDLE.pack(WHOLE_BINARY, mask | 126, size)
    return _LONG.pack(WHOLE_BINARY, mask | 127, size)


def masked(data: bytes) -> bytes:
    """A whole binary message as a client sends it."""
    key = os.urandom(4)
    return b"".join((head(len(data), _MASKED), key, apply_mask(data, key)))


def is_plain(data: bytes, at: int) -> bool:
    """Whether the frame at ``at`` is a whole binary message as a server sends it."""
    return data[at] == WHOLE_BINARY and not data[at + 1] & _MASKED
