"""States as float32 columns: the breakers see what they would have seen without a wire."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.core.codecs import ARMS, Columns, arm
from tests.model.networks import random_state, schemas, small_schema
from wmrt.core.errors import SchemaError, StateError
from wmrt.core.wire_state import StateLayout
from wmrt.model.schema import StateSchema, category, flag, numeric, vector

SCHEMA = StateSchema(
    {
        "speed": numeric("m/s", 0, 40, decimals=2, required=True),
        "pose": vector(3, "m", -5, 5),
        "lane": category(["left", "right"]),
        "wet": flag(),
    },
    neutral=[0.0],
)
STATE: dict[str, Any] = {"speed": 3.5, "pose": [1.0, None, 2.0], "lane": "right", "wet": True}


@pytest.fixture(params=["layout", *ARMS])
def columns(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What has columns of a schema: the layout itself, and each codec around it."""
    if request.param == "layout":
        return lambda schema: StateLayout(schema.to_json())
    codec = arm(request.param, monkeypatch)
    return lambda schema: Columns(codec, StateLayout(schema.to_json()))


@pytest.fixture
def layout(columns: Any) -> Any:
    return columns(SCHEMA)


@pytest.fixture
def there_and_back(layout: Any) -> Any:
    return lambda state: layout.unpack(memoryview(layout.pack(state)))


def test_a_state_comes_back(there_and_back: Any, layout: Any) -> None:
    assert there_and_back(STATE) == STATE
    assert there_and_back({}) == {"speed": None, "pose": [None] * 3, "lane": None, "wet": None}
    assert layout.size == 6


def test_a_schema_reads_the_same_from_both_sides(columns: Any, seed: int) -> None:
    """Integers and kinds of issues, for random states of every shape of schema."""
    rng = np.random.default_rng(seed)
    told = [schema for schema in (small_schema(), *schemas().values()) if not schema.instruction]
    for schema in told:
        layout = columns(schema)
        for _ in range(30):
            state = random_state(rng, schema)
            given, _ = schema.quantize(state)
            sent, _ = schema.quantize(layout.unpack(memoryview(layout.pack(state))))
            assert np.array_equal(given, sent), (state, schema)


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, -math.inf, 1e39, -1e300, 10**400, "fast", []]
)
def test_what_is_no_number_is_no_number_there_either(there_and_back: Any, value: Any) -> None:
    """And not unknown: the breakers have to see that a sensor reads NaN."""
    sent = there_and_back(STATE | {"speed": value})["speed"]
    assert not math.isfinite(sent)
    issues = SCHEMA.quantize(STATE | {"speed": sent})[1]
    found = {issue.kind for issue in issues if issue.field == "speed"}
    assert found == {"nonfinite", "required"}


@pytest.mark.parametrize("value", [None, "", "unknown"])
def test_unknown_stays_unknown(there_and_back: Any, value: Any) -> None:
    sent = there_and_back(dict.fromkeys(STATE, value))
    assert sent == {"speed": None, "pose": [None] * 3, "lane": None, "wet": None}


@pytest.mark.parametrize(("field", "value"), [("lane", "middle"), ("lane", 7), ("wet", "maybe")])
def test_a_value_that_is_not_known_is_told_as_such(
    there_and_back: Any, field: str, value: Any
) -> None:
    whole = STATE | {"pose": [1.0, 2.0, 3.0], field: value}
    issues = SCHEMA.quantize(there_and_back(whole))[1]
    assert [issue.field for issue in issues] == [field]
    assert issues[0].kind in ("type", "unseen", "nonfinite")


def test_flags_in_all_their_forms(there_and_back: Any) -> None:
    for value, bit in [(1, True), (0.0, False), ("true", True), ("False", False), ([], None)]:
        sent = there_and_back(STATE | {"wet": value})["wet"]
        assert sent == bit or (bit is None and math.isnan(sent))


def test_numpy_values(there_and_back: Any) -> None:
    state = {"speed": np.float32(1.25), "pose": np.array([1, 2, 3], np.float32), "wet": np.True_}
    sent = there_and_back(state)
    assert sent["speed"] == 1.25 and sent["pose"] == [1.0, 2.0, 3.0]


def test_what_no_schema_has_is_refused(layout: Any) -> None:
    with pytest.raises(StateError, match=r"fuel: not in the schema, which has speed, pose"):
        layout.pack(STATE | {"fuel": 1.0})
    with pytest.raises(StateError, match="pose: 2 components given, it has 3"):
        layout.pack(STATE | {"pose": [1.0, 2.0]})
    with pytest.raises(StateError, match="pose: 0 components"):
        layout.pack(STATE | {"pose": 5.0})


def test_another_schema_s_columns_are_refused(layout: Any) -> None:
    data = layout.pack(STATE)
    for wrong in (data[:-1], data + b"0", b"", b"\x07" + data[1:]):
        with pytest.raises(StateError, match="6 columns"):
            layout.unpack(memoryview(wrong))


def test_an_instruction_has_no_float32_form() -> None:
    with pytest.raises(SchemaError, match=r"'say' is of kind 'instruction'.*msgpack or JSON"):
        StateLayout(schemas()["an instruction"].to_json())


def test_more_columns_than_a_message_counts_are_told() -> None:
    def of(*sizes: int) -> Any:
        return {
            "fields": [{"name": f"v{i}", "kind": "vector", "n": n} for i, n in enumerate(sizes)]
        }

    assert StateLayout(of(65_000, 535)).size == 65_535
    for sizes in ((65_536,), (65_000, 536), (2**63 - 1, 2**63 - 1, 7)):
        with pytest.raises(SchemaError, match=r"columns, of at most 65535.*msgpack or JSON"):
            StateLayout(of(*sizes))
