"""A whole step as one CUDA Graph: warmed up, captured, proved equal to an eager step, replayed.

A step of the 1.3B preset is over a hundred launches of a few microseconds each; queued one by one
by Python they take longer than the GPU needs for them. A graph is queued in one call.
"""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from wmrt.core import frozen_garbage
from wmrt.core.errors import DeviceError, UnsupportedError, UsageError
from wmrt.runtime.graph_backend import Graph, GraphBackend, backend_of
from wmrt.runtime.graph_life import Life, first_line
from wmrt.runtime.graph_states import Event, ResolvedGraph, State, check_mode
from wmrt.runtime.spin import SpinSync
from wmrt.runtime.static_buffers import StaticBuffers


class CudaGraphExecutor:
    """Runs a step that works on static buffers, as a captured graph where that can be had.

    Args:
        run: one step. Reads and writes `buffers` in place and keeps nothing else from step to step.
        buffers: everything a step reads that changes and everything it writes, by name; not the
            weights. The mapping is asked again at every replay (see `Attributes`).
        graph: ``on``: captured, or an error that says why not; ``auto``: captured, or eager with
            the reason in `resolved`; ``off``: eager.
        backend: what captures; None: torch on the device of the buffers.
        generators: those that `run` draws from.
        proof: the same step in another way, which a replay is compared with; None: `run`.
        runs: eager runs before the capture, which compile and tune kernels. replays: after it.

    Not for several threads at once. What `prepare` runs leaves the buffers as they were.

    Raises:
        UsageError: an unknown mode, no buffers, or buffers on two devices.
    """

    def __init__(
        self,
        run: Callable[[], None],
        buffers: Mapping[str, Tensor],
        *,
        graph: str = "auto",
        backend: GraphBackend | None = None,
        generators: Sequence[torch.Generator] = (),
        proof: Callable[[], None] | None = None,
        runs: int = 3,
        replays: int = 5,
    ) -> None:
        check_mode(graph)
        if runs < 1 or replays < 1:
            raise UsageError(f"runs={runs}, replays={replays}: at least 1 of each")
        self._run, self._mode = run, graph
        self._proof = run if proof is None else proof
        self._buffers = StaticBuffers(buffers)
        self._backend = backend_of(self._buffers.tensors) if backend is None else backend
        self._generators = tuple(generators)
        self._counts = (runs, replays)
        self._life = Life()
        self._graph: Graph | None = None
        self._held: weakref.finalize[[], CudaGraphExecutor] | None = None
        self.resolved: ResolvedGraph | None = None
        self.spin = SpinSync(False, "not asked for: nothing was captured")

    @property
    def state(self) -> State:
        return self._life.state

    @property
    def failure(self) -> str:
        """Why it refuses further steps; empty unless it failed."""
        return self._life.failure

    @torch.inference_mode()
    def prepare(self) -> ResolvedGraph:
        """Capture the step, or find out why it is not to be.

        Raises:
            UnsupportedError: ``graph="on"`` and no graph can be had.
            DeviceError, OutOfMemoryError: the device failed, or had no memory left.
            UsageError: called twice. Errors of `run` itself pass through, from its first run.
        """
        self._life.require(Event.START)
        refused = "switched off" if self._mode == "off" else self._backend.unavailable()
        if refused is None:
            refused = self._build()
        if refused is None:
            told = "captured; a replay was equal to an eager step in every bit"
            self.resolved = ResolvedGraph(True, told)
        elif self._mode == "on":
            self._life.fail(refused)
            raise UnsupportedError(
                f"graph=on cannot be had: {refused}; use graph=auto or graph=off"
            )
        else:
            self._life.to(Event.REFUSED)
            self.resolved = ResolvedGraph(False, refused)
        return self.resolved

    def replay(self) -> None:
        """Queue one step; `wait` returns when it is done. Eagerly where there is no graph.

        Raises:
            UsageError: not prepared, closed, or a static buffer was replaced (the message names
                it); the executor stays as it is.
            DeviceError, OutOfMemoryError: the device failed now or before. There are no more steps
                after that: what the buffers hold is unknown.
        """
        self._life.require(Event.REPLAY)
        self._buffers.check()
        with self._life.failing("a step"):
            if self._graph is not None:
                self._graph.replay()
            else:
                with torch.inference_mode():
                    self._run()

    def wait(self) -> None:
        """Return when all queued steps are done. Raises as `replay` does."""
        self._life.require(Event.REPLAY)
        with self._life.failing("a step"):
            self._backend.synchronize()

    def close(self) -> None:
        """Give the graph's memory back, and what was set aside back to the garbage collector.

        Waits for queued steps; `DeviceError` if one of them failed.
        """
        self._life.to(Event.CLOSE)
        self._drop()

    def __enter__(self) -> CudaGraphExecutor:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def to_json(self) -> dict[str, Any]:
        """What runs, for a run report."""
        return {
            "requested": self._mode,
            "resolved": None if self.resolved is None else self.resolved.name,
            "reason": None if self.resolved is None else self.resolved.reason,
            "state": self._life.state.value,
            "failure": self._life.failure or None,
            "spin": self.spin.to_json(),
        }

    # -- building -------------------------------------------------------------------------------

    def _build(self) -> str | None:
        """Warm up, capture, prove. Returns why there is no graph although the device is sound."""
        self._life.to(Event.START)
        with self._life.failing("a warm-up run"):
            self.spin = self._backend.spin()
            before = self._saved()
            with self._backend.side_stream():
                for _ in range(self._counts[0]):
                    self._run()
            self._restored(before)
        self._life.to(Event.WARMED)
        with self._life.ended_by_any("preparing"):
            refused = self._refusal(before)
        if refused is not None:
            # Capture errors leave the device sound, unlike a fault of a kernel: see which it was.
            with self._life.failing(f"what remains of a capture ({refused})"):
                self._restored(before)
                self._drop()
            return refused
        with self._life.failing("a warm replay"):
            self._restored(before)
            assert self._graph is not None  # it was captured
            for _ in range(self._counts[1]):
                self._graph.replay()
            self._restored(before)
        frozen_garbage.hold()
        self._held = weakref.finalize(self, frozen_garbage.release)
        self._life.to(Event.PROVED)
        return None

    def _refusal(self, before: Mapping[str, Tensor]) -> str | None:
        """Capture and compare a replay with an eager run; what stands against the graph, if
        anything does."""
        first: list[Exception] = []  # ending a capture that failed fails again

        def run() -> None:
            try:
                self._run()
            except Exception as error:
                first.append(error)
                raise

        try:
            with _no_collection():
                self._graph = self._backend.capture(run, self._generators)
        except Exception as error:
            return f"the capture failed: {first_line(first[0] if first else error)}"
        self._life.to(Event.CAPTURED)
        try:
            self._proof()
            self._backend.synchronize()
            eager = self._saved()
            self._restored(before)
            self._graph.replay()
            self._backend.synchronize()
            names = self._buffers.different(eager)
        except Exception as error:
            return f"the first replay failed: {first_line(error)}"
        if not names:
            return None
        return (
            f"a replay differs from an eager step in {', '.join(names)}: the step does what a "
            "capture does not repeat (Python that depends on values, chance without a generator "
            "named here, sums by atomics)"
        )

    def _saved(self) -> dict[str, Tensor]:
        """Buffers and generators as they are; generators under names that no buffer has."""
        states = {f" {i}": g.get_state().clone() for i, g in enumerate(self._generators)}
        return {**self._buffers.copies(), **states}

    def _restored(self, saved: Mapping[str, Tensor]) -> None:
        self._backend.synchronize()
        self._buffers.restore(saved)
        for index, generator in enumerate(self._generators):
            generator.set_state(saved[f" {index}"].clone())
        self._backend.synchronize()

    def _drop(self) -> None:
        graph, self._graph = self._graph, None
        if self._held is not None:
            self._held()  # once, also if it was let go without `close`
        # After a fault of the device its memory cannot be given back, and need not be.
        if graph is None or self._life.failure:
            return
        try:
            self._backend.synchronize()  # nobody else gets its memory while a step still runs
            graph.reset()
        except RuntimeError as error:
            raise DeviceError(f"giving a graph back failed: {first_line(error)}") from error


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """A collection inside a capture may free memory of the device, which a capture refuses."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
