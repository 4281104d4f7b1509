"""What `StateSchema.encode` makes of a state, value by value and mode by mode."""

from __future__ import annotations

import random
from collections import OrderedDict, UserDict, defaultdict
from decimal import Decimal
from fractions import Fraction
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from tests.model import schema_cases as cases
from wmrt.core.errors import StateError
from wmrt.model.schema import (
    UNKNOWN,
    Encoded,
    StateSchema,
    category,
    flag,
    numeric,
)

CAR = cases.driving()
GOOD: dict[str, Any] = {
    "ego_speed": 21.537, "lane_offset": -0.125, "lane": "left", "brake": False,
    "gap_0": 33.335, "dv_0": -2.0, "gap_1": 100.0, "dv_1": 0.0,
    "gap_2": 5.5, "dv_2": 1.25, "gap_3": 0.0, "dv_3": 40.0,
}  # fmt: skip


def kinds(encoded: Encoded) -> list[tuple[str, str]]:
    return [(issue.field, issue.kind) for issue in encoded.issues]


def test_a_good_state() -> None:
    codes, values, issues = encoded = CAR.encode(GOOD, strict=True)
    assert issues == ()
    assert codes.dtype == np.int32 and values.dtype == np.float32 and encoded.q.dtype == np.int64
    assert encoded.q.tolist() == [2154, -12, 1, 1, 3334, -200, 10000, 0, 550, 125, 0, 4000]
    assert (
        values.tolist()
        == np.float32([21.54, -0.12, 0, 0, 33.34, -2, 100, 0, 5.5, 1.25, 0, 40]).tolist()
    )
    # 64 buckets a field: 1 + floor(64 * (value - low) / (high - low)), the top value in the last.
    assert codes.tolist() == [35, 32, 1, 1, 22, 31, 64, 33, 4, 34, 1, 64]
    assert CAR.decode(encoded.q) == {
        **GOOD,
        "ego_speed": 21.54,
        "lane_offset": -0.12,
        "gap_0": 33.34,
    }


@pytest.mark.parametrize("fields", [12, 60])
def test_key_order_means_nothing(fields: int, seed: int) -> None:
    rng = random.Random(seed)
    schema = CAR if fields == 12 else cases.driving(gaps=28)
    assert len(schema) == fields
    for _ in range(20):
        state = cases.random_state(rng, schema)
        want = schema.encode(state)
        shuffled = list(state.items())
        rng.shuffle(shuffled)
        got = schema.encode(dict(shuffled))
        assert got.q.tolist() == want.q.tolist()
        assert got.codes.tolist() == want.codes.tolist()
        assert repr(got.issues) == repr(want.issues)  # NaN differs from itself, its repr does not


@pytest.mark.parametrize(
    "true",
    [True, 1, 1.0, "true", "True", np.bool_(True), np.float16(1), np.int8(1), np.array(True),
     np.str_("true"), np.array(1.0)],
)  # fmt: skip
def test_true(true: object) -> None:
    encoded = CAR.encode({**GOOD, "brake": true}, strict=True)
    assert encoded.codes[3] == 2 and encoded.q[3] == 2
    assert CAR.decode(encoded.q)["brake"] is True


@pytest.mark.parametrize("false", [False, 0, 0.0, -0.0, "false", "False", np.bool_(False),
                                   np.uint8(0), np.array(False), np.array("false")])  # fmt: skip
def test_false(false: object) -> None:
    encoded = CAR.encode({**GOOD, "brake": false}, strict=True)
    assert encoded.codes[3] == 1 and encoded.q[3] == 1
    assert CAR.decode(encoded.q)["brake"] is False


@pytest.mark.parametrize(
    ("field", "value", "kind"),
    [
        ("brake", 2, "unseen"), ("brake", 0.5, "unseen"), ("brake", "TRUE", "unseen"),
        ("brake", "1", "unseen"), ("brake", float("nan"), "nonfinite"), ("brake", b"true", "type"),
        ("brake", [True], "type"), ("brake", Decimal(1), "type"), ("brake", 10**400, "nonfinite"),
        ("lane", "Left", "unseen"), ("lane", " left", "unseen"), ("lane", 1, "type"),
        ("lane", b"left", "type"), ("lane", ["left"], "type"), ("lane", True, "type"),
        ("gap_0", "33.3", "type"), ("gap_0", True, "type"), ("gap_0", np.bool_(True), "type"),
        ("gap_0", 1j, "type"), ("gap_0", [1.0], "type"), ("gap_0", np.array([1.0]), "type"),
        ("gap_0", Decimal(1), "type"), ("gap_0", Fraction(1, 2), "type"), ("gap_0", b"1", "type"),
        ("gap_0", np.timedelta64(1), "type"), ("gap_0", np.datetime64(1, "s"), "type"),
        ("gap_0", np.ma.masked, "type"), ("gap_0", float("nan"), "nonfinite"),
        ("gap_0", float("-inf"), "nonfinite"), ("gap_0", 1e300, "nonfinite"),
        ("gap_0", 10**400, "nonfinite"), ("gap_0", np.float16("inf"), "nonfinite"),
        ("gap_0", np.longdouble("1e4000"), "nonfinite"), ("gap_0", 3.5e38, "nonfinite"),
    ],
)  # fmt: skip
def test_unusable_values(field: str, value: object, kind: str) -> None:
    at = [column.name for column in CAR.columns].index(field)
    state = {**GOOD, field: value}
    encoded = CAR.encode(state)
    assert kinds(encoded) == [(field, kind)]
    assert (encoded.codes[at], encoded.values[at], encoded.q[at]) == (0, 0.0, UNKNOWN)
    rest = [i for i in range(len(CAR)) if i != at]
    assert (encoded.q[rest] == CAR.encode(GOOD).q[rest]).all()
    with pytest.raises(StateError, match=f"^{field}: .*; allowed: ") as caught:
        CAR.encode(state, strict=True)
    assert CAR.columns[at].allowed in str(caught.value)


@pytest.mark.parametrize("value", [None, "", "unknown"])
def test_unknown_on_purpose(value: object) -> None:
    for field in ("lane", "brake", "gap_0"):
        if (field, value) == ("gap_0", "unknown"):
            continue  # a text is no number
        for strict in (False, True):
            encoded = CAR.encode({**GOOD, field: value}, strict)
            assert kinds(encoded) == [(field, "empty")]
        assert CAR.decode(encoded.q)[field] is None


def test_missing_is_unknown_too_but_told_apart() -> None:
    state = {key: value for key, value in GOOD.items() if key not in ("lane", "gap_2")}
    for strict in (False, True):
        assert kinds(CAR.encode(state, strict)) == [("lane", "missing"), ("gap_2", "missing")]
    unseen = {**GOOD, "lane": "off", "gap_2": None}
    assert CAR.fingerprint(state) == CAR.fingerprint(unseen)


@pytest.mark.parametrize(
    ("value", "cause"),
    [(None, "empty"), (float("nan"), "nonfinite"), ("12", "type"), (cases, "type")],
)
def test_required(value: object, cause: str) -> None:
    encoded = CAR.encode({**GOOD, "ego_speed": value})
    assert kinds(encoded) == [("ego_speed", cause), ("ego_speed", "required")]
    assert [issue.invalid for issue in encoded.issues] == [False, True]
    with pytest.raises(StateError, match="ego_speed: required, but its value is unknown"):
        CAR.encode({**GOOD, "ego_speed": value}, strict=True)
    without = {key: value for key, value in GOOD.items() if key != "ego_speed"}
    assert kinds(CAR.encode(without)) == [("ego_speed", "missing"), ("ego_speed", "required")]
    with pytest.raises(StateError, match=r"^ego_speed: .*'missing'.* a number in \[0, 40\] m/s$"):
        CAR.encode(without, strict=True)


def test_out_of_range_is_clamped_and_told() -> None:
    for value, q in ((40.01, 4000), (-0.01, 0), (3e38, 4000), (-3e38, 0), (2**70, 4000)):
        encoded = CAR.encode({**GOOD, "ego_speed": value})
        assert kinds(encoded) == [("ego_speed", "range")]
        assert not encoded.issues[0].invalid and encoded.issues[0].value == value
        assert encoded.q[0] == q and encoded.values[0] == np.float32(q / 100)
        assert encoded.codes[0] == (64 if q else 1)
        with pytest.raises(StateError, match=r"^ego_speed: .* is out of range; allowed: .*\[0, 40"):
            CAR.encode({**GOOD, "ego_speed": value}, strict=True)
    for value in (40.004, -0.004):  # rounds to the bound, which is inside
        assert CAR.encode({**GOOD, "ego_speed": value}, strict=True).issues == ()


def test_extra_keys() -> None:
    state = {**GOOD, "sped": 1.0, 7: 2}
    encoded = CAR.encode(state)
    assert kinds(encoded) == [("sped", "extra"), ("7", "extra")]
    assert all(issue.invalid for issue in encoded.issues)
    assert CAR.fingerprint(state) == CAR.fingerprint(GOOD)
    with pytest.raises(StateError, match=r"^sped: 'sped' is not declared.*allowed: ego_speed, "):
        CAR.encode(state, strict=True)
    many = {**GOOD, **{f"x{i}": i for i in range(1000)}}
    assert len(CAR.encode(many).issues) == 17
    assert CAR.encode(many).issues[-1].message.startswith("...: 'more than 16 keys' is not")
    # One key missing and one too many: the count alone would not tell.
    swapped = {**GOOD, "sped": 1.0}
    del swapped["lane"]
    assert kinds(CAR.encode(swapped)) == [("lane", "missing"), ("sped", "extra")]


@pytest.mark.parametrize("state", [None, 5, "ego_speed", [("ego_speed", 1.0)], object(), b"", 1.5,
                                   np.zeros(3), {1, 2}, lambda: {}])  # fmt: skip
def test_no_container(state: object) -> None:
    encoded = CAR.encode(state)
    assert (encoded.q == UNKNOWN).all() and not encoded.codes.any() and not encoded.values.any()
    assert ("", "container") in kinds(encoded)
    assert CAR.fingerprint(state) == CAR.fingerprint({})
    with pytest.raises(StateError, match="a mapping of field names to values"):
        CAR.encode(state, strict=True)


def test_any_mapping_will_do() -> None:
    want = CAR.fingerprint(GOOD)
    for kind in (OrderedDict, UserDict, MappingProxyType):
        assert CAR.fingerprint(kind(GOOD), strict=True) == want


def test_strict_tells_several_problems_at_once() -> None:
    state = dict.fromkeys(GOOD, "x")
    with pytest.raises(StateError) as caught:
        CAR.encode(state, strict=True)
    text = str(caught.value)
    assert text.count("allowed:") == 5 and "\n" not in text
    assert text.startswith("ego_speed: 'x' has the wrong type; allowed: a number in [0, 40] m/s; ")
    assert text.endswith("; and 9 more")  # 12 columns and 2 required ones


def test_messages() -> None:
    schema = StateSchema({"c": category([f"v{i}" for i in range(20)])}, neutral=[0])
    issue = schema.encode({"c": "w" * 200}).issues[0]
    assert issue.message == (
        f"c: '{'w' * 77}...' is not a value it knows; allowed: "
        + ", ".join(f"'v{i}'" for i in range(12)) + ", ... (20 in all)"
    )  # fmt: skip
    told = {issue.kind: issue.message for issue in CAR.encode({"gap_0": [1, 2], "x": 1}).issues}
    assert told["type"] == (
        "gap_0: 'list of length 2' has the wrong type; allowed: a number in [0, 100] m"
    )
    assert told["missing"] == "dv_3: no value given; allowed: a number in [-40, 40] m/s"
    assert told["extra"].startswith("x: 'x' is not declared by the schema; remove it")


def test_encoding_leaves_the_state_alone() -> None:
    state: defaultdict[str, float] = defaultdict(float, ego_speed=1.0)
    CAR.encode(state)
    assert dict(state) == {"ego_speed": 1.0}  # nothing was looked up into being
    first = CAR.encode(GOOD)
    first.codes[:] = 0
    assert CAR.encode(GOOD).codes.all()


def test_numeric_fields_only_or_none_at_all() -> None:
    one = StateSchema({"x": numeric("m", 0, 1)}, neutral=[0])
    assert one.encode({"x": 0.5}).codes.shape == (1,)
    flags = StateSchema({"a": flag(), "b": flag()}, neutral=[0])
    encoded = flags.encode({"a": True, "b": None})
    assert encoded.codes.tolist() == [2, 0] and flags.numeric_index == ()


@pytest.mark.parametrize("form", ["plain", "occluded"])
def test_encode_speed(benchmark: Any, form: str) -> None:
    """16 fields; `--benchmark-enable` gives the figure (aim: under 40 us)."""
    schema = cases.driving(gaps=6)
    rng = random.Random(0)
    state: dict[str, Any] = {"ego_speed": 21.5, "lane_offset": -0.1, "lane": "left", "brake": True}
    for i in range(6):
        blind = form == "occluded" and i % 2 == 0
        state[f"gap_{i}"] = None if blind else rng.uniform(0, 100)
        state[f"dv_{i}"] = None if blind else rng.uniform(-40, 40)
    benchmark(schema.encode, state)
