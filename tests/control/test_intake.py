"""Reading an observation the quick way and the closer way gives the same, one after the other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.model.networks import random_state, schemas, small_schema
from wmrt.control.intake import Intake
from wmrt.model.schema import StateSchema


def closer(schema: StateSchema) -> Any:
    """A schema of somebody's own, which has no quick look."""
    return SimpleNamespace(fields=schema.fields, quantize=schema.quantize, decode=schema.decode)


def whole(rng: np.random.Generator, schema: StateSchema) -> dict[str, Any]:
    """Nothing wrong, as most states are."""
    middle = schema.decode(schema.quantize({})[0])
    for name, field in schema.fields.items():
        if field.numeric:
            at = (field.low + rng.uniform(0.2, 0.8) * (field.high - field.low),) * field.n
            middle[name] = list(at) if field.kind == "vector" else at[0]
        elif field.kind == "category":
            middle[name] = field.values[0]
        elif field.kind == "flag":
            middle[name] = True
        else:
            middle[name] = "stop"
    return middle


def test_both_ways_read_alike(seed: int) -> None:
    rng, quick = np.random.default_rng(seed), 0
    for schema in (small_schema(), *schemas().values()):
        one, other = Intake(schema, 10), Intake(closer(schema), 10)
        for step in range(60):
            state = whole(rng, schema) if rng.random() < 0.6 else random_state(rng, schema)
            quick += schema.clean(state)
            captured: Any = rng.choice([None, step, step - 20, "now"])
            captured = int(captured) if isinstance(captured, (int, np.integer)) else captured
            if rng.random() < 0.2:
                captured = dict.fromkeys(list(schema.fields)[:3], step)
            given = {"state": state} if rng.random() < 0.3 and "state" not in state else state
            found = one.read(given, step, captured)
            assert repr(found) == repr(other.read(given, step, captured))  # NaN is NaN here
            assert one.unknown == other.unknown and found.state is not state
            if rng.random() < 0.05:
                one.reset()
                other.reset()
    assert quick > 20
