"""Arms that step on a GPU: captured as one graph, eager, or compiled by torch as a peer."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from wmrt.core.errors import UnsupportedError
from wmrt.model.schema import StateSchema
from wmrt.runtime.probe import random_states
from wmrt.runtime.static_step import CapturableStep, StaticStep

SEGMENTS = ("copy", "enqueue", "wait")
#: Different states that an arm goes through, over and over.
STATES = 100


class Runner(Protocol):
    """What queues a step and waits for it; `CudaGraphExecutor` does."""

    def replay(self) -> None:
        """Queue one step."""

    def wait(self) -> None:
        """Return when it is done."""

    def close(self) -> None:
        """Give memory back."""

    def to_json(self) -> dict[str, Any]:
        """What runs."""


def encoded(
    schema: StateSchema, inputs: Mapping[str, Tensor], count: int, pinned: bool
) -> list[dict[str, Tensor]]:
    """Values for ``inputs`` of ``count`` random steps of one robot in memory of the host, of their
    types (a copy that converts waits), the same ones in every run."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for state in random_states(schema, count):
        codes, values, _ = schema.encode(state, strict=False)
        given = {
            "codes": torch.from_numpy(codes).unsqueeze(0),
            "values": torch.from_numpy(values).unsqueeze(0),
            "previous": torch.rand(inputs["previous"].shape, generator=generator) * 2 - 1,
        }
        typed = {name: tensor.to(inputs[name].dtype) for name, tensor in given.items()}
        found.append({k: t.pin_memory() if pinned else t for k, t in typed.items()})
    return found


def feed(inputs: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> None:
    """Write one step's inputs; from pinned memory the copies are queued, not waited for."""
    for name, tensor in given.items():
        inputs[name].copy_(tensor, non_blocking=True)


class GpuArm:
    """One robot, stepped through random states.

    Args:
        step: the static buffers; runner: what queues it, prepared.
        given: see `encoded`. read_bytes: by the ledger.
    """

    def __init__(
        self,
        name: str,
        recipe: str,
        step: CapturableStep,
        runner: Runner,
        given: Sequence[Mapping[str, Tensor]],
        read_bytes: int,
        kernels: Mapping[str, int],
    ) -> None:
        self.name, self.recipe, self.threads = name, recipe, 1
        self.read_bytes, self.segments = read_bytes, SEGMENTS
        self.detail: Mapping[str, Any] = {
            "graph": runner.to_json(),
            "kernels": dict(kernels),
            "weights": "random, for speed only",
        }
        self._inputs, self._runner, self._given = step.inputs, runner, given
        self._next, self._spent = 0, (0, 0, 0)

    def step(self) -> None:
        begin = time.perf_counter_ns()
        feed(self._inputs, self._given[self._next])
        self._next = (self._next + 1) % len(self._given)
        copied = time.perf_counter_ns()
        self._runner.replay()
        queued = time.perf_counter_ns()
        self._runner.wait()
        done = time.perf_counter_ns()
        self._spent = (copied - begin, queued - copied, done - queued)

    def segments_ns(self) -> Sequence[int]:
        """Nanoseconds of the last step in `SEGMENTS`."""
        return self._spent

    def close(self) -> None:
        self._runner.close()


class CompiledRunner:
    """The same step by ``torch.compile(mode="reduce-overhead")``: fused, and replayed by torch's
    own graphs. As a peer; its first call compiles.

    Raises:
        UnsupportedError: it cannot be compiled here.
    """

    def __init__(
        self, step: StaticStep, compile: Callable[..., Callable[[], None]] = torch.compile
    ) -> None:
        for tensor in step.buffers.values():  # else torch copies them in and out of its graph
            torch._dynamo.mark_static_address(tensor)
        self._device = next(iter(step.buffers.values())).device
        self._run = compile(step.run, mode="reduce-overhead", dynamic=False)
        try:
            for _ in range(3):
                self.replay()
                self.wait()
        except Exception as error:  # the compiler raises what it likes
            said = (str(error).strip().splitlines() or [""])[0][:200]
            raise UnsupportedError(
                f"torch.compile cannot be had: {type(error).__name__}: {said}"
            ) from error

    def replay(self) -> None:
        with torch.inference_mode():
            self._run()

    def wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()

    def close(self) -> None:
        torch._dynamo.reset()

    def to_json(self) -> dict[str, Any]:
        counters = torch._dynamo.utils.counters["inductor"]
        return {
            "resolved": "torch.compile reduce-overhead",
            "graphs_skipped": int(counters["cudagraph_skips"]),
        }


class DeviceStream:
    """Copies memory of the device: `size` bytes are read or written by one copy.

    Args:
        buffer: bytes of each of the two buffers; more than the device's caches hold many times.
    """

    def __init__(self, device: torch.device, buffer: int) -> None:
        self.size = 2 * buffer
        self._from, self._to = (
            torch.zeros(buffer, dtype=torch.uint8, device=device) for _ in range(2)
        )
        self._cuda = device.type == "cuda"

    def read_ns(self, threads: int) -> int:
        """Nanoseconds of one copy, by the device's own clock where it has one."""
        if not self._cuda:
            begin = time.perf_counter_ns()
            self._to.copy_(self._from)
            return max(time.perf_counter_ns() - begin, 1)
        event: Any = torch.cuda.Event  # untyped
        start, end = (event(enable_timing=True) for _ in range(2))
        start.record()
        self._to.copy_(self._from)
        end.record()
        end.synchronize()
        return max(int(start.elapsed_time(end) * 1e6), 1)
