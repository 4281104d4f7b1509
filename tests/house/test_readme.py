"""The README's head: a sentence, two commands, an example that runs, a table, what is missing."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.house.tree import ROOT
from wmrt.core import realtime
from wmrt.runtime import WorldModel
from wmrt.runtime.group import SessionGroup
from wmrt.service.messages import OpenMessage, read_json, read_observation
from wmrt.train import pipeline, trainer

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


def blocks() -> list[str]:
    """Every Python example, in order."""
    return [part.split("```")[0] for part in TEXT.split("```python")[1:]]


def test_its_example_runs() -> None:
    example = blocks()[0]
    assert len([line for line in example.splitlines() if line.strip()]) <= 10
    scope: dict[str, object] = {}
    exec(compile(example, "<the example>", "exec"), scope)
    assert scope["over"] is True


def test_a_robot_of_ones_own_is_trained_and_controlled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = blocks()[1]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # Of a training of 3 s, the compensation of the chunks' rounding would take 2.
    short = functools.partial(trainer.train_compensation, steps=20)
    monkeypatch.setattr(pipeline, "train_compensation", short)
    scope: dict[str, Any] = {}
    exec(compile(example, "<a robot of one's own>", "exec"), scope)
    controller = scope["controller"]
    assert -2.0 <= scope["torque"] <= 2.0
    assert controller.last.step == 1 and controller.last.tripped == frozenset()
    assert scope["action"].shape == (1,) and controller.stats()["unknown_values"] == 1
    assert scope["model"].recipe.name == "nvfp4"
    assert sorted(path.name for path in (tmp_path / "out/pendulum").iterdir()) == [
        "data",
        "model",
        "model.work",
    ]


def test_many_robots_drive() -> None:
    scope: dict[str, Any] = {}
    exec(compile(blocks()[2], "<many robots>", "exec"), scope)
    assert [outcome.step for outcome in scope["drivers"].last] == [20, 20]
    assert scope["shared"].reads == 20
    assert all(sum(c.stats()["trips"].values()) == 0 for c in scope["controllers"])
    scope["shared"].close()
    scope["envs"].close()


def test_a_loop_in_real_time(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(blocks()) == 4
    monkeypatch.setattr(realtime, "_lock", lambda undo: None)  # other tests need memory, too
    scope: dict[str, Any] = {}
    exec(compile(blocks()[3], "<real time>", "exec"), scope)
    assert [one.name for one in scope["got"]] == ["SCHED_FIFO", "mlockall", "gc.freeze"]
    assert scope["report"].steps == 5 and scope["report"].send_failures == 0
    controller = scope["controller"]
    assert controller.stats()["trips"]["validity"] == 0
    assert capsys.readouterr().out.count("\n") == 8
    controller.close()


def test_what_it_says_of_the_cpu_is_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 'from_pretrained(…, executor="native", threads=2)' in TEXT
    assert "SessionGroup(model, robots=16).step(states)" in TEXT
    monkeypatch.setenv("WMRT_ISA", "portable")
    model = WorldModel.from_pretrained("highway", recipe="nvfp4", executor="native", threads=1)
    assert model.report().resolved["isa"] == "portable"
    state = model.schema.decode(model.schema.encode({}).q)
    steps = SessionGroup(model, robots=16).step([state] * 16)
    alone = model.step(state)
    assert all(np.array_equal(step.action, alone.action) for step in steps)


def test_what_it_sends_by_hand_is_read() -> None:
    opening, observation = re.findall(r"^ask localhost/v1/\w+ -d '([^']*)'", TEXT, re.MULTILINE)
    assert read_json(OpenMessage, json.loads(opening)).robot == "r1"
    observed = read_observation(json.loads(observation))
    assert observed.robot == "r1" and observed.sequence == 0
    schema = WorldModel.from_pretrained("highway", recipe="nvfp4").schema
    assert set(json.loads(observation)["state"]) <= set(schema.fields)


def test_the_service_it_starts_has_room_for_the_robots_it_names() -> None:
    section = TEXT.split("## Over a network")[1].split("\n## ")[0]
    serve = re.search(r"wmrt serve (.*?)\s+#", section)
    assert serve is not None and "wmrt drive --model unix:" in section
    by_hand = {json.loads(text)["robot"] for text in re.findall(r"ask .*?'({.*?})'", section, re.S)}
    by_program = set(re.findall(r'client\.connect\(".*?", "(\w+)"\)', section))
    assert by_hand and by_program
    named = {"drive"} | by_hand | by_program  # `wmrt drive` is robot drive
    room = re.search(r"--robots (\d+)", serve[1])
    assert room is not None and int(room[1]) >= len(named), named
