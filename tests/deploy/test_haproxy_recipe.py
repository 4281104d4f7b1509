"""deploy/haproxy and its recipe in deploy/README.md, as they are written: nothing is started."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from tests.deploy.proxy import CONFIG
from tests.deploy.settings import options
from tests.house.tree import ROOT

RECIPE = re.search(
    r"## A few: HAProxy.*?```sh\n(.*?)```", (ROOT / "deploy/README.md").read_text(), re.DOTALL
)


def recipes() -> list[list[str]]:
    """Arguments of every process that the file and the README start for it."""
    assert RECIPE is not None
    texts = [RECIPE[1], CONFIG.read_text().replace("\n#", "\n")]
    found = [
        shlex.split(command)
        for text in texts
        for command in re.findall(
            r"^ *wmrt (serve [^&\n]*)", text.replace("\\\n", ""), re.MULTILINE
        )
    ]
    assert len(found) == len(texts)
    return found


def test_what_is_started_for_it_can_be_served_by_it() -> None:
    for arguments in recipes():
        given = options([each.replace("$i", "1") for each in arguments])
        assert given["shared"] and given["snapshots"] is not None
        # Without it, a latch is for ever: robots' own token ends none.
        assert given["token_file"] and given["operator_token_file"]
        # Processes of one machine would all keep their threads on its last processor.
        assert given["cpu"] == -1


def test_it_is_closed_unless_opened() -> None:
    preset = dict(re.findall(r"^ *presetenv (\w+) (\S+)$", CONFIG.read_text(), re.MULTILINE))
    assert preset["WMRT_BIND"].startswith("127.0.0.1:")
    assert RECIPE is not None
    (opened,) = re.findall(r"^(.*)haproxy -f", RECIPE[1], re.MULTILINE)
    assert ("WMRT_BIND=" in opened) == ("WMRT_TLS=" in opened)
    (made,) = re.findall(r"^mkdir -p -m 700 (.*)$", RECIPE[1], re.MULTILINE)
    assert {str(Path(preset["WMRT_ADMIN"]).parent), "/srv/wmrt"} == set(made.split())
