"""The fingerprint: recorded vectors, a second implementation, and what must not change it."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from decimal import Decimal

import numpy as np
import pytest

from tests.model import schema_cases as cases
from tests.model import test_fingerprint_reference as reference
from wmrt.core.errors import StateError
from wmrt.model.fingerprint import content_hash, instruction_code
from wmrt.model.schema import UNKNOWN, StateSchema, flag, instruction, numeric, vector

GROUPS = json.loads(reference.VECTORS.read_text(encoding="utf-8"))


@pytest.mark.parametrize("group", GROUPS, ids=[group["schema"]["name"] for group in GROUPS])
def test_vectors(group: dict) -> None:
    schema = StateSchema.from_json(group["schema"])
    assert schema.hash == group["hash"]
    assert schema.to_json() == group["schema"]
    for case in group["cases"]:
        state = reference.restore(case["state"])
        assert f"{schema.fingerprint(state):016x}" == case["fingerprint"], case


def test_the_one_reading_group_has_one_fingerprint_per_reading() -> None:
    """States of one meaning share a fingerprint, states of another differ."""
    group = next(group for group in GROUPS if group["schema"]["name"] == "every kind")
    by_state = {json.dumps(c["state"], sort_keys=True): c["fingerprint"] for c in group["cases"]}
    full = group["cases"][0]["state"]

    def of(**change: object) -> str:
        return by_state[json.dumps({**full, **change}, sort_keys=True)]

    assert of() == of(brake=1) == of(brake="true") == of(brake="True") == of(brake=1.0)
    assert of(brake=2) == of(brake="yes") != of()
    assert of(lane="") == of(lane=None) == of(lane="unknown") == of(lane="Middle") == of(lane=2)
    assert of(task=None) == of(task="") == of(task=7) != of()
    assert of(task="caf\u00e9") == of(task="cafe\u0301")
    assert of(task="keep  left") != of()


@pytest.mark.parametrize("fields", [2, 12, 60])
def test_equals_the_independent_implementation(fields: int, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(10):
        schema = cases.random_schema(rng, fields)
        data = schema.to_json()
        assert schema.hash == reference.schema_hash(data)
        for _ in range(12):
            state = cases.random_state(rng, schema)
            assert schema.fingerprint(state) == reference.fingerprint(data, state), (data, state)


def test_shortest_decimal_equals_numpys(seed: int) -> None:
    """Every power of two (where the float32 grid changes) and 20 000 random bit patterns."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 2**32, 20_000, dtype=np.uint32).view(np.float32)
    powers = np.ldexp(np.float32(1), np.arange(-149, 128)).astype(np.float32)
    sample = np.concatenate([bits[np.isfinite(bits)], powers, -powers])
    for value in sample:
        assert reference.shortest(float(value)) == Decimal(str(value)), value


@pytest.mark.parametrize("fields", [12, 60])
def test_any_key_order_any_float_width(fields: int, seed: int) -> None:
    rng = random.Random(seed)
    schema = cases.random_schema(rng, fields)
    for _ in range(20):
        state = cases.random_state(rng, schema)
        want = schema.fingerprint(state)
        for _ in range(3):
            keys = list(state)
            rng.shuffle(keys)
            assert schema.fingerprint({key: state[key] for key in keys}) == want
        for cast in (np.float32, np.float64):
            narrowed = {key: _narrow(value, cast) for key, value in state.items()}
            assert schema.fingerprint(narrowed) == want


def _narrow(value: object, cast: type) -> object:
    if type(value) is float:
        with np.errstate(over="ignore"):
            return cast(value)
    return [_narrow(part, cast) for part in value] if isinstance(value, list) else value


def test_fingerprint_q_and_encoded_agree(seed: int) -> None:
    rng = random.Random(seed)
    for fields in (3, 12, 60):
        schema = cases.random_schema(rng, fields)
        for _ in range(10):
            encoded = schema.encode(cases.random_state(rng, schema))
            want = schema.fingerprint_q(encoded.q, encoded.instruction)
            assert 0 <= want < 2**64
            again = schema.decode(encoded.q)
            if schema.instruction is not None:
                again[schema.instruction] = encoded.instruction
            assert schema.fingerprint(again) == want


def test_every_column_counts() -> None:
    """Changing any one integer, or swapping two columns, changes the fingerprint."""
    schema = StateSchema({"a": vector(3, "m", 0, 9, 0), "b": flag()}, neutral=[0])
    base = [1, 2, 3, 1]
    seen = {schema.fingerprint_q(base)}
    for i in range(4):
        for value in (UNKNOWN, 2 if i == 3 else 4):
            changed = [*base[:i], value, *base[i + 1 :]]
            seen.add(schema.fingerprint_q(changed))
    seen.add(schema.fingerprint_q([2, 1, 3, 1]))
    assert len(seen) == 10


def test_schema_counts() -> None:
    state = {"x": 1.0}
    schemas = [
        StateSchema({"x": numeric("m", 0, 9)}, neutral=[0.0]),
        StateSchema({"x": numeric("cm", 0, 9)}, neutral=[0.0]),
        StateSchema({"x": numeric("m", 0, 9)}, neutral=[0.5]),
        StateSchema({"x": numeric("m", 0, 9, buckets=32)}, neutral=[0.0]),
    ]
    assert len({schema.fingerprint(state) for schema in schemas}) == 4


def test_instruction_stands_at_its_place_in_the_schema() -> None:
    fields = {"a": numeric("m", 0, 9), "b": numeric("m", 0, 9)}
    orders = [
        {"task": instruction(), **fields},
        {"a": fields["a"], "task": instruction(), "b": fields["b"]},
        {**fields, "task": instruction()},
    ]
    for order in orders:
        schema = StateSchema(order, neutral=[0])
        state = {"a": 1.0, "b": 2.0, "task": "go"}
        assert schema.fingerprint(state) == reference.fingerprint(schema.to_json(), state)
        assert schema.encode(state).codes.shape == (2,)


def test_instruction_code() -> None:
    assert instruction_code(None) == instruction_code("") == UNKNOWN
    assert UNKNOWN < instruction_code("stop") < 2**63
    assert instruction_code("cafe\u0301") == instruction_code("caf\u00e9")
    # blake2b("stop", digest_size=8), as `printf stop | b2sum -l 64` prints it.
    assert instruction_code("stop").to_bytes(8, "little", signed=True).hex() == "c97ab12a173a72d9"


def test_instruction_errors() -> None:
    plain = StateSchema({"a": flag()}, neutral=[0])
    with pytest.raises(StateError, match="no instruction field"):
        plain.fingerprint_q([1], "go")
    told = StateSchema({"a": flag(), "task": instruction()}, neutral=[0])
    with pytest.raises(StateError, match="instruction: 7 is no text"):
        told.fingerprint_q([1], 7)  # type: ignore[arg-type]
    with pytest.raises(StateError, match="is no text"):
        told.fingerprint_q([1], "\ud800")


def test_content_hash_sees_bits_not_text() -> None:
    assert content_hash({"a": 1.0, "b": [2]}) == content_hash({"b": [2], "a": 1.0})
    assert content_hash({"a": 1.0}) != content_hash({"a": 1})
    assert content_hash({"a": 0.0}) != content_hash({"a": -0.0})


def test_same_in_other_processes() -> None:
    """Hash seeds and key order of another process change nothing."""
    schema = cases.driving()
    state = {"ego_speed": 12.345, "lane": "left", "brake": True, "gap_1": 33.335}
    code = (
        "import json, sys; from wmrt.model.schema import StateSchema;"
        "assert 'torch' not in sys.modules;"
        "data, state = json.loads(sys.stdin.read()); s = StateSchema.from_json(data);"
        "print(s.hash, s.fingerprint(state), s.fingerprint(dict(reversed(state.items()))))"
    )
    text = json.dumps([schema.to_json(), state], sort_keys=True)
    want = f"{schema.hash} {schema.fingerprint(state)} {schema.fingerprint(state)}"
    for hash_seed in ("0", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(
            [sys.executable, "-c", code],
            input=text, capture_output=True, text=True, timeout=60, env=environment,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == want
