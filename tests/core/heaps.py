"""From how many heaps the C library gives memory, and which blocks it keeps apart."""

from __future__ import annotations

import ctypes
import re


def heaps() -> int | None:
    """Heaps of the C library in this process; None if it is not glibc."""
    text = _told()
    return None if text is None else text.count(b"<heap nr=")


def mapped() -> int | None:
    """Blocks with pages of their own in this process; None if the C library is not glibc."""
    text = _told()
    return None if text is None else int(re.findall(rb'type="mmap" count="(\d+)"', text)[-1])


def _told() -> bytes | None:
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "malloc_info"):
        return None
    libc.open_memstream.restype = ctypes.c_void_p
    text, size = ctypes.c_char_p(), ctypes.c_size_t()
    stream = ctypes.c_void_p(libc.open_memstream(ctypes.byref(text), ctypes.byref(size)))
    libc.malloc_info(0, stream)
    libc.fclose(stream)
    found = ctypes.string_at(text, size.value)
    libc.free(text)
    return found
