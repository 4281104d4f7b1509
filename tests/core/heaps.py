"""From how many heaps the C library gives memory."""

from __future__ import annotations

import ctypes


def heaps() -> int | None:
    """Of the C library in this process; None if it is not glibc."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "malloc_info"):
        return None
    libc.open_memstream.restype = ctypes.c_void_p
    text, size = ctypes.c_char_p(), ctypes.c_size_t()
    stream = ctypes.c_void_p(libc.open_memstream(ctypes.byref(text), ctypes.byref(size)))
    libc.malloc_info(0, stream)
    libc.fclose(stream)
    found = ctypes.string_at(text, size.value).count(b"<heap nr=")
    libc.free(text)
    return found
