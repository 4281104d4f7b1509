"""Recorded episodes: one shard file per block of seeds, and the tensors training reads.

A shard is an .npz without objects: integer states q of every step and of the final state, executed
actions, the expert's candidate chunks with their weights, rewards, terminations. States are stored
as
schema integers, so any bucket knots can be fitted later.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wmrt.core.errors import UsageError, WmrtError
from wmrt.core.files import replacing
from wmrt.core.types import ActionSpec
from wmrt.model.schema import UNKNOWN, StateSchema

#: Stand-in for UNKNOWN in the int32 files.
_UNKNOWN32 = -(2**31)
META = "meta.json"
#: Episodes of a file.
SHARD = 20
ARRAYS = ("q", "action", "chunks", "weights", "reward", "terminated", "length", "seed", "driver")


@dataclass
class Episode:
    """One drive of n steps: n + 1 states, n of everything else.

    q int64[n + 1, F]; action float32[n, A]; chunks float32[n, M, H, A]; weights float32[n, M];
    reward float32[n]; terminated: the last step ended the drive (crash or off the road).
    """

    q: NDArray[np.int64]
    action: NDArray[np.float32]
    chunks: NDArray[np.float32]
    weights: NDArray[np.float32]
    reward: NDArray[np.float32]
    terminated: bool
    seed: int
    driver: int

    def __len__(self) -> int:
        return len(self.reward)


def shard_path(folder: Path, first: int, count: int) -> Path:
    """The file of ``count`` episodes from seed ``first``."""
    return folder / f"shard-{first:08d}-{count:03d}.npz"


def save_shard(path: Path, episodes: Sequence[Episode]) -> None:
    """Write a shard, whole or not at all; `UsageError` if it cannot be written."""
    q = np.concatenate([e.q for e in episodes])
    arrays = {
        "q": np.where(q == UNKNOWN, _UNKNOWN32, q).astype(np.int32),
        "action": np.concatenate([e.action for e in episodes]),
        "chunks": np.concatenate([e.chunks for e in episodes]).astype(np.float16),
        "weights": np.concatenate([e.weights for e in episodes]).astype(np.float16),
        "reward": np.concatenate([e.reward for e in episodes]),
        "terminated": np.array([e.terminated for e in episodes]),
        "length": np.array([len(e) for e in episodes], np.int32),
        "seed": np.array([e.seed for e in episodes], np.int64),
        "driver": np.array([e.driver for e in episodes], np.int32),
    }
    with replacing(path) as temporary, open(temporary, "wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)


def load_shard(path: Path) -> list[Episode]:
    """Inverse of `save_shard`; raises `UsageError` on a damaged file."""
    try:
        # Opened here: numpy leaves its own handle open when the archive is damaged.
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as data:
            a = {name: data[name] for name in ARRAYS}
    except (OSError, ValueError, KeyError, EOFError, BadZipFile, zlib.error) as error:
        raise UsageError(
            f"{path} is no readable shard ({error}); delete it and collect again"
        ) from None
    q = a["q"].astype(np.int64)
    q[q == _UNKNOWN32] = UNKNOWN
    episodes, at = [], 0
    for i, n in enumerate(a["length"].tolist()):
        steps = slice(at, at + n)
        episodes.append(
            Episode(
                q[at + i : at + i + n + 1],
                a["action"][steps],
                a["chunks"][steps].astype(np.float32),
                a["weights"][steps].astype(np.float32),
                a["reward"][steps],
                bool(a["terminated"][i]),
                int(a["seed"][i]),
                int(a["driver"][i]),
            )
        )
        at += n
    return episodes


@dataclass(frozen=True)
class Meta:
    """What every shard of a folder has in common.

    ``checkpoint`` is the SHA-256 of the weights that drove, if a model did.
    """

    env: str
    schema: StateSchema
    actions: ActionSpec
    period: float
    horizon: int
    drivers: tuple[str, ...]
    sensor_groups: tuple[tuple[str, ...], ...]
    checkpoint: str | None = None

    def to_json(self) -> dict[str, Any]:
        driven_by = {} if self.checkpoint is None else {"checkpoint": self.checkpoint}
        return {
            "env": self.env,
            "schema": self.schema.to_json(),
            "actions": self.actions.to_json(),
            "period": self.period,
            "horizon": self.horizon,
            "drivers": list(self.drivers),
            "sensor_groups": [list(g) for g in self.sensor_groups],
            **driven_by,
        }

    def write(self, folder: Path) -> None:
        """Write ``meta.json``; raises `UsageError` if it cannot be written."""
        with replacing(folder / META) as temporary:
            temporary.write_text(json.dumps(self.to_json(), indent=1))

    @classmethod
    def read(cls, folder: Path) -> Meta:
        """Read ``meta.json``; raises `UsageError` if ``folder`` holds no recording."""
        try:
            data = json.loads((folder / META).read_text())
        except FileNotFoundError:
            raise UsageError(
                f"{folder} holds no recording (no {META}); run: wmrt collect --out {folder}"
            ) from None
        except (OSError, ValueError) as error:
            raise UsageError(f"{folder / META} is not readable: {error}") from None
        try:
            return cls(
                data["env"],
                StateSchema.from_json(data["schema"]),
                ActionSpec.from_json(data["actions"]),
                data["period"],
                data["horizon"],
                tuple(data["drivers"]),
                tuple(tuple(g) for g in data["sensor_groups"]),
                data.get("checkpoint"),
            )
        except (KeyError, TypeError) as error:
            raise UsageError(f"{folder / META} describes no recording: {error!r}") from None
        except WmrtError as error:
            raise UsageError(f"{folder / META}: {error}") from None


def load_episodes(folder: Path) -> list[Episode]:
    """All episodes of a folder in seed order, each seed once: shards of runs with other numbers of
    episodes overlap."""
    shards = sorted(folder.glob("shard-*.npz"))
    if not shards:
        raise UsageError(f"{folder} holds no shard files; run: wmrt collect --out {folder}")
    by_seed = {episode.seed: episode for shard in shards for episode in load_shard(shard)}
    return [by_seed[seed] for seed in sorted(by_seed)]


@dataclass
class Recording:
    """Episodes as flat tensors. State row of step t of episode e: state_start[e] + t."""

    codes: Tensor  # int16[S, F]
    values: Tensor  # float32[S, F]
    action: Tensor  # float32[N, A]
    chunks: Tensor  # float16[N, M, H, A]
    weights: Tensor  # float16[N, M]
    reward: Tensor  # float32[N]
    length: Tensor  # int64[E]
    terminated: Tensor  # bool[E]
    source: Tensor  # int64[E], which recording an episode is from
    state_start: Tensor
    step_start: Tensor

    @classmethod
    def build(
        cls, episodes: Sequence[Episode], schema: StateSchema, source: Sequence[int] = ()
    ) -> Recording:
        """Encode ``episodes`` with ``schema``; ``source`` numbers their recordings (default all
        0)."""
        codes, values = schema.encode_q(np.concatenate([e.q for e in episodes]))
        length = torch.tensor([len(e) for e in episodes])

        def join(name: str, dtype: torch.dtype) -> Tensor:
            return torch.from_numpy(np.concatenate([getattr(e, name) for e in episodes])).to(dtype)

        return cls(
            torch.from_numpy(codes).to(torch.int16),
            torch.from_numpy(values),
            join("action", torch.float32),
            join("chunks", torch.float16),
            join("weights", torch.float16),
            join("reward", torch.float32),
            length,
            torch.tensor([e.terminated for e in episodes]),
            torch.tensor(list(source) or [0] * len(episodes)),
            torch.cumsum(length + 1, 0) - length - 1,
            torch.cumsum(length, 0) - length,
        )

    def __len__(self) -> int:
        return len(self.length)


@dataclass
class Batch:
    """Windows of T steps. ``mask`` float32[B, T] is 1 on real steps; ``ended`` marks the last step
    of a crash.

    codes, values [B, T + 1, F] observed; true_codes, true_values before sensor dropout.
    """

    codes: Tensor
    values: Tensor
    true_codes: Tensor
    true_values: Tensor
    previous: Tensor
    action: Tensor
    chunks: Tensor
    weights: Tensor
    reward: Tensor
    ended: Tensor
    mask: Tensor


def window_batch(data: Recording, episode: Tensor, start: Tensor, steps: int) -> Batch:
    """Windows of ``steps`` steps starting at ``start`` int64[B] of episodes ``episode``
    int64[B]."""
    offset = start.unsqueeze(1) + torch.arange(steps + 1)
    length = data.length[episode].unsqueeze(1)
    state = data.state_start[episode].unsqueeze(1) + torch.minimum(offset, length)
    now = offset[:, :-1]
    step = data.step_start[episode].unsqueeze(1) + torch.minimum(now, length - 1)
    before = data.action[(step - 1).clamp(min=0)]
    before = torch.where((now > 0).unsqueeze(-1), before, torch.zeros_like(before))
    mask = (now < length).float()
    ended = (now == length - 1) & data.terminated[episode].unsqueeze(1)
    codes, values = data.codes[state].long(), data.values[state]
    return Batch(
        codes,
        values,
        codes,
        values,
        before,
        data.action[step],
        data.chunks[step].float(),
        data.weights[step].float(),
        data.reward[step],
        ended.float(),
        mask,
    )
