"""Arms that are a `WorldModel`: one per recipe, executor and number of threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from wmrt.core.errors import UnsupportedError, UsageError
from wmrt.model.checkpoint import Checkpoint
from wmrt.quant import Recipe, get_recipe
from wmrt.runtime.bench.arms import Arm
from wmrt.runtime.capacity import estimate, stored_layout, stored_recipe
from wmrt.runtime.probe import random_states
from wmrt.runtime.world_model import WorldModel

EXECUTORS = ("auto", "eager")
SEGMENTS = ("encode", "network", "decode")
#: Different states that an arm goes through, over and over.
STATES = 100


def build_model(
    checkpoint: Checkpoint,
    recipe: str | Recipe | None,
    executor: str,
    threads: int,
    device: str = "cpu",
) -> WorldModel:
    """A world model that computes with so many threads.

    Raises `UsageError` or `UnsupportedError` for a recipe, executor or device that cannot be had.
    """
    if executor not in EXECUTORS:
        raise UsageError(f"executor {executor!r} is unknown; there are {', '.join(EXECUTORS)}")
    torch.set_num_threads(threads)
    return WorldModel.from_checkpoint(checkpoint, recipe=recipe, device=device)


class ModelArm:
    """Steps a world model through random states, the same ones in every run.

    Raises what `build_model` does.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        recipe: str | None,
        executor: str,
        threads: int,
        device: str = "cpu",
    ) -> None:
        self._model = model = build_model(checkpoint, recipe, executor, threads, device)
        report = model.report()
        self.name = str(report.resolved["executor"])
        self.recipe = model.recipe.name
        self.threads = threads
        self.read_bytes = step_bytes(checkpoint, recipe)
        self.detail: Mapping[str, Any] = {
            "report": report.to_json(),
            "sha256": model.weights_sha256,
        }
        self._states = random_states(checkpoint.schema, STATES)
        self._next = 0
        self._timing: Sequence[int] = (0,) * len(SEGMENTS)

    def step(self) -> None:
        if torch.get_num_threads() != self.threads:  # the arm before had other ones
            torch.set_num_threads(self.threads)
        timing = self._model.step(self._states[self._next]).timing_ns
        self._next = (self._next + 1) % STATES
        self._timing = (timing["encode"], timing["network"], timing["decode"])

    def segments_ns(self) -> Sequence[int]:
        """Nanoseconds of the last step in `SEGMENTS`."""
        return self._timing

    def close(self) -> None:
        del self._model


def build_arm(
    checkpoint: Checkpoint,
    recipe: str | None,
    executor: str,
    threads: int,
    batch: int = 1,
    device: str = "cpu",
) -> Arm:
    """An arm of ``batch`` robots on one set of weights.

    Raises what `build_model` does, and `UnsupportedError` for a batch that cannot be had.
    """
    if batch != 1:
        raise UnsupportedError(f"batch {batch}: the {executor} executor steps one robot")
    return ModelArm(checkpoint, recipe, executor, threads, device)


def segments_of(arm: Arm) -> tuple[Sequence[str], Callable[[], Sequence[int]]]:
    """Names of the parts an arm's steps are made of, and what reads them after a step. No names
    where the arm is somebody else's."""
    return (SEGMENTS, arm.segments_ns) if isinstance(arm, ModelArm) else ((), tuple)


def step_bytes(checkpoint: Checkpoint, recipe: str | None) -> int:
    """Bytes that one step reads, by the ledger: weights, and what is read of the ring."""
    chosen = (
        get_recipe(recipe or "bf16")
        if checkpoint.quantization is None
        else stored_recipe(checkpoint)
    )
    read = estimate(checkpoint, chosen, stored_layout(checkpoint)).step.bytes
    assert read is not None  # an estimate from the configuration alone is never missing
    return read
