"""Where the repository's own files are, for the tests that read or copy them."""

from __future__ import annotations

import ast
import functools
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: The four real folders that wmrt/ links to.
LINKED = ("envs", "kernels", "quant", "service")
_SKIP = {"__pycache__", "build", "dist", "data", "runs", "out", "node_modules"}


def files(*folders: str, suffix: str = "", root: Path = ROOT) -> Iterator[Path]:
    """Files under the given folders of ``root``, each once (links are not followed)."""
    for folder in folders:
        for directory, names, found in os.walk(root / folder):
            names[:] = sorted(n for n in names if n not in _SKIP and not n.endswith(".egg-info"))
            yield from (Path(directory, f) for f in sorted(found) if f.endswith(suffix))


def library() -> list[Path]:
    """Every Python file of the library and its tools, not of the tests."""
    found = list(files("wmrt", *LINKED, "tools", suffix=".py"))
    assert len(found) > 20, "the walk lost the library"
    return found


@functools.cache
def nodes(path: Path) -> list[ast.AST]:
    """Every node of a file; read once, for all the rules."""
    return list(ast.walk(ast.parse(path.read_text("utf-8"), str(path))))


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, absolute dotted name) of every import anywhere in a file; TYPE_CHECKING ones too."""
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import; write wmrt.…"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def copy_source(target: Path) -> Path:
    """A copy of what packaging reads, links kept as links, without what was made from it."""
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.so")
    for folder in ("wmrt", *LINKED):
        shutil.copytree(ROOT / folder, target / folder, symlinks=True, ignore=ignore)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, target / name)
    return target
