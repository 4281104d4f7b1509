"""Random schemas and states for the schema tests."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from wmrt.model.schema import Field, StateSchema, category, flag, instruction, numeric, vector


def driving(gaps: int = 4, **options: Any) -> StateSchema:
    """A schema like a car's: 4 fields and 2 per gap (12 fields by default)."""
    fields: dict[str, Field] = {
        "ego_speed": numeric("m/s", 0, 40, required=True),
        "lane_offset": numeric("m", -10, 10, required=True),
        "lane": category(["left", "middle", "right"]),
        "brake": flag(),
    }
    for i in range(gaps):
        fields[f"gap_{i}"] = numeric("m", 0, 100)
        fields[f"dv_{i}"] = numeric("m/s", -40, 40)
    return StateSchema(fields, neutral=[0.0, 0.0], **options)


def random_field(rng: random.Random) -> Field:
    """One field of any kind but instruction."""
    required = rng.random() < 0.2
    kind = rng.choice(["numeric", "numeric", "numeric", "vector", "category", "flag"])
    if kind == "category":
        return category([f"v{i}" for i in range(rng.randint(1, 9))], required=required)
    if kind == "flag":
        return flag(required=required)
    decimals = rng.randint(0, 6)
    half = 10 ** rng.uniform(0.5 - decimals, 6.5 - decimals)  # bounds of q stay below 2**23
    middle = rng.choice([0.0, half, rng.uniform(-half, half)])
    low, high = middle - half, middle + half
    buckets = rng.choice([1, 2, 7, 16, 64])
    unit = rng.choice(["m", "m/s", "rad", ""])
    if kind == "vector":
        return vector(rng.randint(1, 5), unit, low, high, decimals, buckets, required=required)
    return numeric(unit, low, high, decimals, buckets, required=required)


def random_schema(rng: random.Random, fields: int) -> StateSchema:
    """A schema of ``fields`` fields, one of them sometimes an instruction."""
    out = {f"f{i:02d}": random_field(rng) for i in range(fields)}
    if rng.random() < 0.5:
        out[f"f{rng.randrange(1, fields):02d}"] = instruction()
    return StateSchema(out, neutral=[0.0], name=f"random {fields}")


def random_number(rng: random.Random, field: Field) -> Any:
    """A number for a field: mostly in range, sometimes at or near a tie, outside or unusable."""
    roll = rng.random()
    if roll < 0.5:
        return rng.uniform(field.low, field.high)
    if roll < 0.75:
        tie = (round(rng.uniform(field.low, field.high) * 10**field.decimals) + 0.5) / (
            10**field.decimals
        )
        return float(np.nextafter(np.float32(tie), np.float32(rng.choice([-9e9, tie, 9e9]))))
    if roll < 0.85:
        return rng.choice([field.low, field.high, 0.0, -0.0, 0, 1, field.high * 3 + 1])
    if roll < 0.95:
        return rng.uniform(field.low, field.high) * rng.choice([-1.0, 2.0, 1e6])
    return rng.choice([None, float("nan"), float("inf"), 1e300, 10**400, "", "3", True])


def random_value(rng: random.Random, field: Field) -> Any:
    """A plain Python value for a field, sometimes one that is unknown."""
    if field.kind == "numeric":
        return random_number(rng, field)
    if field.kind == "vector":
        n = field.n if rng.random() < 0.9 else rng.randint(0, 6)
        return [random_number(rng, field) for _ in range(n)]
    if field.kind == "category":
        return rng.choice([*field.values, "", None, "other", "unknown", 3])
    if field.kind == "flag":
        return rng.choice([True, False, 0, 1, 1.0, "true", "True", "false", "False", "no", 2, None])
    return rng.choice(["keep left", "stop", "", None, "rechts abbiegen, größer", "e\u0301"])


def random_state(rng: random.Random, schema: StateSchema) -> dict[str, Any]:
    """A state in random key order, some keys missing, sometimes one too many."""
    state = {key: random_value(rng, field) for key, field in schema.fields.items()}
    keys = [key for key in state if rng.random() < 0.95]
    rng.shuffle(keys)
    out = {key: state[key] for key in keys}
    return out | {"not declared": 1.0} if rng.random() < 0.1 else out
