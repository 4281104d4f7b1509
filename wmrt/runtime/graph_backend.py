"""What a captured step needs of CUDA, as a protocol, and torch's answer to it.

The protocol exists for what can go wrong with it: a test stands in for a device that refuses a
capture, fails in a replay or computes something else than eagerly.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from wmrt.core.errors import UsageError, WmrtError
from wmrt.kernels.triton.library import require_cuda
from wmrt.runtime.spin import SpinSync, request_spin


class Graph(Protocol):
    """A captured step."""

    def replay(self) -> None:
        """Queue all of it on the current stream; returns before it has run."""

    def reset(self) -> None:
        """Give its memory back."""


class GraphBackend(Protocol):
    """A device that can capture. Failures are RuntimeError, as torch raises them."""

    def unavailable(self) -> str | None:
        """Why it cannot capture at all; None if nothing is known against it."""

    def spin(self) -> SpinSync:
        """Ask for waits that spin; called before anything else touches the device."""

    def side_stream(self) -> contextlib.AbstractContextManager[None]:
        """Inside, work goes to the stream that captures, ordered after and before other work."""

    def capture(self, run: Callable[[], None], generators: Sequence[torch.Generator]) -> Graph:
        """Record what ``run`` queues, without running it, into a pool of memory of its own."""

    def synchronize(self) -> None:
        """Wait for all queued work; raises what failed in it."""

    def allocated(self) -> int | None:
        """Bytes that tensors hold on the device, None where nobody counts."""


class TorchBackend:
    """`torch.cuda` on one device. With a CPU device it only says that there is no graph.

    Making one touches no device: the first stream is made after `spin`.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream: torch.cuda.Stream | None = None

    def unavailable(self) -> str | None:
        if self.device.type != "cuda":
            return f"a CUDA Graph needs a CUDA device, this one is {self.device}"
        try:
            require_cuda()
        except WmrtError as error:
            return str(error)
        return None

    def spin(self) -> SpinSync:
        index = self.device.index
        if index is None:  # asking torch for it would make the context
            index = torch.cuda.current_device() if torch.cuda.is_initialized() else 0
        return request_spin(index)

    @contextlib.contextmanager
    def side_stream(self) -> Iterator[None]:
        side, current = self._side(), torch.cuda.current_stream(self.device)
        side.wait_stream(current)
        with torch.cuda.stream(side):
            yield
        current.wait_stream(side)

    def capture(self, run: Callable[[], None], generators: Sequence[torch.Generator]) -> Graph:
        graph = torch.cuda.CUDAGraph()
        for generator in generators:
            graph.register_generator_state(generator)
        recorder = torch.cuda.graph(
            graph,
            pool=torch.cuda.graph_pool_handle(),
            stream=self._side(),
            # Another thread's allocation must not spoil the capture (vllm-project/vllm#48053).
            capture_error_mode="thread_local",
        )
        with warnings.catch_warnings():
            # A graph of nothing replays nothing, without a word.
            warnings.filterwarnings("error", message=".*graph is empty")
            with recorder:
                run()
        return graph

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()

    def allocated(self) -> int | None:
        on_cuda = self.device.type == "cuda"
        return int(torch.cuda.memory_allocated(self.device)) if on_cuda else None

    def _side(self) -> torch.cuda.Stream:
        """The stream of warm-up and capture; of high priority, for a display may share the GPU."""
        if self._stream is None:
            stream: Any = torch.cuda.Stream  # untyped
            self._stream = stream(self.device, priority=-1)
        return self._stream


def backend_of(tensors: Sequence[Tensor]) -> TorchBackend:
    """Torch's backend of the CUDA device that ``tensors`` lie on, or of the CPU if none does.

    Beside tensors of one CUDA device there may be ones in pinned memory of the host. `UsageError`
    for tensors of two CUDA devices: a graph is of one.
    """
    found = sorted({str(t.device) for t in tensors if t.device.type == "cuda"})
    if len(found) > 1:
        raise UsageError(f"static buffers lie on {', '.join(found)}; put them on one device")
    return TorchBackend(torch.device(found[0] if found else "cpu"))
