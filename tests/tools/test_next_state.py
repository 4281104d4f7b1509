"""The next-state tool: its table, its result file, and what it says when the model is no good."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import tools.next_state as tool
from tests.train.toys import episode, episodes, network_for
from wmrt.core.seeds import HELD_OUT
from wmrt.model.checkpoint import save_checkpoint
from wmrt.runtime.build import to_checkpoint
from wmrt.train.evaluate import Horizon


class Here:
    """A pool that works in this process."""

    def __init__(self, *_: object, **__: object) -> None: ...
    def __enter__(self) -> Here:
        return self

    def __exit__(self, *_: object) -> None: ...
    def map(self, function: Any, tasks: list[Any], chunksize: int = 1) -> list[Any]:
        return [function(task) for task in tasks]


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    network = network_for(episodes(6), 0)
    checkpoint = to_checkpoint(network, None, {"env": "toy/Toy-v0"})
    save_checkpoint(tmp_path / "c", checkpoint, card="x")
    monkeypatch.setattr(tool, "ProcessPoolExecutor", Here)
    return tmp_path / "c"


def run(*arguments: str) -> Any:
    return CliRunner().invoke(tool.main, list(arguments), catch_exceptions=False)


def test_drives_are_from_held_out_seeds_and_an_untrained_model_falls_short(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def drive(task: tuple[str, int]) -> Any:
        asked.append(task)
        return episode(task[1], 60)

    monkeypatch.setattr(tool, "_drive", drive)
    out = tmp_path / "result.json"
    twice = ("--model", str(saved), "--model", str(saved))
    got = run(*twice, "--episodes", "3", "--recipe", "bf16", "--json", str(out))
    assert asked == [("toy/Toy-v0", HELD_OUT.start + i) for i in range(3)]
    assert got.exit_code == 1 and "no better than persistence" in got.output
    assert "3 windows" in got.output
    document = json.loads(out.read_text())
    first, second = document["results"]["models"]
    assert first == second and first["recipe"] == "bf16"
    assert [r["steps"] for r in first["horizons"]] == [1, 5, 15]
    assert document["results"]["seeds"] == [HELD_OUT.start, HELD_OUT.start + 2]
    assert document["identity"]["recipe"] == "bf16"


def test_a_model_that_beats_persistence_ends_with_0(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool, "_drive", lambda task: episode(task[1], 60))
    rows = [Horizon(steps, 0.1, 0.2, 0.0, 0.1, 7) for steps in (1, 5, 15)]
    monkeypatch.setattr("tools.next_state.open_loop", lambda *_: rows)
    got = run("--model", str(saved), "--episodes", "1")
    assert got.exit_code == 0 and "7 windows" in got.output
