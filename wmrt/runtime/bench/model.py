"""Arms that are a `WorldModel`: one per recipe, executor and number of threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from wmrt.model.checkpoint import Checkpoint
from wmrt.quant import Recipe, get_recipe
from wmrt.runtime.bench.arms import Arm, Segmented
from wmrt.runtime.capacity import estimate, stored_layout, stored_recipe
from wmrt.runtime.group import SessionGroup
from wmrt.runtime.probe import random_states
from wmrt.runtime.world_model import WorldModel

SEGMENTS = ("encode", "network", "decode")
#: Different states that an arm goes through, over and over.
STATES = 100


def build_model(
    checkpoint: Checkpoint,
    recipe: str | Recipe | None,
    executor: str,
    threads: int,
    device: str = "cpu",
    pages: str = "auto",
) -> WorldModel:
    """A world model that computes with so many threads.

    Raises `UsageError` or `UnsupportedError` for a recipe, executor, device or pages that cannot be
    had.
    """
    return WorldModel.from_checkpoint(
        checkpoint, recipe=recipe, device=device, executor=executor, threads=threads, pages=pages
    )


class ModelArm:
    """Steps one robot, or a group that shares each read of the weights, through random states, the
    same ones in every run.

    Raises what `build_model` does, and `UnsupportedError` for a group that cannot be had.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        recipe: str | None,
        executor: str,
        threads: int,
        batch: int = 1,
        device: str = "cpu",
        pages: str = "auto",
    ) -> None:
        model = build_model(checkpoint, recipe, executor, threads, device, pages)
        report = model.report()
        self.segments = SEGMENTS
        self.name = str(report.resolved["executor"])
        self.recipe = model.recipe.name
        self.threads = int(report.resolved["threads"])
        self.read_bytes = step_bytes(checkpoint, recipe, self.name, batch)
        self.detail: Mapping[str, Any] = {
            "report": report.to_json(),
            "sha256": model.weights_sha256,
        }
        self._step = _stepper(model, batch)
        self._torch_threads = threads if self.name == "eager" else None
        self._states = random_states(checkpoint.schema, STATES + batch)
        self._batch, self._next = batch, 0
        self._timing: Sequence[int] = (0,) * len(SEGMENTS)

    def step(self) -> None:
        wanted = self._torch_threads
        if wanted is not None and torch.get_num_threads() != wanted:
            torch.set_num_threads(wanted)  # the arm before had other ones
        timing = self._step(self._states[self._next : self._next + self._batch])
        self._next = (self._next + 1) % STATES
        self._timing = (timing["encode"], timing["network"], timing["decode"])

    def segments_ns(self) -> Sequence[int]:
        """Nanoseconds of the last step in `SEGMENTS`."""
        return self._timing

    def close(self) -> None:
        del self._step


Stepper = Callable[[Sequence[dict[str, Any]]], Mapping[str, int]]


def _stepper(model: WorldModel, batch: int) -> Stepper:
    """Steps as many robots as there are states; returns the nanoseconds of the parts."""
    if batch == 1:
        return lambda states: model.step(states[0]).timing_ns
    group = SessionGroup(model, batch)
    return lambda states: group.step(states)[0].timing_ns


def segments_of(arm: Arm) -> tuple[Sequence[str], Callable[[], Sequence[int]]]:
    """Names of the parts an arm's steps are made of, and what reads them after a step. No names
    where the arm is somebody else's."""
    return (arm.segments, arm.segments_ns) if isinstance(arm, Segmented) else ((), tuple)


def step_bytes(checkpoint: Checkpoint, recipe: str | None, executor: str, batch: int = 1) -> int:
    """Bytes that one step reads, by the ledger: weights once, and of each robot's ring its part."""
    packed = checkpoint.quantization is not None
    chosen = stored_recipe(checkpoint) if packed else get_recipe(recipe or "bf16")
    found = estimate(checkpoint, chosen, stored_layout(checkpoint), executor)
    read, ring = found.column("read").bytes, found.ring_read.bytes
    assert read is not None and ring is not None  # estimates are never missing
    return read + batch * ring
