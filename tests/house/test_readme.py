"""The README's head: a sentence, two commands, an example that runs, a table, what is missing."""

from __future__ import annotations

import re

from tests.house.tree import ROOT

TEXT = (ROOT / "README.md").read_text("utf-8")
HEAD = "\n".join(TEXT.splitlines()[:40])


def test_the_head_has_its_five_parts() -> None:
    assert "make drive" in HEAD and "make test" in HEAD
    assert "```python" in HEAD
    assert "| " in HEAD
    assert "Not measured" in HEAD


def test_the_commands_it_names_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^make ([a-z-]+)", TEXT, re.MULTILINE))
    assert targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_its_example_runs() -> None:
    example = TEXT.split("```python")[1].split("```")[0]
    assert len([line for line in example.splitlines() if line.strip()]) <= 10
    scope: dict[str, object] = {}
    exec(compile(example, "<the example>", "exec"), scope)
    assert scope["over"] is True
