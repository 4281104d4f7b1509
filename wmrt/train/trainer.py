"""The training loop: deterministic batches, cosine schedule, resumable state without pickle."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import mse_loss

from wmrt.core.errors import UsageError
from wmrt.core.files import replacing, require_writable
from wmrt.model.network import Network
from wmrt.train.dataset import Batch, Recording, window_batch
from wmrt.train.losses import LossWeights, compute
from wmrt.train.occlusion import occlude

RESUME = "resume.safetensors"
#: Progress callback: (iteration, total, named losses).
Progress = Callable[[int, int, dict[str, float]], None]


@dataclass(frozen=True)
class TrainConfig:
    """One training run. ``focus`` is the share of windows from the second recording, if there is
    one. ``occlusion_dwell`` > 0 switches sensor groups off half the time (in
    steps)."""

    steps: int = 2400
    batch: int = 32
    window: int = 64
    lr: float = 1.5e-3
    weight_decay: float = 0.05
    warmup: int = 100
    clip: float = 1.0
    seed: int = 0
    occlusion_dwell: float = 0.0
    action_noise: float = 0.02
    validation: float = 0.05
    save_every: int = 200
    focus: float = 0.5
    weights: LossWeights = field(default_factory=LossWeights)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def rate(self, iteration: int) -> float:
        """Learning rate: linear warm-up, cosine to 2%."""
        warm = min(1.0, (iteration + 1) / self.warmup)
        return (
            self.lr * warm * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * iteration / self.steps)))
        )


@contextmanager
def deterministic() -> Iterator[None]:
    """The same bits for the same seed and number of threads.

    Otherwise two threads add into one row of an embedding in whichever order they arrive: two runs
    parted after 4 iterations.
    """
    before = torch.are_deterministic_algorithms_enabled()
    filled = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
        torch.utils.deterministic.fill_uninitialized_memory = filled  # type: ignore[attr-defined]


class Trainer:
    """Trains ``network`` on ``data``; every batch is a function of (seed, iteration) alone.

    ``start`` is the hash of the weights that ``network`` came with, empty for random ones.
    """

    def __init__(
        self,
        network: Network,
        data: Recording,
        config: TrainConfig,
        groups: Tensor,
        start: str = "",
    ) -> None:
        if 0 < config.occlusion_dwell < 1:
            raise UsageError(
                f"occlusion_dwell {config.occlusion_dwell}: a sensor group stays off or on for at "
                "least one step"
            )
        if config.occlusion_dwell > 0 and groups.numel() == 0:
            raise UsageError("occlusion was asked for, but the recording names no sensor groups")
        self.network, self.data, self.config = network, data, config
        self.groups, self.start = groups, start
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(config.seed))
        if len(data) < 2:
            raise UsageError(f"{len(data)} episode is too little: one is held back; collect more")
        held = max(1, int(len(data) * config.validation))
        self.validation, self.training = order[:held], order[held:]
        self.weight = data.length.float()
        second = data.source > 0
        if bool(second.any()):
            share = float(self.weight[second].sum() / self.weight.sum())
            self.weight[second] *= config.focus / share
            self.weight[~second] *= (1 - config.focus) / (1 - share)
        matrices = [p for p in network.parameters() if p.ndim >= 2]
        vectors = [p for p in network.parameters() if p.ndim < 2]
        self.optimizer = torch.optim.AdamW(
            [
                {"params": matrices, "weight_decay": config.weight_decay},
                {"params": vectors, "weight_decay": 0.0},
            ],
            lr=config.lr,
            betas=(0.9, 0.98),
        )
        self.iteration = 0

    def batch(self, episodes: Tensor, count: int, generator: torch.Generator) -> Batch:
        """``count`` windows, episodes drawn in proportion to their length within a recording."""
        weight = self.weight[episodes]
        pick = episodes[torch.multinomial(weight, count, replacement=True, generator=generator)]
        room = (self.data.length[pick] - self.config.window // 2).clamp(min=1)
        start = (torch.rand(count, generator=generator) * room).long()
        batch = window_batch(self.data, pick, start, self.config.window)
        # Blur the fed-back action: a policy that can read its last action copies it instead of
        # driving.
        noise = torch.randn(batch.previous.shape, generator=generator) * self.config.action_noise
        batch.previous = (batch.previous + noise).clamp(-1, 1)
        if self.config.occlusion_dwell > 0:
            batch = occlude(batch, self.groups, self.config.occlusion_dwell, generator)
        return batch

    def _generator(self, stream: int) -> torch.Generator:
        return torch.Generator().manual_seed(self.config.seed * 1_000_003 + stream)

    def step(self) -> dict[str, float]:
        """One optimiser step; returns the losses."""
        generator = self._generator(1 + self.iteration)
        batch = self.batch(self.training, self.config.batch, generator)
        torch.manual_seed(self.config.seed * 1_000_003 + self.iteration)  # dropout only
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.rate(self.iteration)
        self.network.train()
        total, parts = compute(self.network, batch, self.config.weights, generator)
        self.optimizer.zero_grad()
        total.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(self.network.parameters(), self.config.clip)
        if not math.isfinite(float(norm)):
            raise UsageError(
                f"training diverged at iteration {self.iteration}: gradient norm {float(norm)}"
            )
        self.optimizer.step()
        self.iteration += 1
        return {"total": float(total.detach()), **{k: float(v.detach()) for k, v in parts.items()}}

    @torch.no_grad()
    def validate(self, batches: int = 4) -> dict[str, float]:
        """Mean losses over the same held-back windows every time."""
        self.network.eval()
        sums: dict[str, float] = {}
        for i in range(batches):
            batch = self.batch(self.validation, self.config.batch, self._generator(-1 - i))
            _, parts = compute(self.network, batch, self.config.weights, self._generator(-1 - i))
            for name, value in parts.items():
                sums[name] = sums.get(name, 0.0) + float(value) / batches
        return sums

    def run(self, folder: Path | None = None, progress: Progress | None = None) -> None:
        """Train to the end, saving a resumable state in ``folder`` every ``save_every`` steps."""
        while self.iteration < self.config.steps:
            with deterministic():
                losses = self.step()
            if progress:
                progress(self.iteration, self.config.steps, losses)
            if folder and (
                self.iteration % self.config.save_every == 0 or self.iteration == self.config.steps
            ):
                self.save(folder)
        self.network.eval()

    def save(self, folder: Path) -> None:
        """Write `RESUME` (weights, optimiser moments, the run's identity) in ``folder``.

        Raises `UsageError` if it cannot be written.
        """
        tensors = {f"network.{k}": v for k, v in self.network.state_dict().items()}
        for index, state in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{index}.{k}": torch.as_tensor(v) for k, v in state.items()}
        tensors = {k: v.contiguous().clone() for k, v in tensors.items()}
        meta = {"iteration": str(self.iteration), **self._identity()}
        require_writable(folder)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with replacing(folder / RESUME) as temporary:
                save_file(tensors, temporary, metadata=meta)
        except SafetensorError as error:  # its form of a full disk
            raise UsageError(f"{folder / RESUME} cannot be written: {error}") from None

    def _identity(self) -> dict[str, str]:
        """What makes this run and no other. Networks of another selector or number of past states
        have tensors of the same shapes, so shapes alone would not tell."""
        recorded = hashlib.blake2b(self.data.action.numpy().tobytes(), digest_size=16)
        return {
            "configuration": json.dumps(self.config.to_json(), sort_keys=True),
            "network": json.dumps(self.network.config.to_json(), sort_keys=True),
            "schema": self.network.schema.hash,
            "recording": recorded.hexdigest(),
            "start": self.start,
        }

    def resume(self, folder: Path) -> bool:
        """Continue from ``folder`` if it holds a state. True if it did.

        Raises `UsageError` for a state of another run, or one that cannot be read.
        """
        path = folder / RESUME
        if not path.exists():
            return False
        try:
            with safe_open(path, framework="pt") as file:
                meta = file.metadata() or {}
            tensors = load_file(path)
        except (OSError, SafetensorError) as error:
            raise UsageError(
                f"{path} is not readable ({error}); delete it to start again"
            ) from None
        other = [name for name, value in self._identity().items() if meta.get(name, "") != value]
        if other:
            raise UsageError(
                f"{path} belongs to another {' and '.join(other)}; "
                "delete it, or choose another --out"
            )
        self.network.load_state_dict(
            {k[8:]: v for k, v in tensors.items() if k.startswith("network.")}, strict=True
        )
        state: dict[int, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            if key.startswith("optimizer."):
                _, index, name = key.split(".", 2)
                state.setdefault(int(index), {})[name] = value
        full = self.optimizer.state_dict()
        full["state"] = state
        self.optimizer.load_state_dict(full)
        self.iteration = int(meta["iteration"])
        return True


def train_compensation(
    network: Network, chunks: Tensor, *, steps: int = 600, seed: int = 0
) -> dict[str, float]:
    """Fit ActionQuant's compensation on decoded chunks float32[N, H, A]; a tenth is held back.

    Returns root mean square errors on the held-back part, plain and compensated.
    """
    codec = network.action_quant
    held = max(1, len(chunks) // 10)
    test, train = chunks[:held], chunks[held:]
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(codec.parameters(), lr=3e-3)
    for iteration in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * 0.5 * (1 + math.cos(math.pi * iteration / steps))
        batch = train[torch.randint(len(train), (1024,), generator=generator)]
        loss = mse_loss(codec(batch), batch)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    with torch.no_grad():
        plain = codec.dequantize(*codec.quantize(test), compensate=False)
        return {
            "rmse_plain": float(mse_loss(plain, test).sqrt()),
            "rmse_compensated": float(mse_loss(codec(test), test).sqrt()),
        }
