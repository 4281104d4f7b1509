"""The audit log: who did what, a flood of which keeps nothing out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from wmrt.core.errors import UsageError
from wmrt.service.audit import RATE, Audit


def test_the_audit_log_has_one_object_a_line(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    for who in ("first", "second"):  # it is appended to
        audit = Audit(path)
        audit.note("opened", robot="r1", by=who)
        audit.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["event"], line["by"]) for line in lines] == [
        ("opened", "first"),
        ("opened", "second"),
    ]
    assert all(line["at"].endswith("+00:00") for line in lines)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_flood_of_one_event_is_cut_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    audit = Audit(path)
    now = [0.0]
    audit._buckets._now = lambda: now[0]
    for _ in range(500):
        audit.note("unauthorized")
    audit.note("opened")
    now[0] += 10.0
    audit.note("unauthorized")
    audit.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(lines) == 10 * RATE + 2
    assert lines[-1] == {"at": lines[-1]["at"], "event": "unauthorized", "left_out": 400}


def test_a_flood_that_has_no_next_line_is_counted_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    audit = Audit(path)
    audit._buckets._now = lambda: 0.0
    for event, times in (("unauthorized", 500), ("forbidden", 150), ("opened", 3)):
        for _ in range(times):
            audit.note(event)
    audit.close()
    audit.close()  # which tells it once
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    told = [(line["of"], line["left_out"]) for line in lines if line["event"] == "left_out"]
    assert told == [("unauthorized", 400), ("forbidden", 50)]
    assert lines[-1]["event"] == "left_out" and len(lines) == 2 * 10 * RATE + 3 + 2


def test_a_flood_of_others_keeps_no_operator_s_line_out(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    audit = Audit(path)
    for _ in range(1000):
        audit.note("breakers_estop", client="flood")
    audit.note("breakers_estop", entitled=True, client="operator")
    audit.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line for line in lines if line.get("client") == "operator"]
    assert not any("entitled" in line for line in lines)
    assert lines[-1]["event"] == "left_out" and lines[-1]["of"] == "breakers_estop"


def test_a_disk_that_takes_no_line_is_counted(tmp_path: Path) -> None:
    audit = Audit(Path("/dev/full"))
    audit.note("opened")
    audit.close()
    assert audit.lost >= 1
    with pytest.raises(UsageError, match=r"audit: .*cannot be written"):
        Audit(tmp_path / "no" / "folder")


def test_a_line_that_cannot_be_told_ends_no_audit(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    audit = Audit(path)
    circle: dict[str, Any] = {}
    circle["self"] = circle
    audit.note("opened", robot=circle)
    audit.note("opened", robot="r1")
    audit.close()
    assert [json.loads(line)["robot"] for line in path.read_text().splitlines()] == ["r1"]
    assert audit.lost == 1
