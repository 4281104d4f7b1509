"""Anything at all as JSON and back: what the schema reads of it is the same, bit for bit."""

from __future__ import annotations

import array
import json
import math
import struct
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.control.faults import CONTAINERS, SCALARS, HostileMapping
from tests.control.support import SCHEMA, STATE
from wmrt.control.intake import Intake
from wmrt.control.recording.frozen import (
    MAX_BYTES,
    MAX_VALUES,
    Lost,
    Opaque,
    freeze,
    freeze_observation,
    freeze_times,
)
from wmrt.control.recording.values import decode, encode, plain, unplain
from wmrt.core.errors import RecordingError


def back(frozen: Any) -> Any:
    """Through the text of a file that knows no NaN."""
    return decode(json.loads(json.dumps(encode(frozen), allow_nan=False)))


def bits(value: float) -> bytes:
    return struct.pack("<d", value)


class Numbers(list[Any]):
    """A list in all but name."""


class Unlisted(list[Any]):
    def __iter__(self) -> Any:
        raise OSError


class Reading(float):
    """A float in all but name."""


class Word(str):
    """A str in all but name."""


ODD: list[Any] = [
    np.str_("left"), np.str_(""), np.bytes_(b""), np.longdouble("3.1"), np.float16(2.5), np.True_,
    array.array("f", [1, 2, 3]), np.array([1, None, object()], object), np.array(5, object),
    np.array(["a"]), np.array([], float), np.zeros((0, 3), "U3"), np.array([1.5, 2, 3], ">f4"),
    np.zeros(3, [("a", "f4")]), np.arange(100.0), np.longlong(4), np.timedelta64(3, "s"),
    b"\x00\xff", bytearray(b"ab"), {"$": 1}, {"$": "opaque"}, "\ud800", (1, (2.0, None)),
    frozenset([1]), Numbers([1.0, -2.0, 0.5]), Unlisted([1.0, -2.0, 0.5]), Reading(21.5),
    Word("left"), Word("false"), np.array("left"), np.array([1.0, -2.0, np.nan]),
]  # fmt: skip


@pytest.mark.parametrize("field", STATE)
@pytest.mark.parametrize("index", range(len(SCALARS) + len(ODD)))
def test_a_value_reads_as_it_did(field: str, index: int) -> None:
    given = {**STATE, field: [*SCALARS, *ODD][index]}
    read, again = (Intake(SCHEMA, None).read(obs, 0) for obs in (given, replayed(given)))
    assert repr((again.faults, again.notes)) == repr((read.faults, read.notes))
    assert (again.state is None) is (read.state is None)
    if read.state is not None:
        q, q_again = SCHEMA.quantize(read.state)[0], SCHEMA.quantize(again.state)[0]
        assert q.tolist() == q_again.tolist()


def replayed(obs: Any) -> Any:
    return back(freeze_observation(obs, nested=True))


@pytest.mark.parametrize("index", range(len(CONTAINERS) + 1))  # pytest asks some for their name
def test_a_container_reads_as_it_did(index: int) -> None:
    obs = [*CONTAINERS, MappingProxyType({"state": STATE, "more": [1]})][index]
    read, again = (Intake(SCHEMA, None).read(each, 0) for each in (obs, replayed(obs)))
    assert repr(again) == repr(read)


def test_a_schema_with_a_field_called_state_is_not_looked_into() -> None:
    assert freeze_observation({"state": {"a": 1}}, nested=False) == {"state": {"a": 1}}
    beside = {"state": {"a": 1}, "camera": object()}
    assert freeze_observation(beside, nested=True) == {"state": {"a": 1}}


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_a_float_keeps_its_bits(value: float) -> None:
    again = back(value)
    assert type(again) is float
    assert bits(again) == bits(value) or (math.isnan(value) and math.isnan(again))


@given(st.floats(width=32))
def test_a_float32_keeps_its_bits(value: float) -> None:
    number = np.float32(value)
    again = back(number)
    assert type(again) is np.float32
    assert again.tobytes() == number.tobytes() or (np.isnan(number) and np.isnan(again))


@pytest.mark.parametrize("value", [-0.0, math.inf, -math.inf, 5e-324, 1.7976931348623157e308])
def test_floats_at_the_edges(value: float) -> None:
    assert bits(back(value)) == bits(value)


KEYS = st.none() | st.booleans() | st.integers() | st.text() | st.binary()
VALUES = st.recursive(
    KEYS | st.floats(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=4)
        | st.dictionaries(st.sampled_from(["$", "type", "items", "a"]), inner)
    ),
    max_leaves=20,
)


@given(VALUES)
def test_nested_values_come_back_equal_in_value_and_type(value: Any) -> None:
    assert repr(back(freeze(value))) == repr(value)


@given(st.integers(-(10**30), 10**30))
def test_integers(value: int) -> None:
    assert back(value) == value and type(back(value)) is int


def test_an_integer_of_more_digits_than_python_converts() -> None:
    for value in (10**5000, -(10**5000)):
        assert back(freeze(value)) == value


@given(
    st.sampled_from(["f4", ">f8", "i1", "<u8", "?", "f2", "c8", "S3", "U2", "M8[ns]"]),
    st.lists(st.integers(0, 5), max_size=3),
    st.randoms(use_true_random=False),
)
def test_arrays(dtype: str, shape: list[int], rng: Any) -> None:
    size = np.dtype(dtype).itemsize * int(np.prod(shape, dtype=int))
    raw = bytes(rng.choice([0, 0, 1]) for _ in range(size))
    value = np.frombuffer(raw, dtype).reshape(shape) if raw else np.zeros(shape, dtype)
    again = back(freeze(value))
    assert (again.dtype, again.shape) == (value.dtype, value.shape)
    assert again.tobytes() == value.tobytes()


def test_what_happens_to_an_observation_later_does_not_show() -> None:
    pose, inner = np.array([1.0, 2.0, 3.0]), [1.0, 2.0]
    obs = {"pose": pose, "list": inner, "deep": {"a": inner}, "buffer": bytearray(b"abc")}
    kept = freeze_observation(obs, nested=True)
    flat = {"speed": 1.0}
    kept_flat = freeze_observation(flat, nested=True)
    text = json.dumps(encode(kept))
    pose[:] = 9.0
    inner.append(7.0)
    obs["buffer"][0] = 0
    obs.clear()
    flat["speed"] = 2.0
    assert json.dumps(encode(kept)) == text
    assert kept_flat == {"speed": 1.0}


@pytest.mark.parametrize(
    "value",
    [
        list(range(MAX_VALUES + 1)),
        [[0.0] * 100] * 100,
        {str(n): n for n in range(MAX_VALUES + 1)},
        "x" * (MAX_BYTES + 1),
        bytes(MAX_BYTES + 1),
        bytearray(MAX_BYTES + 1),
        np.zeros(MAX_BYTES, np.float64),
        np.full(MAX_VALUES + 1, None),
        [np.zeros(MAX_BYTES // 2, np.uint8)] * 3,
        np.ma.masked_array([1.0, 2.0], [False, True]),
        np.void(b"ab"),
    ],
)
def test_what_is_too_large_or_too_strange_is_lost_and_says_so(value: Any) -> None:
    kept = freeze(value)
    assert len(json.dumps(encode(kept))) < 2 * MAX_BYTES
    with pytest.raises(RecordingError, match="too large or too strange to be kept: "):
        back(kept)


def test_nothing_is_lost_below_the_bounds() -> None:
    for value in ([0.0] * (MAX_VALUES // 2 - 1), "x" * MAX_BYTES, np.zeros(MAX_BYTES, np.uint8)):
        assert type(back(freeze(value))) is type(value)
    assert not isinstance(freeze({str(n): n for n in range(1000)}), Lost)


def test_a_value_that_contains_itself_is_lost() -> None:
    loop: list[Any] = []
    loop.append(loop)
    kept = freeze(loop)
    with pytest.raises(RecordingError):
        back(kept)


class Meta(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise ValueError


class Nameless(metaclass=Meta):
    pass


def test_an_object_whose_very_name_raises() -> None:
    assert freeze(Nameless()) == Opaque("?")


class Times(Mapping[str, int]):
    def __init__(self, **times: int) -> None:
        self._times = times

    def __getitem__(self, key: str) -> int:
        return self._times[key]

    def __iter__(self) -> Any:
        return iter(self._times)

    def __len__(self) -> int:
        return len(self._times)


TIMES: list[Any] = [
    None, 5, "5", 5.0, True, np.int64(5), [5], {}, {"speed": 5, "gap": 6}, {"speed": "x"}, {1: 5},
    Times(speed=5), HostileMapping(), MappingProxyType({"speed": 99}), object(), {"speed": 10**400},
]  # fmt: skip


@pytest.mark.parametrize("index", range(len(TIMES)))
def test_capture_times_read_as_they_did(index: int) -> None:
    captured = TIMES[index]
    again = back(freeze_times(captured))
    read = [Intake(SCHEMA, 3).read(STATE, 7, each) for each in (captured, again)]
    assert repr(read[0]) == repr(read[1])


@pytest.mark.parametrize(
    "data",
    [{"$": "magic"}, {"$": "int"}, {"$": "float", "value": "1"}, {"$": "bytes", "base64": "?"},
     {"$": "array", "dtype": "f4", "shape": [2], "values": [1]}, {"$": "numpy", "dtype": "??"},
     {"$": "sized", "type": "set", "size": "x"}, {"$": ["float"]}],
)  # fmt: skip
def test_data_of_another_form_is_refused(data: Any) -> None:
    with pytest.raises(RecordingError, match="a value cannot be read"):
        decode(data)


def test_records_of_our_own_need_no_marks() -> None:
    record = ("a", (1, 2.0), None, ((0.5, -0.0), None), math.inf)
    data = json.loads(json.dumps(plain(record), allow_nan=False))
    assert data == ["a", [1, 2.0], None, [[0.5, -0.0], None], {"$": "float", "value": "inf"}]
    assert unplain(data) == record
