"""The package is pure: standard library for arithmetic alone, no clock, no file, no thread."""

from __future__ import annotations

import ast
from pathlib import Path

import wmrt.safety
from tests.house.tree import imports

FILES = sorted(Path(wmrt.safety.__file__).parent.glob("*.py"))
ALLOWED = {
    "__future__", "collections", "dataclasses", "enum", "functools", "hashlib", "itertools", "json",
    "math", "struct", "sys", "types", "typing",
}  # fmt: skip
FORBIDDEN_CALLS = {"open", "print", "input", "exec", "eval", "compile", "__import__", "breakpoint"}


def test_imports() -> None:
    assert len(FILES) > 10
    for path in FILES:
        for line, name in imports(path):
            ours = name.startswith(("wmrt.safety.", "wmrt.core.errors", "wmrt.core.types"))
            assert ours or name.split(".")[0] in ALLOWED, f"{path.name}:{line} imports {name}"


def test_nothing_is_read_written_or_kept_outside() -> None:
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in FORBIDDEN_CALLS, f"{path.name}:{node.lineno}"
            assert not isinstance(node, (ast.Global, ast.Nonlocal)), f"{path.name}:{node.lineno}"
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "sys":
                assert node.attr == "float_info", f"{path.name}:{node.lineno}"
