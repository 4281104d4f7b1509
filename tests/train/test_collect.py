"""Collecting: seeds that are held out, drivers, shards that continue, and one real drive."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import wmrt.train.collect as module
from tests.train.toys import ACTIONS, SCHEMA, ToyEnv, expert, here
from wmrt.core.errors import UsageError
from wmrt.core.seeds import HELD_OUT
from wmrt.core.types import ActionDim, ActionSpec
from wmrt.model.schema import StateSchema
from wmrt.train.collect import (
    collect,
    collect_shard,
    make_env,
    plan,
    run_episode,
    write_meta,
)
from wmrt.train.dataset import META, Meta, load_episodes, load_shard, save_shard
from wmrt.train.drivers import DRIVERS, Driver, driver_of

SPEC = ActionSpec(
    (
        ActionDim("steering", "rad", -0.06, 0.06, 0.3, 0.3),
        ActionDim("acceleration", "m/s2", -5, 5, 15, 30),
    )
)


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> list[ToyEnv]:
    """`make_env` gives toy environments, remembered here."""
    made: list[ToyEnv] = []

    def make(env_id: str) -> ToyEnv:
        made.append(ToyEnv())
        return made[-1]

    monkeypatch.setattr(module, "make_env", make)
    return made


# ---- which seeds ----


@pytest.mark.parametrize(
    ("first", "count"),
    [(HELD_OUT.start, 1), (HELD_OUT.stop - 1, 1), (HELD_OUT.start - 5, 6), (0, HELD_OUT.stop)],
)
def test_held_out_seeds_are_refused(first: int, count: int, tmp_path: Path) -> None:
    said = f"seed {max(first, HELD_OUT.start)} is held out for evaluation"
    with pytest.raises(UsageError, match=said):
        plan(tmp_path, count, first)
    with pytest.raises(UsageError, match=said):
        list(collect("toy/Toy-v0", tmp_path / "new", count, first, 1, lambda *_: None))
    assert not (tmp_path / "new").exists()


def test_shards_cover_every_seed_once(tmp_path: Path) -> None:
    shards = plan(tmp_path, 47, HELD_OUT.start - 47)
    seeds = [seed for shard in shards for seed in shard.seeds]
    assert seeds == list(range(HELD_OUT.start - 47, HELD_OUT.start))
    assert [len(s.seeds) for s in shards] == [20, 20, 7]
    assert [s.path.name for s in shards][2] == "shard-00499993-007.npz"
    assert plan(tmp_path, 3, HELD_OUT.stop)[0].seeds == tuple(
        range(HELD_OUT.stop, HELD_OUT.stop + 3)
    )


def test_the_driver_is_a_function_of_the_seed_with_the_declared_shares() -> None:
    drawn = [driver_of(seed) for seed in range(2000)]
    assert drawn == [driver_of(seed) for seed in range(2000)]
    for name, share in DRIVERS.items():
        # six standard deviations of a share of 2000
        bound = 6 * np.sqrt(share * (1 - share) / 2000)
        assert abs(drawn.count(name) / 2000 - share) < bound
    assert abs(sum(DRIVERS.values()) - 1) < 1e-9


# ---- drivers ----


@pytest.mark.parametrize("kind", DRIVERS)
def test_executed_actions_keep_box_and_rate(kind: str, seed: int) -> None:
    driver = Driver(kind, SPEC, 0.1, np.random.default_rng(seed))
    wanted = np.random.default_rng(seed + 1)
    last, moves = np.zeros(2, np.float32), []
    for step in range(400):
        action = driver.act(step, wanted.uniform(-1, 1, 2).astype(np.float32))
        assert action.dtype == np.float32 and np.abs(action).max() <= 1
        moves.append(action - last)
        last = action.copy()
    if kind != "random":  # 0.5 per step of steering; +0.3 and -0.6 of acceleration
        assert np.all(np.abs(np.array(moves)[:, 0]) <= 0.5 + 1e-6)
        assert np.all(np.array(moves)[:, 1] <= 0.3 + 1e-6)
        assert np.all(np.array(moves)[:, 1] >= -0.6 - 1e-6)


def test_the_expert_is_followed_as_fast_as_the_actuators_allow(seed: int) -> None:
    driver = Driver("expert", SPEC, 0.1, np.random.default_rng(seed))
    want = np.array([0.8, 0.7], np.float32)
    got = [driver.act(t, want).tolist() for t in range(4)]
    np.testing.assert_allclose(got, [[0.5, 0.3], [0.8, 0.6], [0.8, 0.7], [0.8, 0.7]], atol=1e-6)


def test_bursts_hold_a_random_action_and_give_back(seed: int) -> None:
    slow = ActionSpec((ActionDim("push", "N", -1, 1, 1e3, 1e3),))
    driver = Driver("held_random", slow, 0.1, np.random.default_rng(seed))
    want = np.array([0.123], np.float32)
    taken = np.array([float(driver.act(t, want)[0]) for t in range(600)])
    held = np.abs(taken - 0.123) > 1e-6
    edges = np.flatnonzero(np.diff(np.concatenate([[0], held.astype(int), [0]])))
    lengths = (edges[1::2] - edges[::2])[:-1]
    assert len(lengths) > 20 and lengths.min() >= 3 and lengths.max() <= 10
    for start, stop in zip(edges[::2], edges[1::2], strict=True):
        assert np.ptp(taken[start:stop]) < 1e-6


# ---- episodes ----


@pytest.mark.parametrize("kind", DRIVERS)
def test_an_episode_is_labelled_at_every_step_and_repeatable(kind: str, seed: int) -> None:
    a, b = run_episode(ToyEnv(), seed, kind), run_episode(ToyEnv(), seed, kind)
    assert np.array_equal(a.q, b.q) and np.array_equal(a.action, b.action)
    n = len(a)
    assert a.q.shape == (n + 1, 4) and a.action.shape == (n, 1)
    assert a.chunks.shape == (n, 2, 8, 1) and a.weights.shape == (n, 2)
    assert a.driver == list(DRIVERS).index(kind) and a.seed == seed
    assert n == 12 or a.terminated
    for q, chunk in zip(a.q, a.chunks, strict=False):
        state = SCHEMA.decode(q)
        # the state is rounded to 0.01, the label is not
        assert abs(expert(state["x"], state["v"]) - chunk[0, 0, 0]) < 0.01
    assert np.abs(a.action).max() <= 1


def test_a_policy_drives_within_the_actuators_rate_and_the_expert_labels(seed: int) -> None:
    class Policy:
        calls: list[tuple[list[int], float]] = []  # noqa: RUF012

        def reset(self, seed: int) -> None:
            self.calls.clear()

        def act(self, q: np.ndarray, last: np.ndarray) -> np.ndarray:
            self.calls.append((q.tolist(), float(last[0])))
            return np.array([1.0], np.float32)

    policy = Policy()
    got = run_episode(ToyEnv(), seed, "model", policy)
    assert [q for q, _ in policy.calls] == got.q[:-1].tolist()
    assert [last for _, last in policy.calls] == [0.0, *got.action[:-1, 0].tolist()]
    assert got.action[0, 0] == 1.0  # 20 N/s for 0.1 s is half the range
    assert not np.array_equal(got.chunks[:, 0, 0], got.action)


# ---- folders ----


def test_shards_continue_and_damaged_ones_are_told(
    toy: list[ToyEnv], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "worker_pool", here)
    seen: list[tuple[int, int]] = []

    def run(count: int) -> list[int]:
        seen.clear()
        return list(collect("toy/Toy-v0", tmp_path, count, 0, 2, lambda *a: seen.append(a)))

    steps = run(45)
    assert len(steps) == 3 and seen == [(0, 3), (1, 3), (2, 3), (3, 3)]
    whole = load_episodes(tmp_path)
    assert [e.seed for e in whole] == list(range(45)) and sum(map(len, whole)) == sum(steps)
    assert all(env.closed for env in toy)
    assert run(45) == [] and seen == [(3, 3)]
    middle = tmp_path / "shard-00000020-020.npz"
    kept = middle.read_bytes()
    middle.unlink()
    assert len(run(45)) == 1 and seen == [(2, 3), (3, 3)]
    again = load_episodes(tmp_path)
    assert all(np.array_equal(a.q, b.q) for a, b in zip(whole, again, strict=True))
    middle.write_bytes(kept[:-200])
    with pytest.raises(UsageError, match=r"shard-00000020-020\.npz is no readable shard"):
        run(45)
    save_shard(middle, load_shard(tmp_path / "shard-00000000-020.npz"))  # other seeds: made again
    assert len(run(45)) == 1
    assert [e.seed for e in load_episodes(tmp_path)] == list(range(45))


def test_an_interrupted_collection_leaves_whole_shards_only(
    toy: list[ToyEnv], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(env_id: str, shard: module.Shard, checkpoint: Path | None = None) -> int:
        if shard.seeds[0] == 0:
            return collect_shard(env_id, shard)
        shard.path.with_name(f".{shard.path.name}.99").write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "worker_pool", here)
    monkeypatch.setattr(module, "collect_shard", killed)
    with pytest.raises(KeyboardInterrupt):
        list(collect("toy/Toy-v0", tmp_path, 45, 0, 2, lambda *_: None))
    assert sorted(p.name for p in tmp_path.iterdir()) == [META, "shard-00000000-020.npz"]


def test_a_folder_of_another_environment_schema_or_horizon_is_refused(
    toy: list[ToyEnv], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_meta("toy/Toy-v0", tmp_path)
    assert Meta.read(tmp_path).drivers == tuple(DRIVERS)
    write_meta("toy/Toy-v0", tmp_path)
    text = (tmp_path / META).read_text()
    with pytest.raises(UsageError, match="another environment or schema; choose another --out"):
        write_meta("toy/Other-v0", tmp_path)
    fewer = {k: v for k, v in SCHEMA.fields.items() if k != "moving"}
    monkeypatch.setattr(ToyEnv, "state_schema", StateSchema(fewer, neutral=[0.0]))
    with pytest.raises(UsageError, match="another environment or schema"):
        write_meta("toy/Toy-v0", tmp_path)
    assert (tmp_path / META).read_text() == text


def test_an_environment_that_does_not_exist_is_one_line() -> None:
    for name in ("wmrt/Nowhere-v0", "Nowhere-v0", "no.such.module:X-v0", "a:b:c"):
        with pytest.raises(UsageError, match=f"environment '{name}': "):
            make_env(name)
    with pytest.raises(UsageError, match="cannot be learned from: no state_schema, action_spec"):
        make_env("CartPole-v1")


def test_a_real_collection_of_two_drives(tmp_path: Path) -> None:
    seeds = (3, 4)
    steps = collect_shard(
        "wmrt/Highway-v0", module.Shard(tmp_path / "shard-00000003-002.npz", seeds)
    )
    write_meta("wmrt/Highway-v0", tmp_path)
    meta, made = Meta.read(tmp_path), load_episodes(tmp_path)
    assert [e.seed for e in made] == [3, 4] and sum(map(len, made)) == steps
    assert meta.actions.names == ("steering", "acceleration") and meta.period == 0.1
    for e in made:
        assert list(DRIVERS)[e.driver] == driver_of(e.seed)
        codes, values = meta.schema.encode_q(e.q)
        assert codes.min() >= 0 and np.isfinite(values).all()
        assert e.chunks.shape[2:] == (8, 2) and np.abs(e.chunks).max() <= 1
        np.testing.assert_allclose(e.weights.sum(1), 1, atol=2e-3)
        assert len(e) == 300 or e.terminated
    assert len(ACTIONS) == 1
