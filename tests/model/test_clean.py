"""The quick look passes nothing that the closer one has an issue with."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import numpy as np
import pytest

from tests.conftest import FULL
from tests.model.networks import random_state, schemas, small_schema
from wmrt.core.errors import SchemaError
from wmrt.model.schema import StateSchema, category, flag, instruction, numeric, vector

SCHEMA = StateSchema(
    {
        "speed": numeric("m/s", 0, 40, decimals=2, required=True),
        "pose": vector(2, "m", -5, 5, decimals=1),
        "lane": category(["left", "right"]),
        "wet": flag(),
        "task": instruction(),
    },
    neutral=[0.0],
)
STATE: dict[str, Any] = {
    **{"speed": 3.5, "pose": [1.0, -2.0], "lane": "right", "wet": True, "task": "keep left"}
}


def test_a_state_without_issues_passes() -> None:
    assert SCHEMA.clean(STATE) and SCHEMA.quantize(STATE)[1] == ()
    assert SCHEMA.clean(dict(reversed(STATE.items())))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("speed", value) for value in (None, "", "3", True, math.nan, math.inf, -0.5, 41.0, [])),
        *(("pose", value) for value in (None, 1.0, [1.0], [1.0] * 3, [1.0, None], [1.0, 6.0])),
        *(("pose", value) for value in ([math.nan, 1.0], [-9.0, 1.0], [1.0, "2"])),
        *(("lane", value) for value in (None, "", "unknown", "middle", 1, ["left"])),
        *(("wet", value) for value in (None, "", "maybe", 2, math.nan)),
        *(("task", value) for value in (3, "\ud800", [])),
        ("more", 1.0),
    ],
)
def test_what_is_wrong_never_passes(field: str, value: Any) -> None:
    assert SCHEMA.quantize(STATE | {field: value})[1] and not SCHEMA.clean(STATE | {field: value})
    rest = {name: own for name, own in STATE.items() if name != field}
    assert not SCHEMA.clean(rest) or field == "more"


class Hostile(str):
    """Equal to nothing without an error."""

    def __hash__(self) -> int:
        return hash("speed")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("planted")


def test_a_key_that_raises_is_looked_at_more_closely() -> None:
    assert not SCHEMA.clean({Hostile("x"): 1.0, **{f"f{i}": 0 for i in range(4)}})


def test_it_passes_no_state_with_an_issue(seed: int) -> None:
    """Random states of every kind of schema, readings at and around every bound."""
    rng = np.random.default_rng(seed)
    passed = 0
    for schema in (small_schema(), SCHEMA, *schemas().values(), *ranges(rng)):
        for _ in range(400 if FULL else 40):
            state = at_the_bounds(rng, schema, random_state(rng, schema))
            if schema.clean(state):
                passed += 1
                assert schema.quantize(state)[1] == (), state
    assert passed > 50


def ranges(rng: np.random.Generator) -> list[StateSchema]:
    """Fields of all magnitudes."""
    made = []
    for _ in range(20):
        low = float(rng.uniform(-1, 1) * 10.0 ** rng.integers(-2, 6))
        high = low + float(10.0 ** rng.uniform(0, 5))
        decimals = int(rng.integers(0, 4))
        low, high = round(low, decimals), round(high, decimals)
        with contextlib.suppress(SchemaError):  # finer than float32 resolves
            field = numeric("m", low, high, decimals=decimals)
            made.append(StateSchema({"x": field}, neutral=[0.0]))
    return made


def at_the_bounds(
    rng: np.random.Generator, schema: StateSchema, state: dict[str, Any]
) -> dict[str, Any]:
    """Numbers moved to where they are just in or just out of their range, or of the quick one."""
    for name, low, high in schema.clean._numeric:
        column = next(one for one in schema.columns if one.name == name)
        if rng.random() < 0.5:
            at = float(rng.choice([low, high, column.low, column.high]))
            unit = 10.0**-column.decimals
            state[name] = float(at + rng.choice([0.0, 0.5, -0.5, 1e-9, -1e-9]) * unit)
            for _ in range(rng.integers(0, 3)):
                state[name] = math.nextafter(state[name], rng.choice([-math.inf, math.inf]))
    return state
