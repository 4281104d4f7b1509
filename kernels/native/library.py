"""The native library: loaded once, its interface (wmrt.h) declared, its threads owned.

Nothing here falls back: what cannot be had is an error that says why and what to do.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
import threading
from collections.abc import Sequence
from ctypes import POINTER, c_char_p, c_float, c_int, c_int32, c_int64, c_size_t, c_void_p
from pathlib import Path
from typing import Any, NamedTuple

from wmrt.core import machine
from wmrt.core.errors import UnsupportedError, UsageError

#: WMRT_ABI of wmrt.h: what this file was written for.
ABI = 2
#: Where setup.py puts the library.
PATH = Path(__file__).with_name("_native.so")
#: Names of wmrt.h's formats and activations, to its numbers.
FORMATS = {"float32": 0, "bf16": 1, "nvfp4": 2, "mxfp4": 3, "int4-g128": 4}
ACTIVATIONS = {"float32": 0, "bf16": 1, "int8-g32": 2}
#: What the negative results of wmrt.h mean.
ERRORS = {
    -1: "an argument is out of its range",
    -2: "this processor does not have the instruction set",
    -3: "no kernel for this pair of format and activation",
    -4: "out of memory",
    -5: "a thread could not be started or pinned",
}
_ISAS = 4  # WMRT_ISAS
_AGAIN = "install gcc and install wmrt again (in a checkout: make setup)"


class Matrix(ctypes.Structure):
    """``wmrt_matrix``: one linear layer's weights, y[n] = global_scale * sum_k w[n, k] x[k] + bias.

    ``rows`` and ``bias`` are addresses; whoever fills them in keeps the memory alive.
    """

    _fields_ = (
        ("rows", c_void_p),
        ("bias", c_void_p),
        ("stride", c_int64),
        ("n", c_int32),
        ("k", c_int32),
        ("format", c_int32),
        ("activation", c_int32),
        ("global_scale", c_float),
    )


class Isa(NamedTuple):
    """An instruction set: its number in wmrt.h and its name, as ``avx2``."""

    number: int
    name: str


#: Result type and argument types of every function of wmrt.h.
_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "wmrt_abi": (c_int, ()),
    "wmrt_isa_best": (c_int, ()),
    "wmrt_isa_usable": (c_int, (c_int,)),
    "wmrt_isa_name": (c_char_p, (c_int,)),
    "wmrt_prepared_bytes": (c_size_t, (c_int, c_int, c_int)),
    "wmrt_pool_create": (c_void_p, (c_int, POINTER(c_int), c_int64)),
    "wmrt_pool_destroy": (None, (c_void_p,)),
    "wmrt_pool_threads": (c_int, (c_void_p,)),
    "wmrt_linear": (
        c_int,
        (c_int, c_void_p, POINTER(Matrix), c_void_p, c_int, c_void_p, c_void_p),
    ),
    "wmrt_stream": (c_int64, (c_int, c_void_p, c_void_p, c_size_t)),
    "wmrt_wait": (c_int, (c_int, c_int, c_int64)),
}

_lock = threading.Lock()
_library: ctypes.CDLL | None = None


def library() -> ctypes.CDLL:
    """The native library, loaded by the first call, with the types of wmrt.h declared.

    Addresses are passed as int or None, a `Pool` as itself. Calls release the interpreter lock.

    Raises:
        UnsupportedError: it is not built, damaged, of another version, or not for this machine.
    """
    global _library
    if _library is None:
        with _lock:
            if _library is None:
                _library = load(PATH)
    return _library


def load(path: Path) -> ctypes.CDLL:
    """Load and check the library at ``path``. Errors as in `library`; never kept."""
    if not path.is_file():
        raise UnsupportedError(_why_missing(path))
    _require_whole(path)
    try:
        loaded = ctypes.CDLL(str(path))
    except OSError as error:
        raise UnsupportedError(
            f"the native library does not load: {error}; {_AGAIN} on this machine"
        ) from None
    for name, (result, arguments) in _FUNCTIONS.items():
        try:
            function = getattr(loaded, name)
        except AttributeError:
            raise UnsupportedError(
                f"the native library {path} has no function {name}: it is another one or another "
                f"version's; {_AGAIN}"
            ) from None
        function.restype, function.argtypes = result, arguments
        if name == "wmrt_abi" and (abi := function()) != ABI:
            raise UnsupportedError(
                f"the native library {path} has interface {abi}, this wmrt needs {ABI}; {_AGAIN}"
            )
    return loaded


def _why_missing(path: Path) -> str:
    if not sys.platform.startswith("linux"):
        return (
            f"the native library is for Linux only, this is {sys.platform}; use the eager executor"
        )
    return (
        f"the native library is not built: there is no {path}; {_AGAIN}, without WMRT_NATIVE=0 "
        "in the environment"
    )


def _require_whole(path: Path) -> None:
    """A file that is cut off would end the process with a bus error inside the dynamic loader."""
    with path.open("rb") as file:
        head = file.read(64)
        size = os.fstat(file.fileno()).st_size
    if len(head) == 64 and head[:6] == b"\x7fELF\x02\x01":  # 64 bits, little-endian
        (table,) = struct.unpack_from("<Q", head, 40)  # of sections: the last thing in the file
        entry, entries = struct.unpack_from("<HH", head, 58)
        if 0 < table and table + entry * entries <= size:
            return
    raise UnsupportedError(
        f"the native library {path} is damaged: {size} bytes that are no whole library; {_AGAIN}"
    )


def check(result: int, what: str) -> int:
    """``result`` of a native call; negative ones become an error about ``what``.

    Raises:
        UnsupportedError: no such kernel or instruction set, no memory, no thread.
        UsageError: an argument out of its range.
    """
    if result >= 0:
        return result
    kind = UsageError if result == -1 else UnsupportedError
    raise kind(f"{what}: {ERRORS.get(result, f'native error {result}')}")


def usable_isas() -> tuple[Isa, ...]:
    """Instruction sets that this library has kernels for and this processor can run."""
    return tuple(isa for isa in _isas() if library().wmrt_isa_usable(isa.number))


def isa() -> Isa:
    """The instruction set to use: the one WMRT_ISA names, else the best of this processor.

    Raises:
        UsageError: WMRT_ISA names none of wmrt's.
        UnsupportedError: this processor does not have the one it names, or there is no library.
    """
    every, usable = _isas(), usable_isas()
    name = os.environ.get("WMRT_ISA", "")
    if not name:
        best: int = library().wmrt_isa_best()
        return every[best]
    can = f"usable here are {', '.join(i.name for i in usable)}"
    for candidate in every:
        if candidate.name == name:
            if candidate in usable:
                return candidate
            raise UnsupportedError(f"WMRT_ISA={name}: this processor does not have it; {can}")
    raise UsageError(f"WMRT_ISA={name!r} is no instruction set of wmrt; {can}")


def _isas() -> tuple[Isa, ...]:
    name = library().wmrt_isa_name
    return tuple(Isa(number, name(number).decode("ascii")) for number in range(_ISAS))


class Pool:
    """Threads that live until closed: the caller is the first, the others wait between calls.

    ``handle`` goes where a native function takes a ``wmrt_pool *``; so does the Pool itself, but
    ctypes then wraps an error of its use in one of its own. Callers on several threads take turns.
    Not usable after a fork: the child has none of the threads.

    Args:
        threads: the caller included, 1 up to the processors this process may use.
        cpus: a processor for each thread, all different; number 0's is only declared, the caller
            is not moved. None: not pinned.
        spin_ns: nanoseconds that idle threads spin before they block.

    Raises:
        UsageError: an argument out of its range; any use after `close` or a fork.
        UnsupportedError: no library, or the threads could not be started or pinned.
    """

    def __init__(
        self, threads: int, cpus: Sequence[int] | None = None, spin_ns: int = 50_000
    ) -> None:
        self._handle: int | None = None
        check_threads(threads, cpus)
        if spin_ns < 0:
            raise UsageError(f"spin_ns={spin_ns}: nanoseconds, 0 or more")
        self._destroy = library().wmrt_pool_destroy
        self._pid = os.getpid()
        self.threads = threads
        self.cpus = None if cpus is None else tuple(cpus)
        array = None if cpus is None else (c_int * threads)(*cpus)
        self._handle = library().wmrt_pool_create(threads, array, spin_ns)
        if not self._handle:
            where = "" if cpus is None else f" on processors {', '.join(map(str, cpus))}"
            raise UnsupportedError(
                f"{threads} threads{where} could not be started: out of threads or memory, or a "
                "processor may not be used; ask for fewer (ulimit -u, taskset -p)"
            )

    @property
    def handle(self) -> int:
        """The address of the ``wmrt_pool``."""
        if self._handle is None:
            raise UsageError("this Pool is closed; make a new one")
        if os.getpid() != self._pid:
            raise UsageError(
                f"this Pool belongs to process {self._pid}, its threads are not in this one "
                f"({os.getpid()}); make a new one after the fork"
            )
        return self._handle

    @property
    def _as_parameter_(self) -> int:
        return self.handle

    def close(self) -> None:
        """End the threads. Again, or in a forked child: nothing."""
        handle, self._handle = self._handle, None
        if handle is not None and os.getpid() == self._pid:
            self._destroy(handle)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            self.close()


def check_threads(threads: int, cpus: Sequence[int] | None) -> None:
    """Raise `UsageError` for what `Pool` would not take."""
    usable = machine.usable_cpus()
    if not 1 <= threads <= usable:
        raise UsageError(f"threads={threads}: 1 to {usable}, the processors this process may use")
    if cpus is None:
        return
    if len(cpus) != threads or len(set(cpus)) != threads:
        raise UsageError(f"cpus={list(cpus)}: {threads} different ones, one for each thread")
    allowed = sorted(os.sched_getaffinity(0))
    if not set(cpus) <= set(allowed):
        raise UsageError(f"cpus={list(cpus)}: this process may use {allowed}")
