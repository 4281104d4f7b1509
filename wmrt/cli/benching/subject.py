"""The arms of a bench: checkpoints found or made, models built of them, peers beside them."""

from __future__ import annotations

import fnmatch
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from wmrt.cli.benching.request import DEFAULT_MODEL, DEFAULT_RECIPE, Request, require_memory
from wmrt.core.errors import UnsupportedError
from wmrt.model.checkpoint import Checkpoint, load_checkpoint
from wmrt.model.config import ModelConfig, preset
from wmrt.quant import get_recipe
from wmrt.quant.ledger import Ledger
from wmrt.runtime.bench.arms import Arm, Missing
from wmrt.runtime.bench.floor import buffer_bytes
from wmrt.runtime.bench.model import ModelArm
from wmrt.runtime.bench.outcome import Work
from wmrt.runtime.bench.weights import default_layout, preset_checkpoint
from wmrt.runtime.build import KEEP_BF16, linears
from wmrt.runtime.capacity import blueprint, ledger, stored_layout, stored_recipe

Say = Callable[[str], None]


@dataclass(frozen=True)
class Stored:
    """Weights as one recipe runs them. ``recipe`` is None where they are stored under their own."""

    name: str
    recipe: str | None
    checkpoint: Checkpoint = field(repr=False)


@dataclass
class Line:
    """An arm that is built, what it is asked to do, and the weights it was built of."""

    arm: Arm
    work: Work
    stored: Stored | None


@dataclass
class Stand:
    """Everything that will be measured, and what was asked for and cannot be."""

    lines: list[Line]
    missing: list[Missing]
    stored: list[Stored]


def require_room(request: Request) -> int:
    """Refuse what will not fit into memory, before anything is made; returns the size in bytes of
    the floor's buffer."""
    ledgers = {name: _ledger(request, name) for name in recipes_of(request)}
    held = {name: _bytes(found) for name, found in ledgers.items()}
    buffer = buffer_bytes(max(_read(found) for found in ledgers.values()))
    arms = len(request.arms())
    require_memory(buffer + arms * sum(held.values()), request.subject)
    return buffer


def recipes_of(request: Request) -> tuple[str, ...]:
    """Names of the recipes that run; a packed model's own where nothing was asked for."""
    if request.recipes:
        return request.recipes
    if request.preset is None:
        checkpoint = load_checkpoint(request.model or DEFAULT_MODEL)
        if checkpoint.quantization is not None:
            return (stored_recipe(checkpoint).name,)
    return (DEFAULT_RECIPE,)


def _ledger(request: Request, recipe: str) -> Ledger:
    """What the weights take under a recipe, from the configuration alone."""
    source = load_checkpoint(request.model or DEFAULT_MODEL)
    config = ModelConfig.from_json(source.model)
    chosen = get_recipe(recipe)
    layout = stored_layout(source)
    if request.preset is not None:
        config, layout = preset(request.preset), default_layout(chosen)
    elif source.quantization is None:
        layout = "canonical"
    return ledger(blueprint(source.schema, config, source.actions, chosen, layout))


def _bytes(found: Ledger) -> int:
    return found.column("held").bytes or 0


def _read(found: Ledger) -> int:
    return found.step.bytes or 0


def stored(request: Request, say: Say) -> list[Stored]:
    """Weights of every recipe: the model's file, or random ones of a preset, made if need be."""
    found = []
    for recipe in recipes_of(request):
        if request.preset is not None:
            say(f"weights of {request.preset}, {recipe}")
            checkpoint = preset_checkpoint(request.preset, recipe)
            packed = checkpoint.quantization is not None
            found.append(Stored(recipe, None if packed else recipe, checkpoint))
        else:
            checkpoint = load_checkpoint(request.model or DEFAULT_MODEL)
            found.append(Stored(recipe, recipe, checkpoint))
    return found


@contextmanager
def stand(request: Request, say: Say) -> Iterator[Stand]:
    """Build every arm; all are closed at the end."""
    weights = stored(request, say)
    made = Stand([], [], weights)
    try:
        for one in weights:
            for executor, threads, batch, pages in request.arms():
                say(f"building {executor} {one.name}, {threads} threads, batch {batch}")
                _add(made, request, one, executor, threads, batch, pages)
        if not made.lines:
            raise UnsupportedError("; ".join(m.reason for m in made.missing))
        if request.peers:
            _add_peers(made, request, weights[0].checkpoint, say)
        _mark_controls(made)
        yield made
    finally:
        for line in made.lines:
            line.arm.close()


def _add(
    made: Stand,
    request: Request,
    one: Stored,
    executor: str,
    threads: int,
    batch: int,
    pages: str,
) -> None:
    device = request.device
    try:
        arm = ModelArm(one.checkpoint, one.recipe, executor, threads, batch, device, pages)
    except UnsupportedError as error:
        if batch == 1:
            raise
        made.missing.append(Missing(f"{executor} {one.name} {threads}t b{batch}", str(error)))
        return
    work = Work(network_hash(one.checkpoint), device, batch, pages=pages)
    made.lines.append(Line(arm, work, one))


def _mark_controls(made: Stand) -> None:
    """Where the native executor runs, torch operator by operator is the control arm."""
    own = {line.arm.name for line in made.lines if line.work.role == "own"}
    for line in made.lines:
        if line.work.role == "own" and line.arm.name == "eager" and "native" in own:
            line.work = replace(line.work, role="control")


def _add_peers(made: Stand, request: Request, checkpoint: Checkpoint, say: Say) -> None:
    from wmrt.runtime.bench import peers

    shapes = linear_shapes(checkpoint)
    work = Work(network_hash(checkpoint), "cpu", 1, "peer")
    for threads in request.threads:
        say(f"building peers, {threads} threads")
        for arm in peers.build(shapes, threads):
            if isinstance(arm, Missing):
                if arm not in made.missing:
                    made.missing.append(arm)
            else:
                made.lines.append(Line(arm, work, None))


def linear_shapes(checkpoint: Checkpoint) -> list[tuple[str, int, int]]:
    """Name, N and K of the linear layers that a recipe applies to, in the order of a step."""
    config = ModelConfig.from_json(checkpoint.model)
    network = blueprint(checkpoint.schema, config, checkpoint.actions, get_recipe("bf16"))
    return [(name, m.out_features, m.in_features) for name, m in linears(network).items()]


def packed_weights(checkpoint: Checkpoint) -> int:
    """Number of weights in the linear layers that a recipe packs."""
    return sum(
        n * k
        for name, n, k in linear_shapes(checkpoint)
        if not any(fnmatch.fnmatchcase(name, pattern) for pattern in KEEP_BF16)
    )


def network_hash(checkpoint: Checkpoint) -> str:
    """16 hex digits over the configuration and the schema: who has the same does the same work."""
    config: Mapping[str, object] = checkpoint.model
    text = json.dumps([config, checkpoint.schema.hash], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
