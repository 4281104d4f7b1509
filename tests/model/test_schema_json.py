"""Definitions of schemas: JSON form, content hash, knots, and every way to get one wrong."""

from __future__ import annotations

import copy
import json
import math
import pickle  # noqa: TID251 - only to show that a schema may cross to a worker process
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.model import schema_cases as cases
from wmrt.core.errors import SchemaError
from wmrt.model.schema import (
    Field,
    StateSchema,
    category,
    flag,
    instruction,
    numeric,
    vector,
)

FULL = StateSchema(
    {
        "speed": numeric("m/s", 0, 40, required=True, max_age=0.25, buckets=4),
        "pose": vector(2, "rad", -1, 1, 3, buckets=2, knots=[[-1, 0.25, 1], [-1, 0.5, 1]]),
        "lane": category(["left", "right"], max_age=1),
        "brake": flag(required=True),
        "task": instruction(),
    },
    neutral=[0.0, -0.25],
    max_unknown=3,
    name="full",
)


def changed(path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    """FULL's JSON with one entry replaced; `...` removes it."""
    data = copy.deepcopy(FULL.to_json())
    at: Any = data
    for key in path[:-1]:
        at = at[key]
    if value is ...:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return data


def test_json_form() -> None:
    assert FULL.to_json() == {
        "version": 1,
        "name": "full",
        "neutral": [0.0, -0.25],
        "max_unknown": 3,
        "fields": [
            {"name": "speed", "kind": "numeric", "unit": "m/s", "low": 0.0, "high": 40.0,
             "decimals": 2, "buckets": 4, "knots": None, "required": True, "max_age": 0.25},
            {"name": "pose", "kind": "vector", "n": 2, "unit": "rad", "low": -1.0, "high": 1.0,
             "decimals": 3, "buckets": 2, "knots": [[-1.0, 0.25, 1.0], [-1.0, 0.5, 1.0]],
             "required": False, "max_age": None},
            {"name": "lane", "kind": "category", "values": ["left", "right"], "required": False,
             "max_age": 1.0},
            {"name": "brake", "kind": "flag", "required": True, "max_age": None},
            {"name": "task", "kind": "instruction"},
        ],
    }  # fmt: skip


def test_round_trip(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    for schema in (FULL, cases.driving(), *(cases.random_schema(rng, n) for n in (3, 12, 60))):
        text = json.dumps(schema.to_json())
        path = tmp_path / "schema.json"
        path.write_text(text, encoding="utf-8")
        shuffled = json.dumps(schema.to_json(), sort_keys=True, indent=2)
        for source in (schema.to_json(), text, "\n " + text, shuffled, path, str(path)):
            again = StateSchema.from_json(source)
            assert again == schema and again.hash == schema.hash
            assert hash(again) == hash(schema) and again.to_json() == schema.to_json()
            state = cases.random_state(rng, schema)
            assert again.fingerprint(state) == schema.fingerprint(state)


def test_options_may_be_left_out() -> None:
    short = {"version": 1, "neutral": [0], "fields": [
        {"name": "x", "kind": "numeric", "unit": "m", "low": 0, "high": 1},
        {"name": "c", "kind": "category", "values": ["a"]}, {"name": "f", "kind": "flag"},
        {"name": "v", "kind": "vector", "n": 2, "unit": "m", "low": 0, "high": 1}]}  # fmt: skip
    built = {"x": numeric("m", 0, 1), "c": category(["a"]), "f": flag(), "v": vector(2, "m", 0, 1)}
    assert StateSchema.from_json(short) == StateSchema(built, neutral=[0])


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("extra",), 1, "schema: unknown key 'extra'; allowed: fields, max_unknown, name, "),
        (("version",), ..., "schema: missing key 'version'"),
        (("version",), 2, "version 2 is not known; this wmrt reads 1"),
        (("version",), True, "version True is not known"),
        (("fields",), {}, "fields must be a list of objects, in column order"),
        (("fields",), [], "a schema needs at least one field"),
        (("fields", 0), 3, "each field is an object with a 'name'"),
        (("fields", 1, "name"), "speed", "field 'speed' is there twice"),
        (("fields", 1, "name"), "a b", "field name 'a b': use 1 to 64 characters without spaces"),
        (("fields", 1, "name"), "a[0]", "without spaces or brackets"),
        (("fields", 1, "name"), "", "field name ''"),
        (("fields", 0, "kind"), "float", "field 'speed': kind 'float' is not known; allowed: nume"),
        (("fields", 0, "kind"), ..., "kind None is not known"),
        (("fields", 0, "unit"), ..., "field 'speed': missing key 'unit'"),
        (("fields", 0, "uint"), "m", "field 'speed': unknown key 'uint'; allowed: buckets, "),
        (("fields", 4, "required"), True, "field 'task': unknown key 'required'"),
        (("fields", 3, "low"), 0.0, "field 'brake': unknown key 'low'"),
        (("fields", 0, "low"), 40, "field 'speed': [40, 40] holds fewer than two values"),
        (("fields", 0, "low"), 41, "low must be below high"),
        (("fields", 0, "low"), "0", "low and high must be finite numbers, got '0' and 40.0"),
        (("fields", 0, "low"), True, "low and high must be finite numbers"),
        (("fields", 0, "high"), 1e16, "needs integers beyond 2**50; use fewer decimals"),
        (("fields", 0, "high"), 12345678.91, "finer than float32 resolves"),
        (("fields", 0, "decimals"), 10, "decimals must be a whole number from 0 to 9, got 10"),
        (("fields", 0, "decimals"), 2.0, "decimals must be a whole number"),
        (("fields", 0, "buckets"), 0, "buckets must be a whole number from 1 to 65536, got 0"),
        (("fields", 0, "unit"), 3, "unit must be a string such as 'm/s', got 3"),
        (("fields", 0, "required"), 1, "required must be true or false, got 1"),
        (("fields", 0, "required"), None, "required must be true or false, got None"),
        (("fields", 0, "max_age"), 0, "max_age must be seconds above 0"),
        (("fields", 0, "max_age"), "1", "max_age must be seconds above 0"),
        (("fields", 0, "knots"), [0, 1], "knots must be 5 ascending numbers from 0 to 40, got"),
        (("fields", 0, "knots"), [0, 1, 1, 2, 40], "strictly ascending as float32"),
        (("fields", 0, "knots"), [0, 1, 2, 3, 4], "with exactly these ends"),
        (("fields", 0, "knots"), "abcde", "knots must be 5 ascending numbers"),
        (("fields", 0, "knots"), [0, 1, math.nan, 3, 40], "strictly ascending"),
        (("fields", 1, "n"), 0, "field 'pose': n must be a whole number of at least 1, got 0"),
        (("fields", 1, "n"), 3, "field 'pose': knots must be 3 ascending numbers"),
        (("fields", 2, "values"), "left", "values must be a list of strings, got 'left'"),
        (("fields", 2, "values"), [], "values must be at least one and all different"),
        (("fields", 2, "values"), ["a", "a"], "all different, got ['a', 'a']"),
        (("fields", 2, "values"), ["a", ""], "'' cannot be a value"),
        (("fields", 2, "values"), ["unknown"], "leave 'unknown' out: it is always value 0"),
        (("fields", 2, "values"), [1], "1 cannot be a value; give non-empty strings"),
        (("neutral",), [], "neutral must be one number in [-1, 1] per action, at least one"),
        (("neutral",), [1.5], "neutral must be one number in [-1, 1]"),
        (("neutral",), 3, "neutral must be one number in [-1, 1]"),
        (("neutral",), ["x"], "neutral must be one number in [-1, 1]"),
        (("neutral",), [math.nan], "neutral must be one number in [-1, 1]"),
        (("max_unknown",), -1, "max_unknown must be None or a number from 0, got -1"),
        (("max_unknown",), 1.5, "max_unknown must be None or a number from 0"),
        (("name",), 3, "name must be a string, got 3"),
    ],
)  # fmt: skip
def test_wrong_json(path: tuple[Any, ...], value: Any, message: str) -> None:
    with pytest.raises(SchemaError) as caught:
        StateSchema.from_json(changed(path, value))
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_wrong_text(tmp_path: Path) -> None:
    text = json.dumps(FULL.to_json())
    cases_ = {
        "{": "schema: not valid JSON",
        text.replace("40.0", "NaN", 1): "NaN is not a JSON number",
        text.replace('"name": "full"', '"name": "a", "name": "b"'): "key 'name' is there twice",
        "{" + '"a":{' * 100_000: "not valid JSON",
        str(tmp_path / "absent.json"): r"absent\.json: schema: cannot be read: No such file",
        str(tmp_path): "cannot be read",
        "a\0b": "cannot be read",
    }
    for source, message in cases_.items():
        with pytest.raises(SchemaError, match=message):
            StateSchema.from_json(source)
    path = tmp_path / "list.json"
    path.write_text("[]")
    with pytest.raises(SchemaError, match=r"list\.json: schema: must be a JSON object, got list"):
        StateSchema.from_json(path)
    # definitions that cannot work, found by the reader, by a field and by the schema as a whole
    for old, new, said in (
        ('"unit"', '"units"', "unknown key 'units'"),
        ("40.0", "-40.0", "low"),
        ('"neutral": [', '"neutral": ["x", ', "neutral"),
    ):
        path.write_text(text.replace(old, new, 1))
        with pytest.raises(SchemaError, match=rf"list\.json: .*{said}"):
            StateSchema.from_json(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(SchemaError, match=r"list\.json: schema: cannot be read: .*codec"):
        StateSchema.from_json(path)
    with pytest.raises(SchemaError, match=r"^5: schema: cannot be read"):
        StateSchema.from_json(5)  # type: ignore[arg-type]


def test_wrong_arguments() -> None:
    with pytest.raises(SchemaError, match="at most one instruction field, got a, b"):
        StateSchema({"a": instruction(), "b": instruction(), "c": flag()}, neutral=[0])
    with pytest.raises(SchemaError, match="at least one field that is no instruction"):
        StateSchema({"a": instruction()}, neutral=[0])
    with pytest.raises(SchemaError, match="field 'a': got str; build it with numeric, vector"):
        StateSchema({"a": "numeric"}, neutral=[0])  # type: ignore[dict-item]
    with pytest.raises(SchemaError, match="fields must map names to fields, got list"):
        StateSchema([flag()], neutral=[0])  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="kind 'text' is not known; allowed: numeric, vector"):
        Field("text")
    with pytest.raises(SchemaError, match="a flag field has no knots"):
        Field("flag", knots=((0.0, 1.0),))
    with pytest.raises(SchemaError, match="narrower than float32 resolves; use fewer buckets"):
        numeric("m", 1_000_000, 1_000_001, 0, 64)
    half = 562_949_950_000_000
    with pytest.raises(SchemaError, match="distinct values together; use fewer decimals"):
        StateSchema({"v": vector(4200, "m", -half, half, 0, 1)}, neutral=[0])


def test_numpy_numbers_define_the_same_schema() -> None:
    ours = numeric("m", np.float32(0), np.int64(40), np.int8(2), np.uint8(64))
    assert ours == numeric("m", 0, 40) and type(ours.decimals) is type(ours.buckets) is int
    assert StateSchema({"x": ours}, neutral=np.zeros(2, np.float32)) == StateSchema(
        {"x": numeric("m", -0.0, 40.0)}, neutral=[0, -0.0]
    )


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("name",), "other"), (("neutral",), [0.0, 0.0]), (("neutral",), [0.0]),
        (("max_unknown",), None), (("fields", 0, "name"), "velocity"), (("fields", 0, "unit"), ""),
        (("fields", 0, "low"), -1.0), (("fields", 0, "high"), 41.0), (("fields", 0, "decimals"), 1),
        (("fields", 0, "required"), False), (("fields", 0, "max_age"), None),
        (("fields", 2, "values"), ["right", "left"]), (("fields", 4), ...),
    ],
)  # fmt: skip
def test_hash_sees_everything(path: tuple[Any, ...], value: Any) -> None:
    other = StateSchema.from_json(changed(path, value))
    assert other.hash != FULL.hash and other.input_hash != FULL.input_hash and other != FULL
    assert len(FULL.differences(other)) == 1 or path[-1] == "name"
    assert all("\n" not in line for line in FULL.differences(other))


def test_order_of_fields_counts() -> None:
    fields = dict(FULL.fields)
    other = StateSchema(
        dict(reversed(fields.items())), neutral=FULL.neutral, max_unknown=3, name="full"
    )
    assert other.hash != FULL.hash and other.input_hash != FULL.input_hash
    assert FULL.differences(other) == [
        "order of fields: speed, pose, lane, brake, task against task, brake, lane, pose, speed"
    ]


def test_differences_name_field_and_values() -> None:
    other = changed(("fields", 0, "high"), 50.0)
    del other["fields"][4]
    other["fields"].append({"name": "new", "kind": "flag"})
    assert FULL.differences(StateSchema.from_json(other)) == [
        "field 'task': only in the first",
        "field 'new': only in the second",
        "field 'speed': high 40.0 against 50.0",
    ]
    assert FULL.differences(FULL) == []


def test_knots_change_the_hash_but_not_what_is_read() -> None:
    other = FULL.with_knots({"speed": [0, 5, 10, 20, 40], "pose[1]": [-1, 0.75, 1]})
    assert other.hash != FULL.hash and other.input_hash == FULL.input_hash
    assert FULL.differences(other) == []
    assert other.columns[0].knots == (0.0, 5.0, 10.0, 20.0, 40.0)
    assert other.columns[1].knots == FULL.columns[1].knots == (-1.0, 0.25, 1.0)
    assert other.columns[2].knots == (-1.0, 0.75, 1.0)
    state = {"speed": 12.0, "pose": [0.3, 0.6], "lane": "left", "brake": 1}
    a, b = FULL.encode(state), other.encode(state)
    assert a.q.tolist() == b.q.tolist() and a.values.tolist() == b.values.tolist()
    assert (a.codes[0], b.codes[0]) == (2, 3) and (a.codes[2], b.codes[2]) == (2, 1)
    assert StateSchema.from_json(other.to_json()) == other
    back = other.with_knots({"speed": None, "pose": FULL.fields["pose"].knots})
    assert back == FULL


def test_uniform_knots_spelled_out_are_the_default() -> None:
    spelled = numeric("m", 0, 1, 2, 4, knots=[0, 0.25, 0.5, 0.75, 1])
    assert spelled == numeric("m", 0, 1, 2, 4) and spelled.knots is None
    shared = vector(2, "m", 0, 1, 2, 2, knots=np.float32([0, 0.3, 1]))
    assert shared.knots == ((0.0, float(np.float32(0.3)), 1.0),) * 2
    one = StateSchema({"v": shared}, neutral=[0]).with_knots({"v[0]": None})
    assert one.columns[0].knots == (0.0, 0.5, 1.0) and one.columns[1].knots == shared.knots[1]


def test_wrong_knots() -> None:
    for name, knots, message in (
        ("sped", [0, 1], r"knots of 'sped': no such field or column; allowed: speed, pose\[0\]"),
        ("lane", [0, 1], "knots of 'lane': a category field has no knots"),
        ("speed", [0, 40], "knots of 'speed': knots must be 5 ascending numbers from 0 to 40"),
        ("pose[1]", [0, 1], r"knots of 'pose\[1\]': knots must be 3 ascending numbers"),
    ):
        with pytest.raises(SchemaError, match=message):
            FULL.with_knots({name: knots})


def test_copies_and_other_processes_get_the_same_schema() -> None:
    assert copy.copy(FULL) is FULL and copy.deepcopy(FULL) is FULL
    assert pickle.loads(pickle.dumps(FULL)) == FULL
    assert FULL != FULL.to_json() and repr(FULL) == (
        f"StateSchema('full', 5 fields, 5 columns, hash {FULL.hash[:16]})"
    )
    with pytest.raises(TypeError):
        FULL.fields["new"] = flag()  # type: ignore[index]
