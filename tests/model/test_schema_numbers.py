"""Rounding and buckets, against an oracle that works on decimals alone."""

from __future__ import annotations

import decimal
import random
from decimal import ROUND_HALF_EVEN, Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.model import schema_cases as cases
from wmrt.core.errors import StateError
from wmrt.model.rounding import MAX_Q, bucket_bounds, exact_q, q_range
from wmrt.model.schema import UNKNOWN, StateSchema, numeric

DECIMALS = range(7)
#: One column per number of decimals, all of them far from their bounds.
SEVEN = StateSchema(
    {f"d{d}": numeric("", -(10 ** (9 - d)), 10 ** (9 - d), d) for d in DECIMALS}, neutral=[0]
)
#: The same with ranges so narrow that most values take the short way.
NARROW = StateSchema(
    {f"d{d}": numeric("", -(10 ** (4 - d)), 10 ** (4 - d), d) for d in DECIMALS}, neutral=[0]
)


def oracle(value: float, decimals: int) -> int:
    """Half-even rounding of numpy's shortest float32 text, as an integer."""
    with np.errstate(over="ignore"):
        text = str(np.float32(value))
    step = Decimal(1).scaleb(-decimals)
    with decimal.localcontext() as context:
        context.prec = 60
        return int(Decimal(text).quantize(step, ROUND_HALF_EVEN).scaleb(decimals))


def clamped(value: float, column: int, schema: StateSchema) -> int:
    at = schema.columns[column]
    return max(at.q_low, min(at.q_high, oracle(value, at.decimals)))


def near_ties(rng: np.random.Generator, decimals: int, largest: int, count: int) -> np.ndarray:
    """float64 values at and around (k + 0.5) / 10**decimals, on the float32 grid and off it."""
    k = rng.integers(-largest, largest, count)
    tie64 = (k + 0.5) / 10.0**decimals
    tie32 = tie64.astype(np.float32)
    up, down = np.float32(np.inf), np.float32(-np.inf)
    on_grid = [tie32, np.nextafter(tie32, up), np.nextafter(tie32, down)]
    on_grid += [np.nextafter(on_grid[1], up), np.nextafter(on_grid[2], down)]
    off_grid = [tie64, np.nextafter(tie64, np.inf), np.nextafter(tie64, -np.inf)]
    return np.concatenate([part.astype(np.float64) for part in on_grid + off_grid])


def check(schema: StateSchema, table: np.ndarray) -> None:
    """Scalar, vectorised and oracle agree on float64[N, 7]."""
    batch = schema.quantize_array(table)
    names = [column.name for column in schema.columns]
    for row, got in zip(table.tolist(), batch, strict=True):
        scalar, _ = schema.quantize(dict(zip(names, row, strict=True)))
        want = [clamped(value, i, schema) for i, value in enumerate(row)]
        assert scalar.tolist() == got.tolist() == want, row


@pytest.mark.parametrize("schema", [SEVEN, NARROW], ids=["wide", "narrow"])
def test_ties(schema: StateSchema, seed: int) -> None:
    rng = np.random.default_rng(seed)
    columns = [near_ties(rng, d, largest, 60) for d in DECIMALS for largest in [9_999, 2**21]]
    table = np.stack([np.concatenate(columns[2 * d : 2 * d + 2]) for d in DECIMALS], axis=1)
    check(schema, table)


@pytest.mark.parametrize("schema", [SEVEN, NARROW], ids=["wide", "narrow"])
def test_random_readings(schema: StateSchema, seed: int) -> None:
    rng = np.random.default_rng(seed)
    high = np.array([column.high for column in schema.columns])
    check(schema, rng.uniform(-1.2, 1.2, (400, 7)) * high)
    check(schema, 10.0 ** rng.uniform(-12, 9, (200, 7)) * rng.choice([-1, 1], (200, 7)))


@pytest.mark.parametrize("schema", [SEVEN, NARROW], ids=["wide", "narrow"])
def test_around_the_bounds(schema: StateSchema) -> None:
    for side in (-1, 1):
        high = np.float32([side * column.high for column in schema.columns])
        above = below = high
        rows = [high]
        for _ in range(40):
            above = np.nextafter(above, np.float32(np.inf))
            below = np.nextafter(below, np.float32(-np.inf))
            rows += [above, below]
        steps = np.arange(-30, 31)[:, None] / 20.0 / 10.0 ** np.arange(7)
        check(schema, np.concatenate([np.stack(rows).astype(np.float64), high + steps]))


@given(st.floats(width=32, allow_nan=False, allow_infinity=False), st.integers(0, 6))
def test_any_float32(value: float, decimals: int) -> None:
    assert exact_q(value, decimals) == oracle(value, decimals)
    for schema in (SEVEN, NARROW):
        q, _ = schema.quantize({f"d{decimals}": value})
        assert q[decimals] == clamped(value, decimals, schema)


@given(st.floats() | st.integers())
def test_any_number_scalar_equals_array(value: float) -> None:
    table = np.full((1, 7), float(value) if abs(value) < 2**1000 else np.inf)
    for schema in (NARROW, SEVEN):
        scalar, _ = schema.quantize({f"d{d}": value for d in DECIMALS})
        assert scalar.tolist() == schema.quantize_array(table)[0].tolist()


def test_known_roundings() -> None:
    """Half-even on the decimal, where rounding the binary value would go the other way."""
    schema = StateSchema({"x": numeric("m", -200, 200, 2)}, neutral=[0])
    known = {
        1.005: 100, 1.015: 102, 2.675: 268, 0.125: 12, 0.375: 38, -0.125: -12, -0.0: 0, 0.004: 0,
        99.995: 10_000, 33.335: 3334, 33.345: 3334, 1e-45: 0, 200.004: 20_000, 200.006: 20_000,
    }  # fmt: skip
    for value, q in known.items():
        encoded = schema.encode({"x": value})
        assert encoded.q.tolist() == [q], value
        assert not np.signbit(encoded.values[0]) or q < 0
        assert encoded.values[0] == np.float32(q / 100)
    assert [issue.kind for issue in schema.encode({"x": 200.004}).issues] == []
    assert [issue.kind for issue in schema.encode({"x": 200.006}).issues] == ["range"]


def test_one_reading_in_any_width_is_one_value() -> None:
    schema = StateSchema({"x": numeric("m", -100, 100, 3)}, neutral=[0])
    for value in np.linspace(-99, 99, 397, dtype=np.float16):
        forms = [value, np.float32(value), np.float64(value), float(value), np.longdouble(value)]
        forms += [np.array(value), np.array(value, dtype=object)]
        assert len({schema.fingerprint({"x": form}) for form in forms}) == 1
    for value in (0.1, 2.675, 33.335):
        assert schema.fingerprint({"x": value}) == schema.fingerprint({"x": np.float32(value)})
    for kind in (int, np.int8, np.int16, np.int64, np.uint8, np.uint32, np.uint64, float):
        assert schema.quantize({"x": kind(7)})[0].tolist() == [7000]


@pytest.mark.parametrize("decimals", [0, 2, 5])
def test_buckets(decimals: int, seed: int) -> None:
    """code - 1 is the number of inner knots that the float32 value reaches."""
    rng = np.random.default_rng(seed)
    high = 10.0 ** (5 - decimals)
    for buckets in (1, 2, 33, 64):
        inner = np.sort(rng.uniform(-high, high, buckets - 1)).round(decimals)
        knots = np.unique(np.float32([-high, *inner, high]))
        field = numeric("m", -high, high, decimals, len(knots) - 1, knots=knots.tolist())
        schema = StateSchema({"x": field}, neutral=[0])
        readings = np.concatenate([rng.uniform(-high, high, 300), knots, knots + 0.1**decimals])
        q = schema.quantize_array(readings[:, None])
        codes, values = schema.encode_q(q)
        want = np.searchsorted(knots[1:-1], values[:, 0], side="right") + 1
        assert codes[:, 0].tolist() == want.tolist()
        assert (values[:, 0] >= knots[want - 1]).all() and (values[:, 0] <= knots[want]).all()


@pytest.mark.parametrize("fields", [1, 12, 60])
def test_encode_equals_encode_q_of_quantize(fields: int, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(6):
        schema = cases.random_schema(rng, fields) if fields > 1 else NARROW
        states = [cases.random_state(rng, schema) for _ in range(15)]
        encoded = [schema.encode(state) for state in states]
        q = np.stack([schema.quantize(state)[0] for state in states])
        codes, values = schema.encode_q(q)
        assert codes.dtype == np.int32 and values.dtype == np.float32 and q.dtype == np.int64
        assert (np.stack([e.q for e in encoded]) == q).all()
        assert (np.stack([e.codes for e in encoded]) == codes).all()
        assert np.stack([e.values for e in encoded]).tobytes() == values.tobytes()
        assert ((codes == 0) == (q == UNKNOWN)).all()
        # The numeric part again, from the rounded values themselves.
        index = list(schema.numeric_index)
        again = schema.quantize_array(np.where(codes == 0, np.nan, values)[:, index])
        assert (again == q[:, index]).all()


def test_encode_q_takes_any_leading_shape(seed: int) -> None:
    rng = random.Random(seed)
    schema = cases.driving()
    q = np.stack([schema.quantize(cases.random_state(rng, schema))[0] for _ in range(6)])
    flat = schema.encode_q(q)
    for shape in [(2, 3), (1, 6), (3, 1, 2)]:
        codes, values = schema.encode_q(q.reshape(*shape, -1))
        assert codes.shape == values.shape == (*shape, len(schema))
        assert codes.ravel().tolist() == flat[0].ravel().tolist()
    codes, values = schema.encode_q(q[:0])
    assert codes.shape == values.shape == (0, len(schema))
    only_flags = StateSchema({"a": cases.flag()}, neutral=[0])
    assert only_flags.encode_q([[1], [2], [UNKNOWN]])[0].tolist() == [[1], [2], [0]]
    assert only_flags.quantize_array(np.zeros((3, 0))).shape == (3, 0)


def test_wrong_integers_and_readings_are_refused() -> None:
    schema = cases.driving()
    good, _ = schema.quantize({"ego_speed": 1.0, "lane_offset": 0.0})
    for column, value in ((0, 4001), (0, -1), (2, 0), (2, 4), (3, 3)):
        bad = good.copy()
        bad[column] = value
        name = schema.columns[column].name
        with pytest.raises(StateError, match=rf"^{name}: q {value} is not a state"):
            schema.encode_q(bad)
        with pytest.raises(StateError, match=f"{name}: q {value}"):
            schema.fingerprint_q(bad)
        with pytest.raises(StateError, match=f"{name}: q {value}"):
            schema.decode(bad)
    for wrong in (good[:-1], good.astype(np.float64), good.astype(np.uint64), np.int64(3)):
        with pytest.raises(StateError, match=r"q must be int64 of shape \[\.\.\., 12\]"):
            schema.encode_q(wrong)
    for wrong in (np.zeros(9), np.zeros((2, 10), dtype=bool), np.float32(1)):
        with pytest.raises(StateError, match=r"readings must be numbers of shape \[\.\.\., 10\]"):
            schema.quantize_array(wrong)
    for method in (schema.decode, schema.fingerprint_q):
        with pytest.raises(StateError, match="takes one state"):
            method(np.stack([good, good]))


def test_q_range_lies_inside() -> None:
    assert q_range(-3.14159, 3.14159, 2) == (-314, 314)
    assert q_range(0.1, 0.7, 1) == (1, 7)  # 0.1 * 10 and 0.7 * 10 are not whole in binary
    assert q_range(-0.5, 0.5, 0) == (0, 0)


def test_bounds_are_first_integers_that_reach_the_knot(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for decimals in (0, 3, 9):
        q_low, q_high = -(10**6), MAX_Q // 2**9
        high = q_high / 10**decimals
        knots = np.sort(rng.uniform(q_low / 10**decimals, high, 9)).astype(np.float32)
        bounds = np.array(bucket_bounds(knots.tolist(), q_low, q_high, decimals))
        inner = knots[1:-1]
        assert ((bounds / 10.0**decimals).astype(np.float32) >= inner).all()
        assert (((bounds - 1) / 10.0**decimals).astype(np.float32) < inner).all()


def test_print_options_and_decimal_context_change_nothing() -> None:
    want = exact_q(np.float32(33.335), 2)
    with np.printoptions(precision=1, floatmode="fixed"), decimal.localcontext() as context:
        context.prec = 2
        context.rounding = decimal.ROUND_UP
        assert exact_q(np.float32(33.335), 2) == want == 3334
