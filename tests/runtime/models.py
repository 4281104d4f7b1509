"""Tiny checkpoints and state streams for the runtime tests."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.model.networks import build, random_state, small_schema
from wmrt.model.checkpoint import Checkpoint
from wmrt.model.schema import StateSchema
from wmrt.runtime import Step, WorldModel
from wmrt.runtime.build import to_checkpoint

#: Recipes with int8 activations, and bf16: what the command line offers.
RECIPES = ("bf16", "nvfp4", "mxfp4", "w4a8")
PACKING = RECIPES[1:]


def tiny(seed: int, schema: StateSchema | None = None, **changes: object) -> Checkpoint:
    """A float checkpoint in memory, as training writes one."""
    network = build(seed, schema or small_schema(), **changes)
    with torch.no_grad():
        network.dynamics.delta_scale.uniform_(0.1, 1.0)
        network.dynamics.fill.uniform_(0.0, 5.0)
    return to_checkpoint(network, None, {"env": "toy/Toy-v0"})


def model_of(weights: int, /, schema: StateSchema | None = None, **options: Any) -> WorldModel:
    """The model of `tiny` weights, with whatever executor there is."""
    changes = {k: options.pop(k) for k in ("selector", "past") if k in options}
    return WorldModel.from_checkpoint(tiny(weights, schema, **changes), **options)


def eager(checkpoint: Checkpoint, **options: Any) -> WorldModel:
    """A model that torch steps, operator by operator."""
    return WorldModel.from_checkpoint(checkpoint, executor="eager", **options)


#: The same of a folder.
eager_from = partial(WorldModel.from_pretrained, executor="eager")


def states(schema: StateSchema, count: int, seed: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    return [random_state(rng, schema) for _ in range(count)]


def drive(model: WorldModel, stream: list[dict[str, Any]]) -> list[Step]:
    return [model.step(state) for state in stream]


def same(a: Step, b: Step) -> bool:
    """Equal in every bit but the clock's."""
    return (
        np.array_equal(a.action, b.action)
        and np.array_equal(a.chunk, b.chunk)
        and (a.packed, a.predicted, a.reward, a.proceed, a.fingerprint, a.issues)
        == (b.packed, b.predicted, b.reward, b.proceed, b.fingerprint, b.issues)
    )


def tensors_within(root: object) -> Iterator[Tensor]:
    """Every tensor reachable from ``root``: attributes, slots, containers, closures' cells."""
    seen: set[int] = set()
    queue: list[object] = [root]
    while queue:
        item = queue.pop()
        if id(item) in seen or isinstance(item, (str, bytes, int, float, type, type(None))):
            continue
        seen.add(id(item))
        if isinstance(item, Tensor):
            yield item
            continue
        if isinstance(item, dict):
            queue += [*item.keys(), *item.values()]
        elif isinstance(item, (list, tuple, set, frozenset)):
            queue += list(item)
        if type(item).__module__.startswith(("wmrt", "torch.nn", "tests")):
            queue += list(vars(item).values()) if hasattr(item, "__dict__") else []
