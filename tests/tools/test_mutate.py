"""Mutation testing: what is changed, and that verdicts are right, on a package of a few lines."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tools.mutate import complaint, explained
from tools.mutations import enumerations, mutants
from wmrt.core.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]
MODULE = '''
"""What it is for."""

from __future__ import annotations

import enum

LIMIT = 3


class Kind(enum.Enum):
    A = "a"
    B = "b"


class Counter:
    """Counts."""

    def __init__(self, start: int = 0) -> None:
        self.value = start

    @property
    def full(self) -> bool:
        return self.value >= LIMIT

    def add(self, by: int) -> Kind:
        if by < 0:
            raise ValueError(f"by {by} is below 0")
        self.value += by
        while True:
            self.value = min(self.value, 10)
            break
        return Kind.A if self.full else Kind.B


def unused(value: float) -> float:
    return abs(value) + 0.0
'''
TESTS = """
import pytest
from toy.counter import Counter, Kind, unused


def test_add():
    counter = Counter()
    assert counter.add(2) is Kind.B and not counter.full
    assert counter.add(1) is Kind.A and counter.full
    assert (Kind.A.value, Kind.B.value) == ("a", "b")
    assert counter.add(8) is Kind.A and counter.value == 10


def test_refusal():
    with pytest.raises(ValueError):
        Counter().add(-1)
    assert Counter(1).add(0) is Kind.B


def test_unused():
    assert unused(1.0) == 1.0
"""


def found(source: str) -> list[str]:
    tree = ast.parse(source)
    return [m.name.split(": ", 1)[1] for m in mutants(tree, "m.py", enumerations([tree]))]


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("x = a < b", {"x = a < b -> pass", "a < b -> a <= b", "a < b -> a >= b"}),
        ("x = a and b", {"a and b -> a or b", "a and b -> a", "a and b -> b"}),
        ("x = -a", {"-a -> a"}),
        ("x = not a", {"not a -> a"}),
        ("x = 2", {"2 -> 3", "2 -> 1"}),
        ("x = 0.5", {"0.5 -> 1.0", "0.5 -> 0.25"}),
        ("x = True", {"True -> False"}),
        ("x = 'a'", {"'a' -> 'XaX'"}),
        ("f(k=b)", {"f(k=b) -> pass", "f(k=b) -> f()"}),
        ("f(k=True)", {"True -> False"}),
        ("x = min(a, b)", {"min(a, b) -> max(a, b)"}),
        ("x = abs(a)", {"abs(a) -> a"}),
        ("x += 1", {"x += 1 -> pass", "x += 1 -> x -= 1"}),
        ("if a: f()", {"a -> True", "a -> False", "f() -> pass"}),
        ("x = [b for b in a if b]", {"b -> True", "b -> False"}),
        ("for b in a: break", {"a -> ()", "break -> continue"}),
        ("def f(): return a", {"return a -> return None"}),
        ("try: f()\nexcept (A, B): g()", {"(A, B) -> (A,)", "(A, B) -> (B,)"}),
    ],
)
def test_what_is_changed(source: str, wanted: set[str]) -> None:
    names = set(found(source))
    assert wanted <= names, names


@pytest.mark.parametrize(
    "source",
    [
        "import a\nfrom b import c",
        '"""Text."""',
        "__all__ = ['a']",
        "class A:\n    x: int",
        "def f(a: 'int') -> 'str':\n    '''Text.'''",
        "if TYPE_CHECKING:\n    x = 1",
    ],
)
def test_what_is_left_alone(source: str) -> None:
    assert found(source) == []


def test_the_wording_of_errors_is_left_alone_and_what_raises_them_is_not() -> None:
    assert found("raise E(f'is {n + 1}', 'text', 7)") == [
        "raise E(f'is {n + 1}', 'text', 7) -> pass", "7 -> 8", "7 -> 6",
    ]  # fmt: skip


def test_each_name_is_there_once_and_each_change_can_be_undone() -> None:
    tree = ast.parse(MODULE)
    before = ast.dump(tree)
    made = mutants(tree, "m.py", enumerations([tree]))
    assert len({mutant.name for mutant in made}) == len(made) > 30
    for mutant in made:
        old = mutant.apply()
        assert ast.dump(tree) != before, mutant.name
        compile(tree, "m.py", "exec")
        mutant.undo(old)
        assert ast.dump(tree) == before
    assert "m.py::Counter.add: Kind.A -> Kind.B" in {mutant.name for mutant in made}


def mutate(root: Path, *options: str) -> tuple[int, dict[str, Any], str]:
    """Exit status, results and output of the tool on a toy repository."""
    # Plugins take a second and a half of each of 40 runs.
    environment = {"PYTHONPATH": f"{ROOT}:{root}", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "mutate.py"), "toy", "tests", "--root", str(root),
         "--json", str(root / "out.json"), "--jobs", "2", *options],
        cwd=root, env=os.environ | environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.returncode, json.loads((root / "out.json").read_text())["results"], done.stdout


def test_verdicts(tmp_path: Path) -> None:
    for name, text in (
        ("toy/__init__.py", ""), ("toy/counter.py", MODULE), ("tests/test_counter.py", TESTS),
        ("pytest.ini", "[pytest]\nmarkers = full\n"),
    ):  # fmt: skip
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    code, results, shown = mutate(tmp_path)
    place = "toy/counter.py::"
    missed = {
        f"{place}unused: abs(value) -> value",
        f"{place}unused: abs(value) + 0.0 -> abs(value) - 0.0",
    }
    assert code == 1 and set(results["unexplained"]) == missed
    assert "2 mutants survive without a reason" not in shown and "survived: " in shown
    assert results["timeout"] == 1  # a loop without its break
    assert results["killed"] + results["timeout"] + 2 == results["mutants"] > 30
    assert results["by_file"] == {
        "toy/counter.py": {"killed": results["killed"], "survived": 2, "timeout": 1}
    }
    table = tmp_path / "mutants.json"
    entry = {"reason": "no test gives it a negative number", "mutants": sorted(missed)}
    table.write_text(json.dumps({"equivalent": [entry]}))
    code, results, _ = mutate(tmp_path, "--explained", str(table), "--only", "unused")
    assert code == 0 and set(results["explained"]) == missed and results["unexplained"] == []
    entry["mutants"] = [*sorted(missed), f"{place}unused: return abs(value) + 0.0 -> return None"]
    table.write_text(json.dumps({"equivalent": [entry]}))
    code, results, _ = mutate(tmp_path, "--explained", str(table), "--only", "unused")
    assert code == 1 and len(results["needless"]) == 1


def test_a_table_gives_each_mutant_one_reason(tmp_path: Path) -> None:
    table = tmp_path / "mutants.json"
    for entries in (
        [{"reason": " ", "mutants": ["a"]}],
        [{"reason": "x", "mutants": ["a", "a"]}],
        [{"reason": "x", "mutants": ["a"]}, {"reason": "y", "mutants": ["a"]}],
    ):
        table.write_text(json.dumps({"equivalent": entries}))
        with pytest.raises(UsageError, match="a needs one entry, with a reason"):
            explained(table)
    table.write_text(json.dumps({"equivalent": [{"reason": "x", "mutants": ["a", "b"]}]}))
    assert explained(table) == {"a": "x", "b": "x"}
    assert explained(None) == {}


def test_complaints() -> None:
    assert complaint({"unexplained": [], "needless": []}) is None
    assert "1 mutants survive without a reason, such as m" in str(
        complaint({"unexplained": ["m"], "needless": ["n"]})
    )
    assert "1 reasons are needless, such as n" in str(
        complaint({"unexplained": [], "needless": ["n"]})
    )
