"""Shards on disk, recordings in memory, and windows cut from them."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.train.toys import ACTIONS, GROUPS, HORIZON, SCHEMA, episode, episodes, folder
from wmrt.core.errors import UsageError
from wmrt.model.schema import UNKNOWN
from wmrt.train.dataset import (
    META,
    Episode,
    Meta,
    Recording,
    load_episodes,
    load_shard,
    save_shard,
    window_batch,
)


def equal(a: Episode, b: Episode) -> bool:
    pairs = [(getattr(a, f.name), getattr(b, f.name)) for f in fields(Episode)]
    return all(np.array_equal(x, y) and np.asarray(x).dtype == np.asarray(y).dtype
               for x, y in pairs)  # fmt: skip


# ---- shards ----


def test_a_shard_gives_its_episodes_back(tmp_path: Path, seed: int) -> None:
    made = [episode(seed + i, n, terminated=i == 1) for i, n in enumerate((5, 1, 12))]
    made[0].q[2, 1] = UNKNOWN
    made[2].q[0, 3] = UNKNOWN
    for e in made:  # what the files keep of the labels is half precision
        e.chunks, e.weights = (a.astype(np.float16).astype(np.float32) for a in
                               (e.chunks, e.weights))  # fmt: skip
    save_shard(tmp_path / "shard-0.npz", made)
    assert [p.name for p in tmp_path.iterdir()] == ["shard-0.npz"]
    got = load_shard(tmp_path / "shard-0.npz")
    assert len(got) == 3 and all(equal(a, b) for a, b in zip(made, got, strict=True))
    assert [len(e) for e in got] == [5, 1, 12]


def test_every_way_a_shard_can_be_damaged_is_one_error(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "shard-0.npz"
    save_shard(path, [episode(seed, 30)])
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[200:400] = bytes(b ^ 0x5A for b in flipped[200:400])
    damages = [b"", b"no archive", whole[: len(whole) // 2], whole[:-1], bytes(flipped)]
    for damage in damages:
        path.write_bytes(damage)
        with pytest.raises(UsageError, match=r"shard-0\.npz is no readable shard .*delete it"):
            load_shard(path)
    np.savez(path, q=np.zeros((3, 4), np.int32))
    with pytest.raises(UsageError, match="no readable shard"):
        load_shard(path)
    np.savez(path, q=np.array([{"an": "object"}], dtype=object), allow_pickle=True)
    with pytest.raises(UsageError, match="no readable shard"):
        load_shard(path)
    with pytest.raises(UsageError, match="no readable shard"):
        load_shard(tmp_path / "absent.npz")


def test_episodes_of_a_folder_come_in_seed_order_each_once(tmp_path: Path) -> None:
    made = episodes(25)
    folder(tmp_path, made[:5] + made[5:])  # shards of 20 and 5
    save_shard(tmp_path / "shard-00000020-020.npz", made[20:])  # a later, longer run
    (tmp_path / ".shard-00000040-020.npz.7").write_bytes(b"interrupted")
    assert [e.seed for e in load_episodes(tmp_path)] == list(range(25))


def test_a_folder_without_finished_shards_says_what_to_run(tmp_path: Path) -> None:
    folder(tmp_path, [])
    (tmp_path / ".shard-00000000-020.npz.7").write_bytes(b"interrupted")
    with pytest.raises(UsageError, match="no shard files; run: wmrt collect --out"):
        load_episodes(tmp_path)


# ---- meta ----


def test_meta_round_trip(tmp_path: Path) -> None:
    folder(tmp_path, [])
    meta = Meta.read(tmp_path)
    assert meta.schema == SCHEMA and meta.actions == ACTIONS and meta.sensor_groups == GROUPS
    assert (meta.env, meta.period, meta.horizon) == ("toy/Toy-v0", 0.1, HORIZON)
    assert json.loads(json.dumps(meta.to_json())) == json.loads((tmp_path / META).read_text())


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"env": 3}', "\x00\xff", '{"env": "a", "schema": {}}']
)
def test_meta_that_cannot_be_read_names_the_file(text: str, tmp_path: Path) -> None:
    (tmp_path / META).write_text(text, "latin-1")
    with pytest.raises(UsageError, match=r"meta\.json"):
        Meta.read(tmp_path)


def test_a_folder_that_is_none_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no recording \(no meta\.json\); run: wmrt collect"):
        Meta.read(tmp_path / "absent")


# ---- windows ----


def test_windows_hold_what_the_episodes_say(seed: int) -> None:
    made = [episode(seed + i, n, terminated=i == 1) for i, n in enumerate((9, 6, 14))]
    data = Recording.build(made, SCHEMA)
    assert len(data) == 3
    steps = 8
    picks = [(e, s) for e in range(3) for s in range(len(made[e]))]
    batch = window_batch(
        data, torch.tensor([e for e, _ in picks]), torch.tensor([s for _, s in picks]), steps
    )
    for row, (e, start) in enumerate(picks):
        source, n = made[e], len(made[e])
        codes, values = SCHEMA.encode_q(source.q)
        for t in range(steps):
            now = start + t
            assert float(batch.mask[row, t]) == (now < n)
            if now >= n:
                continue
            assert np.array_equal(batch.codes[row, t].numpy(), codes[now])
            assert np.array_equal(batch.codes[row, t + 1].numpy(), codes[now + 1])
            assert np.array_equal(batch.values[row, t + 1].numpy(), values[now + 1])
            assert np.array_equal(batch.action[row, t].numpy(), source.action[now])
            before = source.action[now - 1] if now else np.zeros(1, np.float32)
            assert np.array_equal(batch.previous[row, t].numpy(), before)
            chunks = source.chunks[now].astype(np.float16).astype(np.float32)
            assert np.array_equal(batch.chunks[row, t].numpy(), chunks)
            assert float(batch.reward[row, t]) == source.reward[now]
            assert float(batch.ended[row, t]) == (source.terminated and now == n - 1)
    assert torch.equal(batch.true_values, batch.values)
    assert torch.equal(batch.true_codes, batch.codes)
