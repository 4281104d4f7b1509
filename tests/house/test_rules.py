"""Rules of the house that no linter knows."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.conftest import LONGEST
from tests.house.tree import LINKED, ROOT, files, imports, library, nodes

MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 40  # docstring not counted
PICKLES = {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
PERSONAL_PATH = re.compile(r"(?<![\w.])/(?:home|Users|root|work)/\w|[A-Z]:\\Users")
DIRECTORY_LISTING = ("wmrt", *LINKED, "tests", "tools", "deploy", ".ci")


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def line_count(path: Path) -> int:
    return len(path.read_text("utf-8").splitlines())


def test_files_are_short() -> None:
    long = {relative(p): n for p in library() if (n := line_count(p)) > MAX_FILE_LINES}
    assert long == {}, f"split: at most {MAX_FILE_LINES} lines a file"


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from ``def`` to the end, less the docstring's; of a triton kernel, whose every pointer
    and constant is a parameter on a line of its own, those of the body."""
    first = function.body[0]
    is_doc = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    doc = (first.end_lineno or first.lineno) - first.lineno + 1 if is_doc else 0
    kernel = any("triton.jit" in ast.unparse(each) for each in function.decorator_list)
    start = first.lineno if kernel else function.lineno
    return (function.end_lineno or function.lineno) - start + 1 - doc


def test_functions_are_short() -> None:
    long = [
        f"{relative(path)}:{node.lineno} {node.name} {body_lines(node)}"
        for path in library()
        for node in nodes(path)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and body_lines(node) > MAX_FUNCTION_LINES
    ]
    assert long == [], f"split: at most {MAX_FUNCTION_LINES} lines a function"


def test_no_wall_clock_and_no_pickle() -> None:
    for path in library():
        text = path.read_text("utf-8")
        assert "time.time(" not in text, f"{relative(path)}: use a Clock or time.monotonic_ns"
        assert not re.search(r"torch\.(load|save)\(", text), (
            f"{relative(path)}: pickle; safetensors"
        )
        for line, name in imports(path):
            assert name != "time.time", f"{relative(path)}:{line}"
            assert name.split(".")[0] not in PICKLES, f"{relative(path)}:{line} imports {name}"


def test_no_path_of_anybodys_machine() -> None:
    top = [p for p in ROOT.iterdir() if p.is_file() and p.suffix in ("", ".md", ".toml", ".txt")]
    for path in [*top, *files(*DIRECTORY_LISTING)]:
        if path.suffix in {".npz", ".safetensors", ".gif", ".png", ".pyc", ".so"}:
            continue
        found = PERSONAL_PATH.search(path.read_text("utf-8"))
        assert found is None, f"{relative(path)}: {found.group()}"


def test_nothing_is_left_for_later() -> None:
    marks = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b|NotImplemented" + r"Error")
    for path in library():
        found = marks.search(path.read_text("utf-8"))
        assert found is None, f"{relative(path)}: {found.group()}"


@pytest.mark.parametrize("name", ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE"])
def test_the_papers_are_there(name: str) -> None:
    assert (ROOT / name).stat().st_size > 500


def test_ci_runs_what_a_person_runs() -> None:
    script = (ROOT / ".ci/run").read_text()
    assert script.splitlines()[-1] == "make test"
    assert (ROOT / ".ci/run").stat().st_mode & 0o111


def test_the_modules_that_are_begun_first_are_there() -> None:
    assert [name for name in LONGEST if not (ROOT / name).is_file()] == []
