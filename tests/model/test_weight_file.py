"""The header of a weight file, counted from shapes alone, against the file the library writes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from wmrt.core.errors import CheckpointError
from wmrt.model.weight_file import METADATA, expected_overhead, measured_overhead

DTYPES = (
    *(torch.bfloat16, torch.float16, torch.float32, torch.uint8, torch.int8, torch.int32),
    *(torch.int64, torch.bool),
)


def test_the_header_is_as_long_as_counted(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    path = tmp_path / "model.safetensors"
    for count in (0, 1, 7, 60):
        names = [f"blocks.{rng.integers(1_000)}.part{i}.\u00e9" for i in range(count)]
        shapes = [tuple(rng.integers(0, 40, rng.integers(0, 4)).tolist()) for _ in names]
        dtypes = [DTYPES[i] for i in rng.integers(len(DTYPES), size=count)]
        specs = dict(zip(names, zip(shapes, dtypes, strict=True), strict=True))
        save_file({n: torch.zeros(s, dtype=d) for n, (s, d) in specs.items()}, path, METADATA)
        held = sum(torch.zeros(s, dtype=d).nbytes for s, d in specs.values())
        assert expected_overhead(specs) == measured_overhead(path) == path.stat().st_size - held


def test_what_is_no_weight_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be read"):
        measured_overhead(tmp_path / "absent")
    (tmp_path / "short").write_bytes(b"1234")
    with pytest.raises(CheckpointError, match="truncated: 4 bytes"):
        measured_overhead(tmp_path / "short")
    with pytest.raises(CheckpointError, match="complex64 is not stored"):
        expected_overhead({"w": ((2,), torch.complex64)})
