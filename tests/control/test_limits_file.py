"""Limits files: strict JSON, checked against the policy, enforced by the controller."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.control.support import SCHEMA, STATE, constant, simulated
from tests.safety.support import DRIVING, PERIOD
from wmrt.control import default_limits, load_limits, save_limits
from wmrt.core.errors import SafetyError, UsageError
from wmrt.safety import Breakers


def own() -> Any:
    return default_limits(SCHEMA, DRIVING, PERIOD)


def load(path: Path) -> Any:
    return load_limits(path, SCHEMA, DRIVING, PERIOD)


def test_there_and_back(tmp_path: Path) -> None:
    made = default_limits(SCHEMA, DRIVING, PERIOD, trip_window=1.25, agree={"steering": 0.007})
    save_limits(tmp_path / "limits.json", made)
    assert load(tmp_path / "limits.json") == made
    assert load_limits(str(tmp_path / "limits.json"), SCHEMA, DRIVING, PERIOD).hash == made.hash


def test_the_controller_enforces_them(tmp_path: Path) -> None:
    path = tmp_path / "limits.json"
    save_limits(path, own())
    document = json.loads(path.read_text())
    document["actions"]["acceleration"] |= {"high": 1.0, "rate_up": 2.5}
    path.write_text(json.dumps(document))
    limits = load(path)
    controller = simulated(constant(0.0, 0.2), breakers=Breakers(limits))
    first = controller.act(STATE)
    assert controller.last is not None and controller.last.source == "blocked"
    assert first.tolist() == [0.0, 0.0]
    slow = simulated(constant(0.0, 0.05), breakers=Breakers(limits))
    assert slow.act(STATE)[1] == pytest.approx(0.05, abs=1e-8)  # 2.5 m/s^3 for 0.1 s, of 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is no JSON"),
        ("{", "is no JSON"),
        ("\N{BYTE ORDER MARK}{}", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ('{"wmrt_limits": 1, "wmrt_limits": 1}', "says 'wmrt_limits' twice"),
        ('{"wmrt_limits": 1, "actions": NaN}', "holds NaN; every limit is a finite number"),
        ('{"wmrt_limits": 1, "actions": -Infinity}', "holds -Infinity"),
        ("7", "the document must be an object"),
        ("{}", "lacks 'wmrt_limits'"),
        (f'"{"x" * (1 << 20)}"', "is larger than 1048576 bytes"),
    ],
    ids=lambda text: text[:12],
)
def test_what_is_no_limits_file(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "limits.json"
    path.write_text(text, "utf-8")
    with pytest.raises(SafetyError, match=message) as raised:
        load(path)
    assert str(raised.value).startswith(f"{path}: ") and len(str(raised.value)) < 600


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "limits.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(SafetyError, match="is no JSON"):
        load(tmp_path / "limits.json")


def test_places_where_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(SafetyError, match="cannot be read: No such file"):
        load(tmp_path / "none.json")
    with pytest.raises(SafetyError, match="cannot be read: Is a directory"):
        load(tmp_path)
    with pytest.raises(UsageError, match="cannot be written"):
        save_limits(tmp_path / "no" / "limits.json", own())


def test_limits_of_another_robot(tmp_path: Path) -> None:
    save_limits(tmp_path / "limits.json", own())
    document = json.loads((tmp_path / "limits.json").read_text())
    document["actions"]["wheel"] = document["actions"].pop("steering")
    (tmp_path / "limits.json").write_text(json.dumps(document))
    with pytest.raises(SafetyError, match=r"limits\.json: actions lacks 'steering'"):
        load(tmp_path / "limits.json")
