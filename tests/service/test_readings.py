"""What the live page tells of an observation."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from tests.service.raw import state
from wmrt.core.wire import Observed
from wmrt.model.schema import StateSchema, category, instruction, numeric, vector
from wmrt.service.places import Seen
from wmrt.service.readings import Readings
from wmrt.service.settings import ServeSettings

SCHEMA = StateSchema(
    {
        "canary": numeric("m", -1.0, 1.0, decimals=4, required=True),
        "gap": numeric("m", 0.0, 100.0, max_age=0.2),
        "pose": vector(2, "m", -10.0, 10.0),
        "lane": category(["left", "right"]),
        "task": instruction(),
    },
    neutral=(0.0,),
)


def read(values: Any, age_ns: int | None = None, **settings: Any) -> dict[str, Any]:
    readings = Readings(SCHEMA, ServeSettings(**settings))
    told = readings.read(Seen(Observed("r1", 1, 0, 0, values), age_ns), {"gap": "frozen"})
    json.dumps(told, allow_nan=False)
    return told


def given(**changes: Any) -> dict[str, Any]:
    values = state(0.5) | {"task": "go"} | changes
    del values["wet"]
    return values


def test_a_state_that_is_right() -> None:
    told = read(given())
    assert told["values"] == [0.5, 5.0, 1.0, None, "left"]
    assert told["instruction"] == "go"
    assert told["flags"] == {"pose[1]": ["empty"], "gap": ["frozen"]}
    assert told["extra"] == [] and told["whole"] == [] and told["age_ms"] is None


@pytest.mark.parametrize(
    ("field", "value", "shown", "flag"),
    [
        ("gap", math.nan, "nan", "nonfinite"),
        ("gap", math.inf, "inf", "nonfinite"),
        ("gap", 120.0, 120.0, "range"),
        ("gap", "far", "far", "type"),
        ("lane", "middle", "middle", "unseen"),
        ("lane", None, None, "empty"),
        ("canary", None, None, "required"),
    ],
)
def test_a_value_and_what_is_wrong_with_it(field: str, value: Any, shown: Any, flag: str) -> None:
    told = read(given(**{field: value}))
    column = [column.name for column in SCHEMA.columns].index(field)
    assert told["values"][column] == shown and flag in told["flags"][field]


def test_what_is_not_there_and_what_is_too_much() -> None:
    values = given(pose=[1.0, 2.0, 3.0]) | {f"x{i}": i for i in range(50)}
    del values["lane"]
    told = read(values)
    assert told["flags"]["lane"] == ["missing"] and "length" in told["flags"]["pose[0]"]
    assert told["extra"][:2] == ["x0", "x1"] and told["extra"][-1] == "..."  # so many at most
    nothing = read(["no", "mapping"])
    assert nothing["values"] == [None] * 5 and len(nothing["whole"]) == 1


def test_it_is_stale_when_it_is_older_than_its_field_may_be() -> None:
    assert "stale" not in read(given(), 200_000_000)["flags"].get("gap", [])
    old = read(given(), 200_000_001)
    assert "stale" in old["flags"]["gap"] and old["age_ms"] == pytest.approx(200.0)
    assert "stale" not in old["flags"].get("canary", [])
    assert "stale" in read(given(), 100_000_001, max_age=0.1)["flags"]["canary"]
    assert "stale" not in read(given(gap=None), 10**9)["flags"]["gap"]
    assert "stale" not in read(given(), 10**9, clock="step")["flags"]["gap"]
