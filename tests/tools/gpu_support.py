"""A look at a GPU on a stand-in for one."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.tape import TapeBackend
from tools import gpu_sections
from tools.gpu_check import child
from wmrt.core import frozen_garbage
from wmrt.runtime.bench.rounds import Effort


def setting(**changes: Any) -> gpu_sections.Setting:
    given = {
        "preset": "tiny",
        "device": "cpu",
        "backend": TapeBackend,
        "compile": lambda run, **options: run,
        "buffer": 2**20,
        "rate_hz": 100,
        "deadline_ms": 1000.0,
        "paced": 6,
        "effort": Effort(rounds=2, steps=6, warm_up=1),
        "flat": 16,
        "compared": 3,
        "workers": 1,
        **changes,
    }
    return gpu_sections.Setting(**given)


@pytest.fixture(autouse=True)
def let_go(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Also a section that fails gives back what it held. Collections take 0.1 s each here."""
    monkeypatch.setattr(gc, "collect", lambda: 0)
    monkeypatch.setattr(gpu_sections, "RECIPES", ("bf16", "nvfp4"))
    yield
    assert frozen_garbage._holders == 0


def look(section: str, tmp_path: Path, **changes: Any) -> dict[str, Any]:
    path = tmp_path / f"{section}.json"
    found = child(section, 60, path, setting(**changes))
    assert json.loads(path.read_text("utf-8")) == json.loads(json.dumps(found, default=str))
    return found
