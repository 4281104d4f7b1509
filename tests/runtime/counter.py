"""A small step with state, for tests of what captures it."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.runtime.tape import TapeBackend
from wmrt.core import frozen_garbage
from wmrt.runtime.static_buffers import Attributes

SIZE = 6


class Counter:
    """A step with state: out = weight @ x + total, then total += x. It counts its runs."""

    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.weight = torch.randn(SIZE, SIZE, generator=generator)
        self.x = torch.randn(SIZE, generator=generator)
        self.total = torch.randn(SIZE, generator=generator)
        self.out = torch.zeros(SIZE)
        self.runs = 0

    def __call__(self) -> None:
        self.runs += 1
        torch.mv(self.weight, self.x, out=self.out)
        self.out.add_(self.total)
        self.total.add_(self.x)

    @property
    def buffers(self) -> Attributes:
        return Attributes(self, ("x", "total", "out"))


@pytest.fixture(autouse=True)
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is left held; a collection takes 0.1 s where a test process has so many objects."""
    before = gc.isenabled(), frozen_garbage._holders
    monkeypatch.setattr(gc, "collect", lambda: 0)
    yield
    assert (gc.isenabled(), frozen_garbage._holders) == before
    gc.unfreeze()


def held(step: Counter) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in step.buffers.items()}


def same(step: Counter, before: Mapping[str, Tensor]) -> bool:
    return all(torch.equal(t, before[name]) for name, t in step.buffers.items())


def backend(step: Counter, **options: Any) -> TapeBackend:
    return TapeBackend(step.buffers, **options)
