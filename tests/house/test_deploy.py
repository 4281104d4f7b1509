"""Nothing in deploy/ is there that no test reads."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.house.tree import ROOT, files

DEPLOY = sorted(files("deploy"))
TESTS = "\n".join(
    path.read_text("utf-8")
    for path in files("tests/deploy", "tests/service", suffix=".py")
    if path != Path(__file__)
)


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", DEPLOY, ids=named)
def test_every_file_is_held_to_something_by_a_test(path: Path) -> None:
    if path.name == "README.md":
        linked = (ROOT / "README.md").read_text("utf-8") + (ROOT / "deploy/README.md").read_text()
        assert named(path) in linked or named(path).removeprefix("deploy/") in linked
    else:
        assert path.name in TESTS or named(path.parent) + "/" in TESTS, "no test names it"


@pytest.mark.parametrize("path", [p for p in DEPLOY if p.suffix in (".yaml", ".yml")], ids=named)
def test_yaml_says_each_thing_once(path: Path) -> None:
    """A key that comes twice is silently the last one, for PyYAML and for kubectl."""
    for node in yaml.compose_all(path.read_text("utf-8"), Loader=yaml.SafeLoader):
        once(node)


def once(node: yaml.Node | None) -> None:
    if isinstance(node, yaml.MappingNode):
        keys = [key.value for key, _ in node.value]
        assert len(set(keys)) == len(keys), keys
    if isinstance(node, yaml.CollectionNode):
        for part in node.value:
            for each in part if isinstance(part, tuple) else (part,):
                once(each)
