"""What one bench was asked for, checked before anything is built."""

from __future__ import annotations

import os
from dataclasses import dataclass
from fractions import Fraction

from wmrt.core import machine, memory
from wmrt.core.errors import OutOfMemoryError, UsageError

#: Where float weights are given and nothing is said.
DEFAULT_RECIPE = "nvfp4"
DEFAULT_MODEL = "highway"
#: Robots per weight read.
MOST_ROBOTS = 16


@dataclass(frozen=True)
class Request:
    """Options of ``wmrt bench`` that decide what runs.

    Args:
        model, preset: one of them, or neither for the shipped model.
        recipes: none: what a packed model stores, else `DEFAULT_RECIPE`.
        pages: where the native executor's weights lie.
        threads: numbers of threads. batches: numbers of robots per step.
        rates: None is back to back.
        deadline_ms: from tick to answer; also a gate, as ``max_ratio`` to the floor is.
        flat: steps of the memory test, 0 for none. cold: whether cold starts are measured.
        resident: whether resident memory is.
    """

    model: str | None
    preset: str | None
    recipes: tuple[str, ...]
    executors: tuple[str, ...]
    threads: tuple[int, ...]
    batches: tuple[int, ...]
    rates: tuple[Fraction | None, ...]
    deadline_ms: float | None
    max_ratio: float | None
    device: str = "cpu"
    isolate: bool = False
    peers: bool = False
    cold: bool = True
    resident: bool = True
    flat: int = 0
    pages: tuple[str, ...] = ("auto",)

    def arms(self) -> list[tuple[str, int, int, str]]:
        """Executor, threads, batch and pages of each arm; pages are the native executor's alone."""
        return [
            (executor, threads, batch, pages)
            for executor in self.executors
            for threads in self.threads
            for batch in self.batches
            for pages in (self.pages if executor in ("auto", "native") else ("auto",))
        ]

    @property
    def subject(self) -> str:
        """What is benched, for people."""
        return self.model or (f"preset {self.preset}" if self.preset else DEFAULT_MODEL)


def check(request: Request) -> Request:
    """The request, or `UsageError` for what cannot be meant on this machine."""
    from wmrt.kernels.native.library import isa
    from wmrt.quant import get_recipe
    from wmrt.runtime.checks import resolve_device

    if request.model is not None and request.preset is not None:
        raise UsageError(
            f"{request.model} and --preset {request.preset}: give a model, or a preset of random "
            "weights"
        )
    for recipe in request.recipes:
        get_recipe(recipe)
    resolve_device(request.device)
    if os.environ.get("WMRT_ISA"):  # asked for by name: absent is an error, not a reason
        isa()
    usable = machine.usable_cpus()
    for threads in request.threads:
        if not 1 <= threads <= usable:
            raise UsageError(f"--threads {threads}: this process may use 1 to {usable} cores")
    for batch in request.batches:
        if not 1 <= batch <= MOST_ROBOTS:
            raise UsageError(f"--batch {batch}: one weight read serves 1 to {MOST_ROBOTS} robots")
    return request


def require_memory(needed: int, what: str) -> None:
    """`OutOfMemoryError` when ``needed`` bytes are not there, of the machine or of this process's
    control group; nothing where the system does not tell."""
    there = memory.physical()
    if there is not None and there.bytes < needed:
        raise OutOfMemoryError(
            f"{what} needs {needed / 1e9:.1f} GB of memory, {there.bytes / 1e9:.1f} GB are "
            f"available {there.limit}; give fewer recipes, threads or batches, or a smaller preset"
        )
