"""A tiny checkpoint on disk, with a verdict cache of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runtime.models import tiny
from wmrt.model.checkpoint import save_checkpoint


@pytest.fixture
def folder(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    save_checkpoint(tmp_path / "model", tiny(seed), card="# the original")
    return tmp_path / "model"
