"""The ledger: every byte once, each figure with its origin, nothing missing counted as zero."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from wmrt.core.errors import QuantizationError
from wmrt.quant import QuantizedTensor, quantize
from wmrt.quant.formats import FORMATS
from wmrt.quant.ledger import (
    COLUMNS,
    MISSING,
    Figure,
    Ledger,
    estimated_entry,
    excluded_entry,
    packed_entry,
    total,
    weight_entry,
)


def weight(seed: int, shape: tuple[int, int], format: str) -> QuantizedTensor:
    rng = np.random.default_rng(seed)
    return quantize(torch.from_numpy(rng.standard_normal(shape)), format)


@pytest.mark.parametrize("shape", [(1, 1), (3, 40), (5, 129), (16, 256)])
@pytest.mark.parametrize("format", list(FORMATS))
def test_an_entry_is_the_bytes_held(format: str, shape: tuple[int, int], seed: int) -> None:
    q = weight(seed, shape, format)
    entry = packed_entry("w", q)
    assert (
        entry.total == entry.figure("held") == entry.figure("read") == Figure(q.nbytes, "measured")
    )
    per_code = 2 if q.spec.bits == 4 else 1  # elements a byte
    assert entry.payload.bytes == shape[0] * -(-shape[1] // per_code)
    kept = {name: t.numel() * t.element_size() for name, t in q.tensors().items()}
    assert entry.padding.bytes == kept.pop("codes") - entry.payload.bytes
    assert entry.scales.bytes == sum(kept.values())


@pytest.mark.parametrize("format", list(FORMATS))
def test_the_estimate_equals_the_measurement(format: str, seed: int) -> None:
    q = weight(seed, (7, 200), format)
    measured, estimated = packed_entry("w", q), estimated_entry("w", format, (7, 200))
    assert estimated.total == Figure(q.nbytes, "estimated")
    for column in COLUMNS:
        assert estimated.figure(column).bytes == measured.figure(column).bytes


def test_bytes_of_no_code_and_no_scale_are_padding(seed: int) -> None:
    q = weight(seed, (8, 64), "mxfp4")
    entry = weight_entry("w", "mxfp4", (8, 64), q.nbytes + 100, "measured", zeroed_blocks=3)
    assert entry.padding == Figure(100, "measured") and entry.zeroed_blocks == 3
    assert entry.payload == packed_entry("w", q).payload
    assert entry.total.bytes == q.nbytes + 100


def test_bits_per_weight() -> None:
    per = {
        name: 8 * (estimated_entry("w", name, (2048, 2048)).total.bytes or 0) / 2048**2
        for name in FORMATS
    }
    assert per["nvfp4"] == pytest.approx(4.5, abs=1e-4)
    assert per["mxfp4"] == 4.25 and per["int4-g128"] == 4.125 and per["int4-g32"] == 4.5


def test_totals(seed: int) -> None:
    q = weight(seed, (8, 64), "nvfp4")
    others = {"norm": torch.ones(64), "table": torch.zeros(10, 4, dtype=torch.bfloat16)}
    ring, workspace = Figure(1000, "measured"), Figure(200, "estimated")
    ledger = Ledger.of({"trunk.qkv": q}, others, ring=ring, workspace=workspace)
    assert [entry.name for entry in ledger.entries] == ["norm", "table", "trunk.qkv"]
    assert ledger.column("payload") == Figure(256, "measured")
    assert ledger.column("scales") == Figure(8 * 4 + 4, "measured")
    assert ledger.column("padding") == Figure(0, "measured")
    assert ledger.column("excluded") == Figure(256 + 80, "measured")
    assert ledger.weights == Figure(q.nbytes + 336, "measured")
    assert ledger.total == Figure(q.nbytes + 336 + 1200, "estimated")
    assert ledger.file == MISSING  # nobody said what the file holds beside tensors


def test_stored_held_and_read_are_told_apart(seed: int) -> None:
    table = torch.zeros(10, 4, dtype=torch.bfloat16)
    held, read = Figure(160, "estimated"), Figure(32, "estimated")
    entries = (
        packed_entry("w", weight(seed, (8, 64), "mxfp4")),
        excluded_entry("table", table, held=held, read=read),
    )
    ledger = Ledger(
        entries,
        ring=Figure(1000, "estimated"),
        workspace=Figure(5, "measured"),
        overhead=Figure(64, "measured"),
        originals=Figure(80, "estimated"),
        ring_read=Figure(100, "estimated"),
    )
    packed = 256 + 16
    assert ledger.weights == Figure(packed + 80, "measured")
    assert ledger.file == Figure(packed + 80 + 64, "measured")
    assert ledger.column("held") == Figure(packed + 160, "estimated")
    assert ledger.total == Figure(packed + 160 + 80 + 1000 + 5, "estimated")
    assert ledger.step == Figure(packed + 32 + 100, "estimated")
    row = ledger.to_json()
    assert row["step"]["bytes"] == ledger.step.bytes and row["file"]["how"] == "measured"
    assert row["tensors"][1]["read"] == {"bytes": 32, "how": "estimated"}


def test_missing_is_never_zero(seed: int) -> None:
    ledger = Ledger.of({"w": weight(seed, (8, 64), "mxfp4")}, {}, ring=Figure(8, "measured"))
    assert ledger.workspace == MISSING and ledger.total == MISSING
    assert ledger.weights.how == "measured"
    row = ledger.to_json()
    assert row["total"] == {"bytes": None, "how": "missing"}
    assert row["ring"] == {"bytes": 8, "how": "measured"}


def test_a_tensor_without_data_is_an_estimate() -> None:
    entry = excluded_entry("w", torch.empty(4, 4, dtype=torch.bfloat16, device="meta"))
    assert entry.excluded == Figure(32, "estimated") and entry.format == "bfloat16"


def test_figures_add_to_the_weaker_tag() -> None:
    measured, estimated = Figure(1, "measured"), Figure(2, "estimated")
    assert measured + measured == Figure(2, "measured")
    assert measured + estimated == Figure(3, "estimated")
    assert estimated + MISSING == MISSING and total([]) == Figure(0, "measured")
    with pytest.raises(QuantizationError, match="cannot be measured"):
        Figure(None, "measured")
    with pytest.raises(QuantizationError, match="cannot be missing"):
        Figure(0, "missing")


def test_zeroed_blocks_are_reported() -> None:
    w = torch.zeros(2, 64)
    w[0, 0], w[1, 16] = 1.0, 1e-7
    row = Ledger.of({"w": quantize(w, "nvfp4")}, {}).to_json()
    assert row["zeroed_blocks"] == 1
    assert row["tensors"][0]["payload"] == {"bytes": 64, "how": "measured"}
