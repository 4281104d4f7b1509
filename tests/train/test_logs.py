"""Logs of one's own robot: what they become, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.train.toys import ACTIONS, SCHEMA, state_of
from wmrt.core.errors import UsageError
from wmrt.train.dataset import SHARD, Meta, Recording, load_episodes
from wmrt.train.logs import Log, record


def log_of(seed: int, steps: int, **changes: Any) -> Log:
    rng = np.random.default_rng(seed)
    states = [state_of(float(x), float(v)) for x, v in rng.uniform(-4, 4, (steps + 1, 2))]
    actions = rng.uniform(-1, 1, (steps, 1)).astype(np.float32)
    return Log(**{"states": states, "actions": actions, **changes})


def write(folder: Path, *logs: Log, **options: Any) -> int:
    return record(folder, SCHEMA, ACTIONS, 0.1, logs, **options)


def test_a_recording_gives_the_logs_back(tmp_path: Path, seed: int) -> None:
    logs = [log_of(seed + n, 3 + n % 5) for n in range(SHARD + 2)]
    logs[1] = log_of(seed, 2, rewards=[0.5, -1.0], terminated=True)
    assert write(tmp_path / "a" / "b", *logs, name="arm", horizon=3) == sum(
        len(log.actions) for log in logs
    )
    meta, found = Meta.read(tmp_path / "a" / "b"), load_episodes(tmp_path / "a" / "b")
    assert (meta.env, meta.schema, meta.actions, meta.period) == ("arm", SCHEMA, ACTIONS, 0.1)
    assert meta.horizon == 3 and len(found) == len(logs)
    for log, episode in zip(logs, found, strict=True):
        assert np.array_equal(episode.action, log.actions)
        expected = np.stack([SCHEMA.quantize(state)[0] for state in log.states])
        assert np.array_equal(episode.q, expected)
        for t, chunk in enumerate(episode.chunks[:, 0]):  # what followed; the end repeats
            rows = [min(t + h, len(log.actions) - 1) for h in range(3)]
            # chunks are kept as float16, eps 2^-10 below 1
            np.testing.assert_allclose(chunk, np.asarray(log.actions)[rows], atol=2**-11)
    assert found[1].reward.tolist() == [0.5, -1.0] and found[1].terminated
    assert not found[0].reward.any() and not found[0].terminated
    assert len(Recording.build(found, SCHEMA)) == len(logs)


def test_an_optional_value_may_be_missing_from_a_log(tmp_path: Path, seed: int) -> None:
    log = log_of(seed, 2)
    states = [{**state, "v": None} for state in log.states]
    write(tmp_path, Log(states, log.actions))
    assert SCHEMA.decode(load_episodes(tmp_path)[0].q[0])["v"] is None


GOOD = log_of(0, 2)
STATES = list(GOOD.states)
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"states": STATES[:2]}, r"2 states, 2 actions and 2 rewards; a drive of n actions has n \+ 1"),
    ({"rewards": [0.0]}, "3 states, 2 actions and 1 rewards"),
    ({"rewards": [0.0, math.nan]}, "rewards must be finite"),
    ({"actions": [[0.0, 0.0]] * 2}, r"actions of shape \[2, 2\]; expected \[n, 1\] for push"),
    ({"actions": []}, "n at least 1"),
    ({"actions": [[0.0], [1.5]]}, r"actions must be in \[-1, 1\]; ActionDim.to_normalised"),
    ({"actions": [[0.0], [math.nan]]}, "actions must be in"),
    ({"actions": [["left"], ["right"]]}, "actions are no array of numbers"),
    ({"states": [*STATES[:2], {"v": 1.0}]}, "state 2: x: required"),
    ({"states": [STATES[0], 5, STATES[2]]}, "state 1: .*state: 5 is not a state"),
    ({"states": [*STATES[:2], {**STATES[2], "w": 1}]}, "state 2: w: .* not declared"),
]


@pytest.mark.parametrize(("changes", "said"), WRONG)
def test_a_log_that_cannot_be_learned_from_is_told_by_its_place(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=f"^log 1.*{said}"):
        write(tmp_path / "new", GOOD, log_of(0, 2, **changes))
    assert not (tmp_path / "new").exists()


def test_folders_and_arguments_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="none given"):
        write(tmp_path)
    with pytest.raises(UsageError, match="horizon must be at least 1, got 0"):
        write(tmp_path, GOOD, horizon=0)
    write(tmp_path, GOOD)
    with pytest.raises(UsageError, match="holds a recording already"):
        write(tmp_path, GOOD)
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="it is no folder"):
        write(tmp_path / "file", GOOD)
