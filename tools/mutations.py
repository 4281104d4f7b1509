"""Small changes to Python source, one at a time, that a good test suite notices.

What is left alone, because it decides nothing: docstrings, annotations, imports, ``__all__``, and
the wording of error messages (what raises them, and what they name, is changed like the rest).
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tools.mutation_variants import Variant, expression_variants, statement_variants


@dataclass(frozen=True, eq=False)
class Mutant:
    """One change.

    Attributes:
        name: the same as long as the line and its function stay: ``file::function: old -> new``.
        file: where, a path from the root of the repository.
        scope: names of the classes and functions around it, outermost first.
        line, last_line: of the statement's own expression that changes.
        code: it is inside a function, so that only calling that shows it.
        operator: kind of change.
    """

    name: str
    file: str
    scope: tuple[str, ...]
    line: int
    last_line: int
    code: bool
    operator: str
    parent: ast.AST
    field: str
    index: int | None
    new: ast.AST

    def apply(self) -> Any:
        """Put the change into the tree; returns what stood there."""
        value = getattr(self.parent, self.field)
        if self.index is None:
            setattr(self.parent, self.field, self.new)
            return value
        old, value[self.index] = value[self.index], self.new
        return old

    def undo(self, old: Any) -> None:
        """Put ``old`` back."""
        if self.index is None:
            setattr(self.parent, self.field, old)
        else:
            getattr(self.parent, self.field)[self.index] = old


def enumerations(trees: Iterator[ast.Module] | list[ast.Module]) -> dict[str, list[str]]:
    """Members of every enumeration class in these modules."""
    found: dict[str, list[str]] = {}
    for tree in trees:
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and any("Enum" in ast.unparse(b) for b in node.bases):
                assigned = [each for each in node.body if isinstance(each, ast.Assign)]
                found[node.name] = [ast.unparse(each.targets[0]) for each in assigned]
    return found


def mutants(tree: ast.Module, file: str, enums: Mapping[str, list[str]]) -> list[Mutant]:
    """Every mutant of a module, in the order of its source."""
    walk = _Walk(file, enums)
    walk.block(tree, "body", ())
    return walk.found


class _Walk:
    """Goes through a module and collects its mutants."""

    def __init__(self, file: str, enums: Mapping[str, list[str]]) -> None:
        self._file, self._enums = file, enums
        self._names: Counter[str] = Counter()
        self.found: list[Mutant] = []
        self._code = False

    def block(self, parent: ast.AST, field: str, scope: tuple[str, ...]) -> None:
        for index, statement in enumerate(getattr(parent, field)):
            self._statement(parent, field, index, statement, scope)

    def _statement(
        self, parent: ast.AST, field: str, index: int, node: ast.stmt, scope: tuple[str, ...]
    ) -> None:
        if _inert(node):
            return
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            self._definition(node, (*scope, node.name))
            return
        self._add(parent, field, index, node, scope, statement_variants(node))
        for name, value in ast.iter_fields(node):
            if name in ("body", "orelse", "finalbody"):
                self.block(node, name, scope)
            elif name == "handlers":
                for handler in value:
                    self._handler(handler, scope)
            elif name not in ("annotation", "target", "targets"):
                self._value(node, name, value, scope, isinstance(node, ast.Raise))

    def _definition(self, node: ast.FunctionDef | ast.ClassDef, scope: tuple[str, ...]) -> None:
        """Decorators and defaults run on import, a function's body when it is called."""
        self._value(node, "decorator_list", node.decorator_list, scope, False)
        if isinstance(node, ast.ClassDef):
            self.block(node, "body", scope)
            return
        for name in ("defaults", "kw_defaults"):
            self._value(node.args, name, getattr(node.args, name), scope, False)
        outer, self._code = self._code, True
        self.block(node, "body", scope)
        self._code = outer

    def _handler(self, node: ast.ExceptHandler, scope: tuple[str, ...]) -> None:
        """An ``except`` that catches less, and what it does."""
        if isinstance(node.type, ast.Tuple):
            for each in node.type.elts:
                rest: list[ast.expr] = [other for other in node.type.elts if other is not each]
                self._add(
                    node, "type", None, node.type, scope, [("except", ast.Tuple(rest, ast.Load()))]
                )
        elif node.type is not None:
            self._add(
                node, "type", None, node.type, scope, [("except", ast.Name("IOError", ast.Load()))]
            )
        self.block(node, "body", scope)

    def _value(
        self, parent: ast.AST, field: str, value: Any, scope: tuple[str, ...], message: bool
    ) -> None:
        """The expressions of a field; the text of a ``message`` stays."""
        for index, node in enumerate(value if isinstance(value, list) else [value]):
            place = index if isinstance(value, list) else None
            if isinstance(node, ast.keyword):
                self._value(node, "value", node.value, scope, message)
                flag = isinstance(node.value, ast.Constant) and isinstance(node.value.value, bool)
                if isinstance(parent, ast.Call) and not flag:  # a flag is turned instead
                    self._drop(parent, index, scope)
            elif isinstance(node, ast.comprehension):
                for name in ("iter", "ifs"):
                    self._value(node, name, getattr(node, name), scope, message)
            elif isinstance(node, ast.expr) and not (message and _is_text(node)):
                found = [*expression_variants(node, parent), *self._members(node)]
                if field == "ifs":
                    found += [("condition", ast.Constant(value)) for value in (True, False)]
                self._add(parent, field, place, node, scope, found)
                for name, inner in ast.iter_fields(node):
                    if name not in ("ctx", "op", "ops", "args" * isinstance(node, ast.Lambda)):
                        self._value(node, name, inner, scope, message)

    def _drop(self, call: ast.Call, index: int, scope: tuple[str, ...]) -> None:
        """The call without one of its keyword arguments."""
        rest = [keyword for n, keyword in enumerate(call.keywords) if n != index]
        holder = ast.Call(call.func, call.args, rest)
        self._record(call, "keywords", None, call, scope, "keyword", rest, ast.unparse(holder))

    def _members(self, node: ast.expr) -> Iterator[Variant]:
        """The next member of an enumeration."""
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            members = self._enums.get(node.value.id, [])
            if node.attr in members:
                other = members[(members.index(node.attr) + 1) % len(members)]
                yield "member", ast.Attribute(node.value, other, ast.Load())

    def _add(
        self,
        parent: ast.AST,
        field: str,
        index: int | None,
        node: ast.AST,
        scope: tuple[str, ...],
        variants: Iterator[Variant] | list[Variant],
    ) -> None:
        for operator, new in variants:
            made = ast.Pass() if new is None else new
            after = ast.unparse(ast.fix_missing_locations(made))
            self._record(parent, field, index, node, scope, operator, made, after)

    def _record(
        self,
        parent: ast.AST,
        field: str,
        index: int | None,
        node: ast.AST,
        scope: tuple[str, ...],
        operator: str,
        new: Any,
        after: str,
    ) -> None:
        made = [new] if isinstance(new, ast.AST) else new
        for each in made:
            ast.copy_location(each, node)
            ast.fix_missing_locations(each)
        before = " ".join(ast.unparse(node).split())
        name = f"{self._file}::{'.'.join(scope)}: {before} -> {' '.join(after.split())}"
        self._names[name] += 1
        if self._names[name] > 1:
            name += f" [{self._names[name]}]"
        line, last = node.lineno, node.end_lineno or node.lineno  # type: ignore[attr-defined]
        self.found.append(
            Mutant(
                name, self._file, scope, line, last, self._code, operator, parent, field, index, new
            )
        )


def _inert(node: ast.stmt) -> bool:
    """Decides nothing: an import, a docstring, a bare annotation, ``__all__``, a typing block."""
    if isinstance(node, (ast.Import, ast.ImportFrom, ast.Pass)):
        return True
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    if isinstance(node, ast.AnnAssign):
        return node.value is None
    if isinstance(node, ast.If):
        return ast.unparse(node.test) == "TYPE_CHECKING"
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
