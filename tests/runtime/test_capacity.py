"""The ledger of a model: estimates against files, against what runs, and against what is read."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.runtime.models import RECIPES, states, tiny
from wmrt.model.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from wmrt.model.weight_file import measured_overhead
from wmrt.quant import get_recipe
from wmrt.quant.ledger import COLUMNS
from wmrt.runtime import WorldModel
from wmrt.runtime.build import build_network, to_checkpoint
from wmrt.runtime.capacity import estimate, measure, stored_recipe


def stored(seed: int, recipe: str, folder: Path) -> Checkpoint:
    """A checkpoint saved under ``recipe`` and opened again."""
    source = tiny(seed)
    if recipe != "bf16":
        network = build_network(source, recipe, torch.device("cpu")).network
        source = to_checkpoint(network, get_recipe(recipe), source.provenance)
    save_checkpoint(folder, source, card="# judged")
    return load_checkpoint(folder)


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_estimate_is_the_file(recipe: str, seed: int, tmp_path: Path) -> None:
    checkpoint = stored(seed, recipe, tmp_path / "model")
    weights = tmp_path / "model" / "model.safetensors"
    estimated, measured = estimate(tiny(seed), recipe), measure(checkpoint)
    assert estimated.file.bytes == weights.stat().st_size
    assert estimated.overhead.bytes == measured_overhead(weights)
    assert estimated.file.how == "estimated" and measured.weights.how == "measured"
    for column in COLUMNS:
        assert measured.column(column).bytes == estimated.column(column).bytes
    assert [e.name for e in measured.entries] == [e.name for e in estimated.entries]
    assert stored_recipe(checkpoint).name == recipe


@pytest.mark.parametrize("recipe", RECIPES)
def test_what_is_held_is_what_the_run_report_counts(recipe: str, seed: int, tmp_path: Path) -> None:
    model = WorldModel.from_checkpoint(stored(seed, recipe, tmp_path / "model"))
    ledger = estimate(tiny(seed), recipe)
    report = model.report()
    rest = ledger_ring(model) + report.bytes.get("workspace", 0)
    assert ledger.column("held").bytes == report.resident_bytes - rest
    assert ledger.ring.bytes == ledger_ring(model)


def ledger_ring(model: WorldModel) -> int:
    return model.session.ring.nbytes


def test_originals_stay_mapped_beside_widened_copies(seed: int) -> None:
    packed, floats = (
        estimate(tiny(seed), recipe, executor="eager") for recipe in ("nvfp4", "bf16")
    )
    widened = sum(
        entry.total.bytes or 0
        for entry in packed.entries
        if entry.format == "bfloat16" and entry.figure("held") != entry.total
        if (entry.figure("held").bytes or 0) == 2 * (entry.total.bytes or 0)
    )
    assert packed.originals.bytes == floats.originals.bytes == widened > 0
    # A file whose weights are rearranged is closed afterwards.
    converted = estimate(tiny(seed), "nvfp4", "cpu_interleaved", executor="eager")
    assert converted.originals.bytes == 0


def test_only_the_rows_counted_as_read_are_read(seed: int) -> None:
    """Rows of the tables that a step does not touch may hold anything."""
    model = WorldModel.from_checkpoint(tiny(seed))
    ledger = {entry.name: entry for entry in estimate(tiny(seed), "bf16").entries}
    state = states(model.schema, 1, seed)[0]
    memory = model.network.fusion.memory
    codes = torch.from_numpy(model.schema.encode(state).codes)
    rows = set(memory.row_index(codes).tolist())
    table = ledger["fusion.memory.table"].figure("read").bytes
    assert table is not None and len(rows) * memory.table[0].nbytes <= table
    with torch.no_grad():
        spoilt = [i for i in range(len(memory.table)) if i not in rows]
        memory.table[spoilt] = torch.nan
    assert bool(torch.isfinite(torch.from_numpy(model.step(state).chunk)).all())
    assert ledger["action_quant.correct.0.weight"].figure("read").bytes == 0
    full = ledger["blocks.0.qkv.weight"]
    assert full.figure("read") == full.figure("held")
    partial = ledger["fusion.fields.weight"]
    assert (partial.figure("read").bytes or 0) < (partial.figure("held").bytes or 0)


def test_no_numbers_are_needed_to_estimate(seed: int) -> None:
    checkpoint = tiny(seed)
    hollow = Checkpoint(
        checkpoint.schema, checkpoint.model, checkpoint.actions, None, {}, tensors={}
    )
    assert estimate(hollow, "w4a8").file == estimate(checkpoint, "w4a8").file
