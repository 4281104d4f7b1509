"""Fields of several columns or of none: vectors, the instruction, and the limit on unknowns."""

from __future__ import annotations

import array

import numpy as np
import pytest

from tests.model import schema_cases as cases
from wmrt.core.errors import StateError
from wmrt.model.issues import Issue
from wmrt.model.schema import UNKNOWN, Encoded, StateSchema, flag, instruction, vector

ARM = StateSchema(
    {
        "joints": vector(3, "rad", -3, 3, 3, required=True),
        "gripper": flag(),
        "force": vector(2, "N", 0, 50, 1),
        "task": instruction(),
    },
    neutral=[0.0, 0.0],
    max_unknown=1,
)


def kinds(encoded: Encoded) -> list[tuple[str, str]]:
    return [(issue.field, issue.kind) for issue in encoded.issues]


def test_columns() -> None:
    names = ["joints[0]", "joints[1]", "joints[2]", "gripper", "force[0]", "force[1]"]
    assert [column.name for column in ARM.columns] == names
    assert [column.field for column in ARM.columns] == ["joints"] * 3 + ["gripper"] + ["force"] * 2
    assert [column.kind for column in ARM.columns] == ["numeric"] * 3 + ["flag"] + ["numeric"] * 2
    assert [column.size for column in ARM.columns] == [65] * 3 + [3] + [65] * 2
    assert [column.required for column in ARM.columns] == [True] * 3 + [False] * 3
    assert ARM.numeric_index == (0, 1, 2, 4, 5)
    assert len(ARM) == 6 and ARM.instruction == "task" and cases.driving().instruction is None
    first = ARM.columns[0]
    assert (first.low, first.high, first.decimals, first.unit) == (-3.0, 3.0, 3, "rad")
    assert len(first.knots) == first.size == 65
    assert (first.knots[0], first.knots[-1]) == (-3.0, 3.0)


@pytest.mark.parametrize(
    "value",
    [
        [0.1, -0.2, 3.0], (0.1, -0.2, 3), np.array([0.1, -0.2, 3.0]),
        np.array([0.1, -0.2, 3.0], dtype=np.float32), array.array("d", [0.1, -0.2, 3.0]),
        np.array([0.1, -0.2, 3.0], dtype=object), [np.float32(0.1), np.float64(-0.2), np.array(3)],
        np.ma.array([0.1, -0.2, 3.0]),
    ],
)  # fmt: skip
def test_vectors(value: object) -> None:
    encoded = ARM.encode({"joints": value, "gripper": 1, "force": [1, 2], "task": "grasp"}, True)
    assert encoded.q.tolist() == [100, -200, 3000, 2, 10, 20]
    assert encoded.instruction == "grasp"
    state = ARM.decode(encoded.q)
    assert state == {"joints": [0.1, -0.2, 3.0], "gripper": True, "force": [1.0, 2.0]}


def test_one_bad_component_costs_one_column() -> None:
    state = {"joints": [0.1, float("nan"), 9.0], "gripper": True, "force": ["1", None]}
    encoded = ARM.encode(state)
    assert kinds(encoded) == [
        ("joints[1]", "nonfinite"), ("joints[1]", "required"), ("joints[2]", "range"),
        ("force[0]", "type"), ("force[1]", "empty"),
    ]  # fmt: skip
    assert encoded.codes.tolist()[:3] == [34, 0, 64]
    assert ARM.decode(encoded.q)["joints"] == [0.1, None, 3.0]
    assert ARM.decode(encoded.q)["force"] == [None, None]
    masked = ARM.encode({"joints": np.ma.array([1.0, 2.0, 3.0], mask=[0, 1, 0])})
    assert masked.codes.tolist()[:3] == [43, 0, 64]
    bits = ARM.encode({"joints": [1, 2, 3], "gripper": 0, "force": np.array([True, False])})
    assert kinds(bits)[-2:] == [("force[0]", "type"), ("force[1]", "type")]


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ([0.1, 0.2], "length"), ([0.1] * 4, "length"), ([], "length"), (np.zeros(4), "length"),
        (np.zeros((1, 3)), "length"), (0.5, "type"), ("abc", "type"), ({0: 1, 1: 2, 2: 3}, "type"),
        (np.array(3.0), "type"), (iter([1, 2, 3]), "type"), (b"abc", "type"),
        (np.array([1, 2, 3], "m8[ns]"), "type"), (None, "empty"), ("", "empty"),
    ],
)  # fmt: skip
def test_wrong_vectors(value: object, kind: str) -> None:
    encoded = ARM.encode({"joints": value, "gripper": True, "force": [1, 2]})
    assert (encoded.q[:3] == UNKNOWN).all() and encoded.q.tolist()[3:] == [2, 10, 20]
    want = [(f"joints[{i}]", k) for i in range(3) for k in (kind, "required")]
    assert kinds(encoded) == want
    with pytest.raises(StateError, match=r"^joints\[0\]: "):
        ARM.encode({"joints": value}, strict=True)


def test_nested_components_are_no_numbers() -> None:
    for value in ([[1.0], [2.0], [3.0]], np.zeros((3, 1)), [(1,), {}, [[]]]):
        encoded = ARM.encode({"joints": value})
        assert [k for f, k in kinds(encoded) if f.startswith("joints")] == ["type", "required"] * 3


def test_max_unknown_counts_optional_fields() -> None:
    full = {"joints": [0, 0, 0], "gripper": True, "force": [1, 2]}
    assert ARM.encode(full).issues == ()  # no instruction is no issue and not counted
    assert kinds(ARM.encode({**full, "force": [None, None]}))[-1] == ("force[1]", "empty")
    encoded = ARM.encode({**full, "force": [1, None], "gripper": None})
    assert encoded.issues[-1] == Issue("", "max_unknown", 2, "at most 1")
    assert encoded.issues[-1].invalid
    with pytest.raises(StateError, match=r"^state: 2 optional fields are unknown; .* at most 1$"):
        ARM.encode({**full, "force": None, "gripper": None}, strict=True)


def test_instruction() -> None:
    full = {"joints": [0, 0, 0], "gripper": True, "force": [1, 2]}
    assert ARM.encode({**full, "task": "cafe\u0301"}).instruction == "caf\u00e9"
    for nothing in (None, ""):
        encoded = ARM.encode({**full, "task": nothing}, strict=True)
        assert encoded.instruction is None and encoded.issues == ()
    for wrong in (7, b"grasp", ["grasp"], "\ud800"):
        encoded = ARM.encode({**full, "task": wrong})
        assert encoded.instruction is None and kinds(encoded) == [("task", "type")]
        with pytest.raises(StateError, match=r"^task: .*; allowed: a text, or None"):
            ARM.encode({**full, "task": wrong}, strict=True)
    assert ARM.encode({**full, "task": np.str_("grasp")}).instruction == "grasp"
