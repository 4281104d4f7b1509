"""Tolerant encoding against objects made to break it: nothing raises, nothing else changes."""

from __future__ import annotations

import json
import random
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.model import schema_cases as cases
from wmrt.core.errors import StateError
from wmrt.model.schema import (
    UNKNOWN,
    StateSchema,
    category,
    flag,
    instruction,
    numeric,
    vector,
)

SCHEMA = StateSchema(
    {
        "number": numeric("m", -10, 10, required=True),
        "vector": vector(3, "m", -10, 10),
        "category": category(["a", "b"]),
        "flag": flag(),
        "text": instruction(),
        "last": numeric("m", -10, 10),
    },
    neutral=[0.0],
    max_unknown=2,
)


class Boom(Exception):
    pass


def boom(*args: Any, **kwargs: Any) -> Any:
    raise Boom


class EvilFloat(float):
    __float__ = __mul__ = __eq__ = __repr__ = __str__ = __hash__ = boom


class EvilInt(int):
    __float__ = __index__ = __int__ = __eq__ = __repr__ = __hash__ = boom


class EvilStr(str):
    __str__ = __eq__ = __repr__ = __len__ = __hash__ = __bool__ = boom


class EvilList(list):
    __iter__ = __len__ = __getitem__ = __repr__ = __bool__ = boom


class EvilArray(np.ndarray):
    __getitem__ = __array__ = __repr__ = __len__ = __iter__ = boom
    tolist = boom


class EvilMeta(type):
    __name__ = property(boom)  # type: ignore[assignment]
    __instancecheck__ = __eq__ = __hash__ = __repr__ = boom


class EvilObject(metaclass=EvilMeta):
    __class__ = property(boom)  # type: ignore[assignment]
    __float__ = __int__ = __index__ = __bool__ = __eq__ = __hash__ = __repr__ = boom
    __len__ = __iter__ = __getitem__ = __array__ = __getattr__ = boom


class Sly:
    """Passes through numpy's own constructors, but is no number."""

    __float__ = __int__ = __index__ = __repr__ = boom


class EvilMapping(Mapping):  # type: ignore[type-arg]
    def __init__(self, bad: str) -> None:
        self.bad = bad

    def __getitem__(self, key: str) -> Any:
        return boom() if self.bad == "get" else 1.0

    def __iter__(self) -> Iterator[str]:
        return boom() if self.bad == "iter" else iter(["number"])

    def __len__(self) -> int:
        return boom() if self.bad == "len" else 1


class EvilDict(dict):  # type: ignore[type-arg]
    __iter__ = __len__ = __getitem__ = keys = items = get = __contains__ = boom


class EvilKey(str):
    """A key with the hash of a field's name, whose comparison raises."""

    def __hash__(self) -> int:
        return hash("number")

    __eq__ = boom  # type: ignore[assignment]


def deep(levels: int = 100_000) -> list[Any]:
    out: list[Any] = []
    for _ in range(levels):
        out = [out]
    return out


def selfish() -> list[Any]:
    out: list[Any] = [1.0, 2.0]
    out.append(out)
    return out


VALUES: list[Any] = [
    EvilFloat(3.0), EvilInt(3), EvilStr("a"), EvilList([1.0, 2.0, 3.0]), EvilObject(), EvilMeta,
    np.zeros(3).view(EvilArray), np.zeros(()).view(EvilArray), deep(), selfish(), b"\xff" * 1000,
    "x" * 10**6, 10**5000, -(10**5000), float("nan"), float("-inf"), 1e300, -0.0, 5e-324, 1j,
    None, "", "\ud800", {}, {1: {2: 3}}, set(), object(), type, boom, iter([1.0]), range(3), ...,
    NotImplemented, Boom(), memoryview(b"abc"), bytearray(3), np.datetime64("NaT"), np.ma.masked,
    np.timedelta64(3), np.void(b"abc"), np.array([[1, 2, 3]]), np.array(["a", "b", "c"]),
    np.array([None, Sly(), 1.0], dtype=object), np.array(Sly(), dtype=object), Sly(),
    np.longdouble("inf"), np.float16("nan"), np.complex64(1), np.str_("a"), np.bytes_(b"a"),
    [EvilFloat(1), EvilObject(), EvilStr()], [None, "", b""], np.zeros(0), np.zeros((3, 0)),
    sys.modules, threading.Lock(), (x for x in "abc"), True, np.True_,
    np.recarray(3, [("f", "f4")]),
]  # fmt: skip
_ring = np.empty((), dtype=object)
_ring[()] = _ring
VALUES.append(_ring)

STATES: list[Any] = [
    *VALUES, EvilMapping("get"), EvilMapping("iter"), EvilMapping("len"), EvilDict(number=1.0),
    {EvilKey("other"): 1.0}, {object(): 1, None: 2, (1, 2): 3, 1.5: 4, b"number": 5},
    {"number": VALUES, "vector": deep()},
]  # fmt: skip


def check(state: Any) -> None:
    """Encode tolerantly, and hold the result to everything promised of it."""
    codes, values, issues = encoded = SCHEMA.encode(state)
    assert codes.shape == values.shape == (7,) and np.isfinite(values).all()
    assert (codes >= 0).all() and (codes <= [c.size - 1 for c in SCHEMA.columns]).all()
    assert ((codes == 0) == (encoded.q == UNKNOWN)).all()
    again = SCHEMA.encode_q(encoded.q)
    assert (again[0] == codes).all() and (again[1] == values).all()
    assert 0 <= SCHEMA.fingerprint(state) < 2**64
    for column, code in zip(SCHEMA.columns, codes, strict=True):
        told = [issue.kind for issue in issues if issue.field == column.name]
        assert code or told, column.name  # nothing is unknown in silence
    for issue in issues:
        assert type(issue.value) in (type(None), bool, int, float, str)
        assert "\n" not in issue.message and len(issue.message) < 400
        json.dumps(issue)
    wrong = [issue for issue in issues if issue.kind not in ("missing", "empty")]
    if wrong:
        with pytest.raises(StateError):
            SCHEMA.encode(state, strict=True)
    else:
        SCHEMA.encode(state, strict=True)


@pytest.mark.parametrize("field", list(SCHEMA.fields))
def test_any_object_as_a_value(field: str) -> None:
    good = {"number": 1.0, "vector": [1.0, 2.0, 3.0], "category": "a", "flag": True, "last": 2.0}
    base = SCHEMA.encode(good)
    others = [i for i, column in enumerate(SCHEMA.columns) if column.field != field]
    for value in VALUES:
        state = {**good, field: value}
        check(state)
        assert (SCHEMA.encode(state).q[others] == base.q[others]).all()


def test_any_object_as_a_state() -> None:
    for state in STATES:
        check(state)


def test_any_object_as_a_component() -> None:
    for value in VALUES:
        check({"number": 1.0, "vector": [1.0, value, 3.0]})
        assert SCHEMA.encode({"vector": [1.0, value, 3.0]}).q[[1, 3]].tolist() == [100, 300]


def test_subclasses_are_read_without_their_methods() -> None:
    state = {"number": EvilFloat(3.0), "vector": [EvilInt(1)] * 3, "category": EvilStr("a")}
    assert SCHEMA.encode(state).q.tolist()[:5] == [300, 100, 100, 100, 1]


@given(
    st.dictionaries(
        st.sampled_from([*SCHEMA.fields, "other"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)
            | st.binary(max_size=3) | st.complex_numbers() | st.decimals(),
            lambda inner: st.lists(inner, max_size=4) | st.tuples(inner, inner, inner)
            | st.dictionaries(st.text(max_size=2), inner, max_size=2),
            max_leaves=6,
        ),
    )
)  # fmt: skip
def test_any_tree_of_plain_values(state: dict[str, Any]) -> None:
    check(state)


def test_a_thousand_random_states(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(1000):
        state = {key: rng.choice(VALUES) for key in SCHEMA.fields if rng.random() < 0.9}
        if rng.random() < 0.1:
            state["other"] = rng.choice(VALUES)
        check(state)


def test_keyboard_interrupt_is_not_swallowed() -> None:
    class Interrupting(EvilMapping):
        def __iter__(self) -> Iterator[str]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        SCHEMA.encode(Interrupting(""))


def test_threads_share_a_schema(seed: int) -> None:
    """The encoder keeps no state between calls, so threads cannot disturb one another."""
    rng = random.Random(seed)
    schema = cases.driving()
    states = [cases.random_state(rng, schema) for _ in range(40)]
    want = [schema.fingerprint(state) for state in states]
    wrong: list[int] = []

    def work() -> None:
        for _ in range(20):
            got = [schema.fingerprint(state) for state in states]
            wrong.extend(a for a, b in zip(got, want, strict=True) if a != b)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
