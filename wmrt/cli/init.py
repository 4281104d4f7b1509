"""``wmrt init``: a checkpoint of random weights, for speed and memory."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from wmrt.cli.common import console, json_option, out_option, write_result

if TYPE_CHECKING:
    from wmrt.model.checkpoint import Checkpoint


@click.command(epilog="Example: wmrt init --preset 1.3b --seed 1 --out runs/random-1.3b")
@click.option(
    "--preset",
    required=True,
    type=click.Choice(["1.3b", "small", "mini", "tiny"]),
    help="Size of the network.",
)
@click.option(
    "--like",
    default="highway",
    show_default=True,
    metavar="MODEL",
    help="Checkpoint whose states and actions it takes: a packaged name, a folder, or owner/name.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@out_option(beside=True, required=True, help="Checkpoint folder to write.")
@json_option
def command(preset: str, like: str, seed: int, out: Path, json_path: Path | None) -> None:
    """Write a checkpoint of random weights.

    It measures speed and memory of a size that nobody has trained, and nothing else: its actions
    mean nothing.
    """
    from wmrt.model.checkpoint import load_checkpoint, require_replaceable, save_checkpoint
    from wmrt.model.config import preset as named
    from wmrt.model.random_init import random_checkpoint
    from wmrt.quant.resident import peak_resident

    begin = time.perf_counter()
    source = load_checkpoint(like)
    require_replaceable(out.absolute())
    made = random_checkpoint(preset, named(preset), source, seed)
    save_checkpoint(out, made, card=card(made))
    results = {
        **{key: made.provenance[key] for key in ("weights", "preset", "seed", "parameters")},
        "bytes": (out / "model.safetensors").stat().st_size,
        "seconds": time.perf_counter() - begin,
        "peak_rss": peak_resident().to_json(),
    }
    console().print(_line(out, results), markup=False, soft_wrap=True)
    sha256 = load_checkpoint(out).weights_sha256
    write_result(json_path, results, model=str(out), model_sha256=sha256)


def card(checkpoint: Checkpoint) -> str:
    """README.md of a checkpoint of random weights."""
    made, model = checkpoint.provenance, checkpoint.model
    return f"""# wmrt {made["preset"]}, random weights

**Random weights, for speed and memory only.** Nothing was trained: its actions and predictions mean
nothing, and no result about driving can come from it.

{made["parameters"]:,} parameters: d_model {model["d_model"]}, {model["layers"]} layers,
{model["heads"]} heads ({model["kv_heads"]} KV), FFN {model["ffn"]}. Seed {made["seed"]}. States and
actions are those of the checkpoint with tree hash `{made["schema_of"]}`.
"""


def _line(out: Path, results: dict[str, Any]) -> str:
    peak = results["peak_rss"]["bytes"]
    memory = "missing" if peak is None else f"{peak / 1e9:.2f} GB"
    return (
        f"{out}: {results['parameters']:,} random parameters, {results['bytes']:,} bytes, "
        f"{results['seconds']:.1f} s, peak memory {memory}"
    )
