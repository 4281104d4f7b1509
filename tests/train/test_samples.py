"""Calibration windows: cut from real episodes, split by episode, refused where they must not be."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.model.networks import small_schema
from tests.train.recordings import drive, recording
from wmrt.core.errors import CheckpointError, UsageError
from wmrt.core.seeds import HELD_OUT
from wmrt.model.schema import StateSchema, numeric
from wmrt.train.samples import Calibration, load_samples

SCHEMA = small_schema()


def load(folder: Path, seed: int = 0, windows: int = 20, steps: int = 16) -> Calibration:
    return load_samples([folder], SCHEMA, 2, windows=windows, steps=steps, seed=seed)


def test_windows_are_pieces_of_the_recorded_episodes(tmp_path: Path, seed: int) -> None:
    found = load(recording(tmp_path / "data"), seed)
    assert len(found.used) == 20 and len(found.held) == 5
    for samples in (found.used, found.held):
        for codes, values, previous, of in zip(
            samples.codes, samples.values, samples.previous, samples.seeds.tolist(), strict=True
        ):
            episode = drive(of, 30, SCHEMA)
            all_codes, all_values = (torch.from_numpy(a) for a in SCHEMA.encode_q(episode.q))
            starts = [
                s
                for s in range(len(episode) - 16 + 1)
                if torch.equal(codes, all_codes[s : s + 16].long())
                and torch.equal(values, all_values[s : s + 16])
            ]
            assert len(starts) == 1
            actions = torch.from_numpy(episode.action)
            before = torch.cat([torch.zeros(1, 2), actions])[starts[0] : starts[0] + 16]
            assert torch.equal(previous, before)


def test_what_is_measured_on_is_of_other_episodes(tmp_path: Path, seed: int) -> None:
    found = load(recording(tmp_path / "data", episodes=25), seed, windows=200)
    used, held = set(found.used.seeds.tolist()), set(found.held.seeds.tolist())
    assert used and held and not used & held and len(held) <= 2


def test_no_window_comes_twice_and_there_may_be_fewer(tmp_path: Path) -> None:
    found = load(recording(tmp_path / "data", episodes=3, steps=17), windows=1000)
    assert len(found.used) == 4 and len(found.held) == 2  # two starts each
    assert len({bytes(c.numpy()) for c in found.used.codes}) == 4


def test_a_seed_names_one_draw(tmp_path: Path, seed: int) -> None:
    folder = recording(tmp_path / "data")
    first, again, other = load(folder, seed), load(folder, seed), load(folder, seed + 1)
    assert first.to_json() == again.to_json()
    assert first.used.digest() != other.used.digest() != first.held.digest()
    assert len(first.used.first(3)) == 3 and len(first.used.first(99)) == 20


def test_where_they_are_from_is_told_without_a_path(tmp_path: Path) -> None:
    told = load(recording(tmp_path / "data", first=40)).to_json()
    assert told["folders"] == ["data"] and str(tmp_path) not in str(told)
    assert 40 <= told["episodes"][0] <= told["episodes"][1] < 46
    assert (told["windows"], told["held_windows"], told["steps"]) == (20, 5, 16)
    assert len(told["sha256"]) == 64 and told["sha256"] != told["held_sha256"]


def test_folders_add_up(tmp_path: Path) -> None:
    folders = [recording(tmp_path / "a"), recording(tmp_path / "b", first=50)]
    found = load_samples(folders, SCHEMA, 2, windows=200, steps=16)
    seeds = set(found.used.seeds.tolist()) | set(found.held.seeds.tolist())
    assert min(seeds) < 6 and max(seeds) >= 50


def test_episodes_shorter_than_a_window_are_left_out(tmp_path: Path) -> None:
    folder = recording(tmp_path / "data", episodes=4, steps=10)
    with pytest.raises(UsageError, match=r"0 of 4 recorded episodes are 16 steps long.*collect"):
        load(folder)
    assert load(folder, steps=10).used.codes.shape[1] == 10


def test_seeds_that_results_are_measured_on_are_refused(tmp_path: Path) -> None:
    folder = recording(tmp_path / "data", first=HELD_OUT.start - 3)
    with pytest.raises(UsageError, match=f"seed {HELD_OUT.start} is held out for evaluation"):
        load(folder)


def test_another_schema_is_refused_and_other_buckets_are_not(tmp_path: Path) -> None:
    other = StateSchema({"height": numeric("m", 0, 3, decimals=2, buckets=8)}, neutral=[0.0, 0.0])
    folder = recording(tmp_path / "data", schema=other)
    with pytest.raises(CheckpointError, match="height"):
        load(folder)
    span = [40.0 * (i / 16) ** 2 for i in range(17)]
    refitted = SCHEMA.with_knots({"speed": span})
    folder = recording(tmp_path / "more")
    found = load_samples([folder], refitted, 2, windows=4, steps=16)
    assert not torch.equal(found.used.codes, load(folder, windows=4).used.codes)


def test_no_recording_names_the_verb(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="wmrt collect"):
        load(tmp_path / "nothing")
    with pytest.raises(UsageError, match="actions of 2 dimensions, the model takes 3"):
        load_samples([recording(tmp_path / "data")], SCHEMA, 3, windows=4, steps=16)
