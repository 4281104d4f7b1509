"""One stored model in a process of its own: what it runs, and what it keeps in memory.

``python -m wmrt.runtime.probe FOLDER ...`` is that process; `probe` starts it and reads its answer.
A process of its own, because resident memory is the difference of two readings and anything else
that lives beside the model would be in it.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wmrt.core.errors import WmrtError
from wmrt.kernels import linear as pick
from wmrt.model.checkpoint import Checkpoint, load_checkpoint
from wmrt.model.config import preset
from wmrt.model.linear import Linear
from wmrt.model.locate import WEIGHTS_FILE
from wmrt.model.network import Network
from wmrt.model.schema import UNKNOWN, StateSchema
from wmrt.quant import Recipe, get_recipe
from wmrt.quant.resident import Resident, measure_resident
from wmrt.runtime.build import linears, to_checkpoint
from wmrt.runtime.native_session import NativeSession
from wmrt.runtime.native_watch import watch_native
from wmrt.runtime.world_model import WorldModel

STEPS = 100
#: Steps whose every linear call is looked at, after the memory was read.
WATCHED = 2


class ProbeError(WmrtError):
    """The process of a probe ended without an answer."""


def probe(folder: Path, *, recipe: str | None = None, device: str = "cpu") -> dict[str, Any]:
    """Load the checkpoint in ``folder`` in a fresh process, step it, and return what it found.

    Keys: ``report`` (the run report), ``resident`` (`account`), ``calls`` (per linear, see
    `watch`), ``float_copies`` (see there). Errors of the model are raised here with the class they
    had there.
    """
    command = [sys.executable, "-m", "wmrt.runtime.probe", str(folder), recipe or "", device]
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        last = done.stderr.strip().splitlines()[-1:] or ["it said nothing"]
        raise ProbeError(f"the model's process ended with status {done.returncode}: {last[0]}")
    answer: dict[str, Any] = json.loads(lines[-1])
    if "error" in answer:
        raise _error(answer["error"], answer["message"])
    return answer


def _error(name: str, message: str) -> WmrtError:
    known = {kind.__name__: kind for kind in WmrtError.__subclasses__()}
    return known.get(name, WmrtError)(message)


def main(folder: str, recipe: str, device: str) -> dict[str, Any]:
    """The child's work, in the order that keeps the readings clean: memory before the watching."""
    weights = Path(folder) / WEIGHTS_FILE
    before = measure_resident([weights])
    try:
        checkpoint = load_checkpoint(folder)
        states = random_states(checkpoint.schema, STEPS)
        _run(small_checkpoint(checkpoint), formats_of(checkpoint, recipe), device, states)
        gc.collect()
        ready = measure_resident([weights])
        model = _run(checkpoint, recipe or None, device, states)
    except WmrtError as error:
        return {"error": type(error).__name__, "message": str(error)}
    del checkpoint  # as for anyone who loads a model: its mapping goes unless the model uses it
    gc.collect()
    after = measure_resident([weights])
    with watch(model) as calls:
        for state in states[:WATCHED]:
            model.step(state)
    return {
        "report": model.report().to_json(),
        "resident": account(before, ready, after),
        "calls": calls,
        "float_copies": float_copies(model),
    }


def _run(
    checkpoint: Checkpoint, recipe: str | Recipe | None, device: str, states: list[dict[str, Any]]
) -> WorldModel:
    model = WorldModel.from_checkpoint(checkpoint, recipe=recipe, device=device)
    for state in states:
        model.step(state)
    return model


def formats_of(checkpoint: Checkpoint, recipe: str) -> Recipe:
    """What will run, as a recipe for any network: formats without what is this model's own."""
    stored = checkpoint.quantization
    named = get_recipe(recipe or "bf16")
    chosen = named if recipe or stored is None else Recipe.from_json(stored.get("recipe"))
    return chosen.with_(steps=(), exclude=())


def small_checkpoint(checkpoint: Checkpoint) -> Checkpoint:
    """A small model of the same states and actions, to bring in everything a step needs but
    weights: what torch sets up at a first call, tables, the slices operators decode (one of its
    layers fills such a slice), which the allocator keeps."""
    width = 4 * len(checkpoint.actions)
    config = preset("tiny").with_(layers=1, ffn=2048, action_embed=width)
    return to_checkpoint(Network(checkpoint.schema, config, checkpoint.actions), None, {})


def account(before: Resident, ready: Resident, after: Resident) -> dict[str, Any]:
    """The figures of three readings: after the imports, with the runtime warm, with the model.

    ``resident`` is the growth from the first to the last, ``workspace`` that from the first to the
    second; the totals of the last stand beside them.
    """
    figures = {
        "resident": after.since(before),
        "workspace": ready.since(before),
        "private_dirty": after.private_dirty,
        "mapped_weights": after.mapped_weights,
        "rss": after.rss,
        "pss": after.pss,
    }
    return {"steps": STEPS, **{name: figure.to_json() for name, figure in figures.items()}}


def random_states(schema: StateSchema, count: int) -> list[dict[str, Any]]:
    """Random states of ``schema``, one in five readings unknown; the same ones in every run."""
    rng = np.random.default_rng(0)
    low = np.array([c.q_low for c in schema.columns], np.int64)
    high = np.array([c.q_high for c in schema.columns], np.int64)
    q = rng.integers(low, high + 1, (count, len(low)))
    q[rng.random(q.shape) < 0.2] = UNKNOWN
    return [schema.decode(row) for row in q]


@contextmanager
def watch(model: WorldModel) -> Iterator[dict[str, dict[str, Any]]]:
    """Fills a record per linear layer while the model steps: ``calls``, ``kernel`` names seen,
    dtypes of ``input``, ``weight`` and ``output``, and ``deviation``: the largest difference to
    the reference operator on the same inputs, relative to that output's largest magnitude."""
    session, modules = model.session, linears(model.network)
    if isinstance(session, NativeSession):
        with watch_native(session.state, modules, _reference) as found:
            yield found
        return
    seen: dict[str, dict[str, Any]] = {}
    hooks = []
    for name, module in modules.items():
        record = seen[name] = {"calls": 0, "kernels": [], "deviation": 0.0}
        hooks.append(module.register_forward_hook(_watcher(record)))
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _watcher(record: dict[str, Any]) -> Any:
    def look(module: Linear, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        record["calls"] += 1
        if module.kernel not in record["kernels"]:
            record["kernels"].append(module.kernel)
        held = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
        record["weight"] = ", ".join(_dtype(t) for t in held)
        record["input"], record["output"] = _dtype(inputs[0]), _dtype(output)
        expected = _reference(module, inputs[0])
        scale = float(expected.abs().max()) or 1.0
        deviation = float((output - expected).abs().max()) / scale
        record["deviation"] = max(record["deviation"], deviation)

    return look


def _reference(module: Linear, x: Tensor) -> Tensor:
    recipe, weight = module.recipe, module.weight
    assert recipe is not None  # a network that runs has picked its operators
    op = pick(recipe.weight_format, recipe.activation, "reference")
    return op(x, module.quantized() if weight is None else weight)


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def float_copies(model: WorldModel) -> list[dict[str, Any]]:
    """Float tensors of this process with as many elements as a packed weight: what a second copy of
    it would be. The network's own tensors and the ring are none."""
    packed = {
        m.in_features * m.out_features for m in linears(model.network).values() if m.weight is None
    }
    own = {id(t) for t in (*model.network.parameters(), *model.network.buffers())}
    own |= {id(t) for t in model.session.ring.tensors().values()}
    found = []
    for item in gc.get_objects():
        if not issubclass(type(item), Tensor) or id(item) in own:
            continue
        if item.is_floating_point() and item.numel() in packed:
            found.append({"shape": list(item.shape), "dtype": _dtype(item)})
    return found


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
