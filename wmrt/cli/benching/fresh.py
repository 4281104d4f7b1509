"""The part of a bench that needs fresh processes: cold starts and memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from wmrt.cli.benching.request import Request
from wmrt.cli.benching.subject import Line, Say, Stored
from wmrt.core.errors import WmrtError
from wmrt.model.checkpoint import Checkpoint, save_checkpoint
from wmrt.model.config import ModelConfig
from wmrt.quant.layouts import from_layout, to_layout
from wmrt.runtime.bench.fresh import FreshError, Subject, cold_start, memory
from wmrt.runtime.bench.outcome import label
from wmrt.runtime.bench.weights import LAYOUT
from wmrt.runtime.build import linears
from wmrt.runtime.capacity import blueprint, stored_layout, stored_recipe

FIGURES = ("hash verdict cached", "full verification", "other layout")


def subject_of(line: Line, request: Request) -> Subject:
    """The line's arm as a fresh process builds it."""
    assert line.stored is not None and line.stored.checkpoint.path is not None
    folder = str(line.stored.checkpoint.path)
    arm, pages = line.arm, line.work.pages
    return Subject(folder, line.stored.recipe, arm.name, arm.threads, request.device, pages)


def cold_starts(lines: Sequence[Line], request: Request, say: Say) -> list[dict[str, Any]]:
    """Three figures of each line: see `FIGURES`; what cannot be had says so under ``missing``."""
    found = []
    for line in lines:
        assert line.stored is not None
        say(f"cold start of {label(line.arm, line.work)}")
        with other_layout(line.stored) as (other, reason):
            own = subject_of(line, request)
            cases: Sequence[tuple[str, Subject | None, str]] = (
                (FIGURES[0], own, "cached"),
                (FIGURES[1], own, "always"),
                (FIGURES[2], None if other is None else replace(own, folder=str(other)), "cached"),
            )
            for figure, subject, verify in cases:
                row = {"arm": label(line.arm, line.work), "figure": figure}
                found.append({**row, **_start(subject, verify, reason)})
    return found


def _start(subject: Subject | None, verify: str, reason: str) -> dict[str, Any]:
    if subject is None:
        return {"missing": reason}
    try:
        if verify == "cached":
            cold_start(subject, verify, 1)  # for the file's verdict, and the page cache
        return cold_start(subject, verify)
    except FreshError as error:
        return {"missing": str(error)}


@contextmanager
def other_layout(stored: Stored) -> Iterator[tuple[Path | None, str]]:
    """A copy of packed weights in another layout than they are stored in; None and the reason
    where nothing is stored packed."""
    checkpoint = stored.checkpoint
    if checkpoint.quantization is None:
        yield None, "the checkpoint stores no packed weights: they are packed when it is loaded"
        return
    target = "canonical" if stored_layout(checkpoint) != "canonical" else LAYOUT
    assert checkpoint.path is not None
    with tempfile.TemporaryDirectory(prefix="wmrt-bench-", dir=checkpoint.path.parent) as folder:
        copy = Path(folder) / "copy"
        try:
            save_checkpoint(copy, relaid(checkpoint, target), card="# A copy in another layout")
        except WmrtError as error:
            yield None, str(error)
            return
        yield copy, ""


def relaid(checkpoint: Checkpoint, target: str) -> Checkpoint:
    """The packed checkpoint with its weights in layout ``target``."""
    assert checkpoint.quantization is not None
    recipe, order = stored_recipe(checkpoint), stored_layout(checkpoint)
    config = ModelConfig.from_json(checkpoint.model)
    network = blueprint(checkpoint.schema, config, checkpoint.actions, recipe, order)
    tensors = dict(checkpoint.tensors)
    for name, module in linears(network).items():
        if module.weight is None:
            parts = [part for part, _ in module.named_buffers("", False)]
            own = {part: tensors.pop(f"{name}.{part}") for part in parts}
            shape = (module.out_features, module.in_features)
            weight = from_layout(recipe.weight_format, shape, order, own)
            tensors.update({f"{name}.{k}": t for k, t in to_layout(weight, target).items()})
    contract = {**checkpoint.quantization, "layout": target}
    return replace(checkpoint, quantization=contract, tensors=tensors)


def memories(lines: Sequence[Line], request: Request, say: Say) -> list[dict[str, Any]]:
    """Resident memory of each line, and its flatness if asked for."""
    found = []
    for line in lines:
        say(f"memory of {label(line.arm, line.work)}")
        answer: Mapping[str, Any] = memory(subject_of(line, request), request.flat)
        found.append({"arm": label(line.arm, line.work), **answer})
    return found
