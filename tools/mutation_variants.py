"""What may stand in for a piece of Python, for `tools.mutations`."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

_COMPARE: Mapping[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_BINARY: Mapping[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Pow: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.Mod: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
_CALLS = {
    "min": "max", "max": "min", "any": "all", "all": "any", "sorted": "list", "round": "int",
    "popleft": "pop",
}  # fmt: skip
#: Calls that are left out, so that what they were given stands for itself.
_DROPPED = {"abs", "set", "frozenset", "bool", "strip"}

#: (operator, what stands in for the node); None: the statement goes.
Variant: TypeAlias = "tuple[str, ast.AST | None]"


def statement_variants(node: ast.stmt) -> Iterator[Variant]:
    """What may stand in for a statement, apart from changes inside it."""
    if isinstance(node, (ast.Expr, ast.AugAssign, ast.Raise, ast.Assign)):
        yield "statement", None
    if isinstance(node, ast.Return) and ast.unparse(node) not in ("return", "return None"):
        yield "return", ast.Return(ast.Constant(None))
    if isinstance(node, ast.AugAssign):
        yield "arithmetic", ast.AugAssign(node.target, _BINARY[type(node.op)](), node.value)
    if isinstance(node, ast.Continue):
        yield "loop", ast.Break()
    if isinstance(node, ast.Break):
        yield "loop", ast.Continue()


def expression_variants(node: ast.expr, parent: ast.AST) -> Iterator[Variant]:
    """What may stand in for an expression."""
    if isinstance(parent, (ast.If, ast.IfExp)) and node is parent.test:
        yield from (("condition", ast.Constant(value)) for value in (True, False))
    if isinstance(parent, ast.For) and node is parent.iter:
        yield "loop", ast.Tuple([], ast.Load())
    if isinstance(node, ast.Compare):
        for n, op in enumerate(node.ops):
            for other in _COMPARE[type(op)]:
                ops = [*node.ops[:n], other(), *node.ops[n + 1 :]]
                yield "comparison", ast.Compare(node.left, ops, node.comparators)
    elif isinstance(node, ast.BinOp):
        yield "arithmetic", ast.BinOp(node.left, _BINARY[type(node.op)](), node.right)
    elif isinstance(node, ast.UnaryOp):
        yield "unary", node.operand
    elif isinstance(node, ast.BoolOp):
        yield from _boolean(node)
    elif isinstance(node, ast.Constant):
        if not isinstance(parent, (ast.Compare, ast.JoinedStr)) or node.value is not None:
            yield from (("constant", ast.Constant(value)) for value in _constants(node.value))
    elif isinstance(node, ast.Call):
        yield from _call(node)
    elif isinstance(node, ast.Lambda):
        yield "return", ast.Lambda(node.args, ast.Constant(None))


def _boolean(node: ast.BoolOp) -> Iterator[Variant]:
    """The other operator, and each operand left out."""
    other = ast.And() if isinstance(node.op, ast.Or) else ast.Or()
    yield "boolean", ast.BoolOp(other, node.values)
    for n in range(len(node.values)):
        rest = node.values[:n] + node.values[n + 1 :]
        yield "boolean", rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)


def _constants(value: Any) -> tuple[Any, ...]:
    """Other values of the same kind."""
    if isinstance(value, bool):
        return (not value,)
    if isinstance(value, int):
        return (value + 1, value - 1)
    if isinstance(value, float):
        return (value * 2.0, value * 0.5) if value else (1.0, -1.0)
    if isinstance(value, str):
        return (f"X{value}X",)
    return (0,) if value is None else ()


def _call(node: ast.Call) -> Iterator[Variant]:
    """Another function, or none."""
    name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
    if name in _CALLS:
        other: ast.expr = ast.Name(_CALLS[name], ast.Load())
        if isinstance(node.func, ast.Attribute):
            other = ast.Attribute(node.func.value, _CALLS[name], ast.Load())
        yield "call", ast.Call(other, node.args, node.keywords)
    if name in _DROPPED and isinstance(node.func, ast.Attribute):
        yield "call", node.func.value
    elif name in _DROPPED and node.args:
        yield "call", node.args[0]
