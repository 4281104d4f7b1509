"""A trained model as the driver of a recording."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.train.toys import GROUPS, SCHEMA, ToyEnv, episodes, network_for
from wmrt.model.checkpoint import save_checkpoint
from wmrt.model.rounding import UNKNOWN
from wmrt.runtime import WorldModel
from wmrt.runtime.build import to_checkpoint
from wmrt.train.collect import run_episode
from wmrt.train.occlusion import Dropout, group_mask
from wmrt.train.onpolicy import ModelPolicy


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    network = network_for(episodes(6), seed)
    save_checkpoint(tmp_path / "c", to_checkpoint(network, None, {}), card="x")
    threads = torch.get_num_threads()
    yield tmp_path / "c"
    torch.set_num_threads(threads)  # the policy takes one


def test_it_acts_as_the_world_model_does(saved: Path, seed: int) -> None:
    policy, model = ModelPolicy(saved), WorldModel.from_pretrained(saved, recipe="bf16")
    for _ in range(2):
        policy.reset(seed)
        model.reset()
        drive = run_episode(ToyEnv(), seed, "model", policy)
        last = np.zeros(1, np.float32)
        for q, action in zip(drive.q, drive.action, strict=False):
            wanted = model.step(SCHEMA.decode(q), last).action
            move = np.clip(wanted - last, -2.0, 1.0)  # 20 and 40 N/s for 0.1 s, of 4 N
            np.testing.assert_allclose(action, np.clip(last + move, -1, 1), rtol=0, atol=1e-6)
            last = action


def test_behind_failing_sensors_it_acts_on_what_they_show_and_the_truth_is_recorded(
    saved: Path, seed: int
) -> None:
    policy = ModelPolicy(saved, GROUPS, 3.0)
    model = WorldModel.from_pretrained(saved, recipe="bf16")
    shown = Dropout(group_mask(SCHEMA, GROUPS), 3.0)
    model.reset()
    shown.reset(seed)
    drive = run_episode(ToyEnv(), seed, "model", policy)
    assert not (drive.q == UNKNOWN).any()
    last = np.zeros(1, np.float32)
    for q, action in zip(drive.q, drive.action, strict=False):
        wanted = model.step(SCHEMA.decode(shown.hide(q)), last).action
        move = np.clip(wanted - last, -2.0, 1.0)
        np.testing.assert_allclose(action, np.clip(last + move, -1, 1), rtol=0, atol=1e-6)
        last = action
    again = run_episode(ToyEnv(), seed, "model", policy)
    assert np.array_equal(again.action, drive.action)
