"""The fault matrix, run; and a witness that sees what is unsafe."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.safety.support import DRIVING, PERIOD, PERIOD_NS
from tools.fault_matrix import Row, Witness, main
from tools.loop_faults import FAULTS


def test_every_fault_is_survived_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["--json", "faults.json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    rows = {
        row["fault"]: row for row in json.loads(Path("faults.json").read_text())["results"]["rows"]
    }
    assert set(rows) == set(FAULTS)
    for row in rows.values():
        assert (row["raised"], row["unsafe"]) == (0, 0) and row["fastest"] <= 1.0 + 1e-6
        assert row["again"] is not None, f"{row['fault']}: the policy never drove again"
    noted = {fault: set(row["causes"]) for fault, row in rows.items()}
    assert "surprise" in noted["sensors freeze"] and "clock" in noted["clock jumps 5 s back"]
    assert "fallback" in noted["fallback raises, in a dropout"]
    assert {"deadline", "starved"} <= noted["policy stalls"]
    for fault in ("NaN burst", "dropout", "the same message repeats", "messages out of order"):
        assert "input" in noted[fault], fault
    for fault in ("policy answers NaN", "policy raises", "policy answers 100"):
        assert "range" in noted[fault], fault
    assert "recording stopped" in rows["the log's disk is full"]["note"]
    assert "None" not in rows["the log's disk is full"]["note"]


@pytest.mark.parametrize("value", [math.nan, math.inf, 1.01, -1.01, 0.9])
def test_the_witness_sees_what_is_unsafe(value: float) -> None:
    row = Row("")
    witness = Witness(DRIVING, PERIOD, row)
    witness.see([0.0] * len(DRIVING), PERIOD_NS)
    assert row.unsafe == 0
    witness.see([value] + [0.0] * (len(DRIVING) - 1), 2 * PERIOD_NS)
    assert row.unsafe == 1
