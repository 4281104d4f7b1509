"""Sizes of a launch as formulas over its arguments and constants: how many programs, which shapes.

Launches here evaluate them, and manifests carry them as data for programs that have no Python: a
number, a name, or a list of an operation of `OPERATIONS` and two formulas.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from wmrt.core.errors import UsageError

Formula: TypeAlias = "int | str | tuple[str, Formula, Formula]"
#: The one name that need be no argument of a kernel: the robots, vectors, rows or chunks of a
#: launch, which is the leading dimension of its tensors.
BATCH = "batch"
#: In shapes: rows of a table whose length the schema or the configuration gives.
ANY = "any"


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


OPERATIONS: Mapping[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "mul": operator.mul,
    "ceil_div": _ceil_div,
}
_WRITTEN = {ast.Add: "add", ast.Mult: "mul"}


class Grid:
    """Programs of a launch in x, y and z, each written as `parsed` takes it; without, 1.

    ``kernel[GRID(rows=rows, **constants)](..)`` launches, `folded` is for a manifest.
    """

    def __init__(self, *axes: str) -> None:
        if not 1 <= len(axes) <= 3:
            raise UsageError(f"a grid has 1 to 3 axes, got {len(axes)}")
        self.axes = tuple(parsed(axis) for axis in axes)
        self.names = frozenset(name for axis in self.axes for name in names(axis))

    def __call__(self, **values: Any) -> tuple[int, ...]:
        """Programs of a launch with these arguments and constants; more of them do no harm.

        Raises:
            UsageError: a name of the formula that is not given, or is no whole number.
        """
        found = [folded(axis, values) for axis in self.axes]
        missing = sorted({name for axis in found for name in names(axis)})
        if missing:
            raise UsageError(f"the grid {list(self.axes)} needs {', '.join(missing)}")
        return tuple(axis for axis in found if isinstance(axis, int))

    def folded(self, values: Mapping[str, Any]) -> list[Any]:
        """All three axes with these values in place of their names, as JSON has them."""
        return [listed(folded(axis, values)) for axis in (*self.axes, 1, 1)[:3]]


def parsed(text: str) -> Formula:
    """``ceil_div(rows, ROWS) + 1`` as a formula. Raises `UsageError` as `parsed_all`."""
    (formula,) = parsed_all(text)
    return formula


def parsed_all(text: str) -> tuple[Formula, ...]:
    """Formulas with commas between.

    Raises:
        UsageError: anything but whole numbers, names, ``+``, ``*`` and ``ceil_div(.., ..)``.
    """
    try:
        match ast.parse(f"({text},)", mode="eval").body:
            case ast.Tuple(elts=[_, *_] as each):
                return tuple(map(_of, each))
        raise ValueError
    except (SyntaxError, ValueError):
        raise UsageError(
            f"{text!r} is no formula; one has whole numbers, names, +, * and ceil_div(a, b)"
        ) from None


def _of(node: ast.expr) -> Formula:
    match node:
        case ast.Constant(value=int(number)) if not isinstance(number, bool):
            return number
        case ast.Name(id=name):
            return name
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _WRITTEN:
            return _WRITTEN[type(sign)], _of(left), _of(right)
        case ast.Call(func=ast.Name(id="ceil_div"), args=[first, second], keywords=[]):
            return "ceil_div", _of(first), _of(second)
    raise ValueError


def names(formula: Formula) -> Iterator[str]:
    """The names in it."""
    if isinstance(formula, str):
        yield formula
    elif isinstance(formula, tuple):
        yield from (*names(formula[1]), *names(formula[2]))


def folded(formula: Formula, values: Mapping[str, Any]) -> Formula:
    """The formula with these values in place of their names; a number if nothing is left open.

    Raises `UsageError`: a value that is no whole number.
    """
    if isinstance(formula, str):
        value = values.get(formula, formula)
        if isinstance(value, bool) or not (value is formula or isinstance(value, int)):
            raise UsageError(f"{formula}={value!r}: a formula takes whole numbers")
        return value
    if isinstance(formula, int):
        return formula
    operation, one, two = formula
    first, second = folded(one, values), folded(two, values)
    if isinstance(first, int) and isinstance(second, int):
        return OPERATIONS[operation](first, second)
    return operation, first, second


def listed(formula: Formula) -> Any:
    """As JSON has it: lists in place of tuples."""
    return [listed(part) for part in formula] if isinstance(formula, tuple) else formula
