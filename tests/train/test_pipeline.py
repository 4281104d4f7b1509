"""From a folder of episodes to a checkpoint that loads, drives and says what it is."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.train.toys import (
    ACTIONS,
    CONFIG,
    HORIZON,
    QUICK,
    SCHEMA,
    ToyEnv,
    episodes,
    folder,
    here,
)
from wmrt.core.errors import CheckpointError, UsageError
from wmrt.model.checkpoint import load_checkpoint
from wmrt.model.schema import StateSchema
from wmrt.runtime import WorldModel
from wmrt.train import collect as collecting
from wmrt.train import pipeline
from wmrt.train.dataset import META, Meta
from wmrt.train.pipeline import SHIPPED, prepare, reproduce, train
from wmrt.train.trainer import train_compensation

BRIEF = replace(QUICK, steps=4, batch=4, save_every=2)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    short = functools.partial(train_compensation, steps=20)  # 600 steps would be most of the time
    monkeypatch.setattr(pipeline, "train_compensation", short)


def test_a_run_writes_a_checkpoint_and_the_same_run_the_same_one(tmp_path: Path) -> None:
    data = folder(tmp_path / "data", episodes(22))
    seen: list[int] = []
    first = train(
        [data], tmp_path / "a", CONFIG, BRIEF, progress=lambda i, total, losses: seen.append(i)
    )
    assert seen == [1, 2, 3, 4] and first["resumed"] is False
    assert first["episodes"] == 22 and first["env"] == "toy/Toy-v0"
    assert first["action_quant"]["rmse_plain"] > 0
    second = train([data], tmp_path / "b", CONFIG, BRIEF)
    a, b = load_checkpoint(tmp_path / "a"), load_checkpoint(tmp_path / "b")
    assert all(torch.equal(a.tensors[k], b.tensors[k]) for k in a.tensors)
    assert first["validation"] == second["validation"]
    assert a.schema.input_hash == SCHEMA.input_hash and a.actions == ACTIONS
    card = (tmp_path / "a" / "README.md").read_text()
    assert "toy/Toy-v0" in card and f"{first['parameters']:,}" in card and "x, v, side" in card
    for recipe in ("bf16", "w4a8"):
        model = WorldModel.from_pretrained(tmp_path / "a", recipe=recipe)
        step = model.step({"x": 1.0, "v": 0.2, "side": "right", "moving": False})
        assert np.isfinite(step.chunk).all()


def test_an_interrupted_run_continues_to_the_same_checkpoint(tmp_path: Path) -> None:
    data = folder(tmp_path / "data", episodes(22))
    train([data], tmp_path / "whole", CONFIG, BRIEF)

    def interrupt(iteration: int, total: int, losses: dict[str, float]) -> None:
        if iteration == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train([data], tmp_path / "part", CONFIG, BRIEF, progress=interrupt)
    assert not (tmp_path / "part").exists()
    again = train([data], tmp_path / "part", CONFIG, BRIEF)
    assert again["resumed"] is True
    a, b = load_checkpoint(tmp_path / "whole"), load_checkpoint(tmp_path / "part")
    assert all(torch.equal(a.tensors[k], b.tensors[k]) for k in a.tensors)


def test_going_on_from_a_checkpoint_with_a_second_recording(tmp_path: Path) -> None:
    data = folder(tmp_path / "data", episodes(10))
    own = folder(tmp_path / "own", episodes(6, first=500))
    train([data], tmp_path / "first", CONFIG, BRIEF)
    result = train([data, own], tmp_path / "second", CONFIG, BRIEF, start=tmp_path / "first")
    assert (result["episodes"], result["own_episodes"]) == (16, 6)
    assert result["start"]["episodes"] == 10
    first, second = load_checkpoint(tmp_path / "first"), load_checkpoint(tmp_path / "second")
    assert first.schema == second.schema  # knots and scales stay those of the start
    fitted = "dynamics.delta_scale"
    assert torch.equal(first.tensors[fitted], second.tensors[fitted])
    assert not torch.equal(first.tensors["norm.weight"], second.tensors["norm.weight"])


def test_recordings_of_different_schemas_do_not_mix(tmp_path: Path) -> None:
    data = folder(tmp_path / "data", episodes(4))
    other = folder(tmp_path / "other", episodes(4, first=50))
    meta = Meta.read(other)
    renamed = StateSchema(SCHEMA.fields, neutral=[0.0], name="other")
    (other / META).write_text(json.dumps(replace(meta, schema=renamed).to_json()))
    with pytest.raises(UsageError, match="hold states of different schemas"):
        train([data, other], tmp_path / "out", CONFIG, BRIEF)


def test_data_that_does_not_fit_the_model_is_told_before_any_training(tmp_path: Path) -> None:
    data = folder(tmp_path / "data", episodes(4))
    with pytest.raises(UsageError, match="chunks of 4 actions, the model wants 8"):
        prepare([data], CONFIG.with_(chunk=8), BRIEF)
    with pytest.raises(UsageError, match="holds 4 episodes, 5 are needed; run wmrt collect"):
        prepare([data], CONFIG, BRIEF, limit=5)
    with pytest.raises(UsageError, match="no recording"):
        prepare([tmp_path / "absent"], CONFIG, BRIEF)
    assert len(prepare([data], CONFIG, BRIEF, limit=3).episodes) == 3
    with pytest.raises(CheckpointError, match=r"holds other files, not overwritten: meta\.json"):
        train([data], data, CONFIG, BRIEF)
    assert not (tmp_path / "data.work").exists()


@pytest.fixture
def small_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], dict[str, Any]]:
    """`reproduce` of a run of seconds, on toys, into ``out``; the data is in ``data``."""
    folder(tmp_path / "data", episodes(22))
    small = replace(
        SHIPPED, env="toy/Toy-v0", episodes=22, own_episodes=3, model=CONFIG, train=BRIEF,
        second=replace(BRIEF, seed=1),
    )  # fmt: skip
    monkeypatch.setattr(pipeline, "SHIPPED", small)
    monkeypatch.setattr(collecting, "HORIZON", HORIZON)
    monkeypatch.setattr(collecting, "make_env", lambda env_id: ToyEnv())
    monkeypatch.setattr(collecting, "worker_pool", here)

    def run() -> dict[str, Any]:
        return reproduce(tmp_path / "data", tmp_path / "out", 1, lambda name: lambda *_: None)

    return run


def test_the_parts_of_a_reproduction_name_what_they_come_from(
    small_run: Callable[[], dict[str, Any]], tmp_path: Path
) -> None:
    found = small_run()
    first = load_checkpoint(tmp_path / "out.first")
    assert Meta.read(tmp_path / "out.own").checkpoint == first.weights_sha256
    assert found["start_sha256"] == first.weights_sha256
    assert found["start"] == first.provenance and found["own_episodes"] == 3
    assert small_run()["resumed"] is True  # everything is kept


def test_drives_and_states_of_an_earlier_stage_one_are_told(
    small_run: Callable[[], dict[str, Any]], tmp_path: Path
) -> None:
    small_run()
    before = load_checkpoint(tmp_path / "out.first").weights_sha256
    shutil.rmtree(tmp_path / "out.first")
    shutil.rmtree(tmp_path / "out.first.work")
    folder(tmp_path / "data", episodes(22, steps=30))  # another recording: another stage one
    with pytest.raises(UsageError, match=f"holds drives of {before[:16]}.*delete .*out.own"):  # type: ignore[index]
        small_run()
    assert load_checkpoint(tmp_path / "out.first").weights_sha256 != before
    shutil.rmtree(tmp_path / "out.own")
    with pytest.raises(UsageError, match=r"out.work.*another .*start; delete it"):
        small_run()
    shutil.rmtree(tmp_path / "out.work")
    small_run()


def test_a_first_stage_of_another_run_is_told(
    small_run: Callable[[], dict[str, Any]], tmp_path: Path
) -> None:
    train([tmp_path / "data"], tmp_path / "out.first", CONFIG, replace(BRIEF, lr=1e-5))
    with pytest.raises(UsageError, match=r"out.first is another run than stage one; delete it"):
        small_run()


def test_the_shipped_run_is_fixed_and_fits_its_budget() -> None:
    assert SHIPPED.model.chunk == 8
    seeds = {*range(SHIPPED.first_seed, SHIPPED.first_seed + SHIPPED.episodes)}
    own = {*range(SHIPPED.own_first_seed, SHIPPED.own_first_seed + SHIPPED.own_episodes)}
    assert not seeds & own
