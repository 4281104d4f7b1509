"""Random weights of a preset, made once and kept: packed as they are drawn, in the layout read.

Under ``$XDG_CACHE_HOME/wmrt/bench`` (default ``~/.cache``), in a folder named by everything that
decides its bytes: another preset, recipe, seed or schema is another folder.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from wmrt.core.errors import CheckpointError, UsageError
from wmrt.model import verdicts
from wmrt.model.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from wmrt.model.config import ModelConfig, preset
from wmrt.model.random_init import random_checkpoint
from wmrt.quant import Recipe, get_recipe, quantize
from wmrt.quant.formats import block_format
from wmrt.quant.layouts import get_layout, to_layout
from wmrt.runtime.build import linears, plan_recipes
from wmrt.runtime.capacity import blueprint, ledger

#: What the native kernels read.
LAYOUT = "cpu_interleaved"
#: Part of a folder's name; counted up when the same request would make other bytes.
_FORM = 1


def preset_checkpoint(
    name: str, recipe: str, layout: str | None = None, like: str = "highway", seed: int = 0
) -> Checkpoint:
    """Random weights of preset ``name`` stored under ``recipe``; made if they are not there yet.

    Args:
        layout: of packed weights; None: `LAYOUT` where the format has it, else canonical.
        like: checkpoint whose states and actions they take.

    Memory while they are made: the stored tensors, and one layer in float32.

    Raises:
        UsageError: an unknown preset or recipe, no place for the cache, or too small a disk.
        CheckpointError: what is kept is damaged; the message names the folder to remove.
    """
    config, chosen, source = preset(name), get_recipe(recipe), load_checkpoint(like)
    order = layout or default_layout(chosen)
    folder = _folder(name, config, chosen, order, source, seed)
    if not folder.exists():
        made = _make(name, config, chosen, order, source, seed)
        _require_room(folder.parent, made)
        save_checkpoint(folder, made, card=_card(name, chosen, seed))
    try:
        return load_checkpoint(folder)
    except CheckpointError as error:
        raise CheckpointError(f"{error} (kept weights: remove {folder} to make it anew)") from None


def default_layout(recipe: Recipe) -> str:
    """The layout that packed weights of ``recipe`` are kept in."""
    if recipe.packs and get_layout(LAYOUT).takes(block_format(recipe.weight_format)):
        return LAYOUT
    return "canonical"


def stored_bytes(name: str, recipe: str, like: str = "highway") -> int:
    """Bytes of the weights of a preset under ``recipe``, from the configuration alone."""
    chosen, source = get_recipe(recipe), load_checkpoint(like)
    plan = blueprint(source.schema, preset(name), source.actions, chosen, default_layout(chosen))
    size = ledger(plan).weights.bytes
    assert size is not None  # an estimate from the configuration alone is never missing
    return size


def _folder(
    name: str, config: ModelConfig, recipe: Recipe, layout: str, like: Checkpoint, seed: int
) -> Path:
    beside = verdicts.cache_dir()
    if beside is None:
        raise UsageError("there is no home to keep weights in; set XDG_CACHE_HOME to a folder")
    decides = {
        "config": config.to_json(),
        "recipe": recipe.to_json(),
        "layout": layout,
        "like": like.weights_sha256,
        "seed": seed,
        "torch": torch.__version__,
        "form": _FORM,
    }
    digest = hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()
    return beside.parent / "bench" / f"{name}-{recipe.name}-{digest[:16]}"


def _make(
    name: str, config: ModelConfig, recipe: Recipe, layout: str, like: Checkpoint, seed: int
) -> Checkpoint:
    if not recipe.packs:
        return random_checkpoint(name, config, like, seed)
    network = blueprint(like.schema, config, like.actions, recipe)
    plan = plan_recipes(network, recipe)
    packed = {layer for layer in linears(network) if plan[layer].packs}

    def store(drawn: str, tensor: Tensor) -> Mapping[str, Tensor]:
        layer = drawn.removesuffix(".weight")
        if layer not in packed:
            return {drawn: tensor}
        held = quantize(tensor.float(), recipe.weight_format)
        return {f"{layer}.{part}": value for part, value in to_layout(held, layout).items()}

    made = random_checkpoint(name, config, like, seed, store)
    return replace(made, quantization={"recipe": recipe.to_json(), "layout": layout})


def _require_room(folder: Path, made: Checkpoint) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    size = sum(t.numel() * t.element_size() for t in made.tensors.values())
    free = shutil.disk_usage(folder).free
    if free < size * 1.1:
        raise UsageError(
            f"{folder}: {free / 1e9:.1f} GB are free, the weights take {size / 1e9:.1f} GB; make "
            "room or set XDG_CACHE_HOME to another disk"
        )


def _card(name: str, recipe: Recipe, seed: int) -> str:
    return f"""# wmrt {name}, {recipe.name}, random weights

**Random weights, for speed and memory only.** Nothing was trained: actions and predictions mean
nothing. Made by `wmrt bench` with seed {seed}; may be removed, the next run makes it again.
"""
