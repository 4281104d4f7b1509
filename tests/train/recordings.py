"""Recordings of random drives over any schema: what calibration reads of them, and nothing more."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tests.model.networks import ACTIONS, random_state, small_schema
from wmrt.model.schema import StateSchema
from wmrt.train.dataset import META, Episode, Meta, save_shard


def drive(seed: int, steps: int, schema: StateSchema) -> Episode:
    rng = np.random.default_rng(seed)
    states = [random_state(rng, schema) for _ in range(steps + 1)]
    return Episode(
        np.stack([schema.quantize(state)[0] for state in states]),
        rng.uniform(-1, 1, (steps, len(ACTIONS))).astype(np.float32),
        np.zeros((steps, 1, 4, len(ACTIONS)), np.float32),
        np.ones((steps, 1), np.float32),
        np.zeros(steps, np.float32),
        False,
        seed,
        0,
    )


def recording(
    folder: Path,
    *,
    episodes: int = 6,
    steps: int = 30,
    first: int = 0,
    schema: StateSchema | None = None,
) -> Path:
    """A folder of ``episodes`` drives with seeds from ``first``."""
    schema = schema or small_schema()
    folder.mkdir(parents=True)
    meta = Meta("toy/Toy-v0", schema, ACTIONS, 0.1, 4, ("expert",), ())
    (folder / META).write_text(json.dumps(meta.to_json()))
    made = [drive(first + i, steps, schema) for i in range(episodes)]
    save_shard(folder / f"shard-{first:08d}-{episodes:03d}.npz", made)
    return folder
