"""The floor of a step: how fast this machine streams memory, measured between the steps."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol

import numpy as np

from wmrt.core import machine, measure
from wmrt.core.errors import UnsupportedError
from wmrt.kernels.native.library import Pool, check, isa, library

#: The buffer is this many times the last-level cache, so that little of it is found there again.
CACHES = 10
#: Where the kernel does not tell the size of the cache.
ASSUMED_CACHE = 64 * 2**20
#: Samples before the arms and after them, per number of threads.
SAMPLES = 15
PHASES = ("before", "between", "after")


class Stream(Protocol):
    """Reads all of a large buffer of ``size`` bytes."""

    size: int

    def read_ns(self, threads: int) -> int:
        """Nanoseconds of one reading by ``threads`` threads."""


def buffer_bytes(model_bytes: int) -> int:
    """Size of the buffer: 10 times the last-level cache, or the model's own bytes if larger."""
    cache = machine.last_level_cache_bytes() or ASSUMED_CACHE
    page = 2 * 2**20
    return -(-max(CACHES * cache, model_bytes) // page) * page


class NativeStream:
    """The native library's prefetched reading of a buffer in huge pages, where there are such.

    Raises `UnsupportedError` when the library cannot be had or the memory is not there.
    """

    def __init__(self, size: int, threads: Sequence[int]) -> None:
        self._isa = isa()
        self._library = library()
        self.size = size
        try:
            self._memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, ValueError) as error:
            raise UnsupportedError(f"no {size:,} bytes to stream: {error}") from None
        with contextlib.suppress(OSError):
            self._memory.madvise(mmap.MADV_HUGEPAGE)
        self._array = np.frombuffer(self._memory, np.uint8)
        self._array.fill(1)  # pages of zeros that nobody wrote are all the same one
        self._pools = {count: Pool(count) for count in threads}

    def read_ns(self, threads: int) -> int:
        address, size = self._array.ctypes.data, self.size
        spent = self._library.wmrt_stream(self._isa.number, self._pools[threads], address, size)
        return max(check(spent, "streaming memory"), 1)

    def __enter__(self) -> NativeStream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        for pool in self._pools.values():
            pool.close()
        del self._array
        self._memory.close()


class Floor:
    """Bandwidths by number of threads, in bytes per nanosecond (GB/s), in three phases.

    Args:
        stream: None where there is none to be had; ``reason`` then says why, and all is missing.
    """

    def __init__(self, stream: Stream | None, threads: Sequence[int], reason: str = "") -> None:
        self._stream, self.reason = stream, reason
        self._samples = {count: {phase: list[float]() for phase in PHASES} for count in threads}

    def sample(self, phase: str, times: int) -> None:
        """Read ``times`` times for each number of threads, after one that does not count."""
        if self._stream is None:
            return
        for threads, phases in self._samples.items():
            self._stream.read_ns(threads)
            for _ in range(times):
                phases[phase].append(self._stream.size / self._stream.read_ns(threads))

    def bandwidth(self, threads: int) -> float | None:
        """Median of all samples in GB/s; None if there are none."""
        every = [x for samples in self._samples[threads].values() for x in samples]
        return measure.median(every) if every else None

    def floor_ms(self, read_bytes: int, threads: int) -> float | None:
        """Milliseconds that reading so many bytes takes at least."""
        bandwidth = self.bandwidth(threads)
        return None if bandwidth is None else read_bytes / bandwidth / 1e6

    def spread(self, phase: str, threads: int) -> float | None:
        """IQR over median of the samples of one phase; None with fewer than 4."""
        return measure.spread(self._samples[threads][phase])

    def to_json(self) -> dict[str, object]:
        """Bandwidths and their spread by number of threads; ``missing`` says why there are none."""
        by_threads = {
            str(threads): {
                "gb_per_s": self.bandwidth(threads),
                **{f"spread_{phase}": self.spread(phase, threads) for phase in PHASES},
                "samples": {phase: len(samples) for phase, samples in phases.items()},
            }
            for threads, phases in self._samples.items()
        }
        size = None if self._stream is None else self._stream.size
        return {"buffer_bytes": size, "threads": by_threads, "missing": self.reason or None}
