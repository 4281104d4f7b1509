"""Saving a checkpoint: all or nothing, and never over something else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from wmrt.core.errors import CheckpointError
from wmrt.core.types import ActionDim, ActionSpec
from wmrt.model import checkpoint as module
from wmrt.model.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from wmrt.model.config import PRESETS
from wmrt.model.schema import StateSchema, numeric


def make(tensors: dict[str, torch.Tensor], **provenance: Any) -> Checkpoint:
    schema = StateSchema({"speed": numeric("m/s", 0.0, 40.0)}, neutral=[0.0])
    actions = ActionSpec((ActionDim("steering", "rad", -0.06, 0.06, 0.3, 0.3),))
    return Checkpoint(schema, PRESETS["tiny"].to_json(), actions, None, provenance, tensors)


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    save_checkpoint(tmp_path / "saved", make({"w": torch.arange(5.0)}), card="# a test")
    return tmp_path / "saved"


def test_a_failed_save_leaves_the_old_checkpoint_and_no_debris(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sorted((p.name, p.read_bytes()) for p in saved.iterdir())
    shared = torch.zeros(4)
    cases: list[tuple[dict[str, torch.Tensor], dict[str, Any], str]] = [
        ({"a": shared, "b": shared}, {}, "share memory"),
        ({"a": shared}, {"x": float("nan")}, "plain JSON"),
        ({"a": shared}, {"x": {1, 2}}, "plain JSON"),
    ]
    for tensors, provenance, said in cases:
        with pytest.raises(CheckpointError, match=said):
            save_checkpoint(saved, make(tensors, **provenance), card="x")

    def fail(*_: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "tree_hash", fail)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(saved, make({"a": shared}), card="x")
    assert sorted((p.name, p.read_bytes()) for p in saved.iterdir()) == before
    assert [p.name for p in saved.parent.iterdir() if p.name.startswith(".")] == []


def test_everybody_may_read_what_was_saved(saved: Path) -> None:
    assert saved.stat().st_mode & 0o777 == 0o755
    assert {file.stat().st_mode & 0o777 for file in saved.iterdir()} == {0o644}


def test_saving_over_a_checkpoint_replaces_it_and_mapped_tensors_stay(saved: Path) -> None:
    old = load_checkpoint(saved)
    values = old.tensors["w"].clone()
    save_checkpoint(saved, make({"v": torch.ones(2)}), card="new")
    assert set(load_checkpoint(saved).tensors) == {"v"}
    assert torch.equal(old.tensors["w"], values)
    assert [p.name for p in saved.parent.iterdir() if p.name.startswith(".")] == []


def test_saving_refuses_a_folder_with_other_files_a_file_and_an_empty_card(tmp_path: Path) -> None:
    checkpoint = make({"w": torch.ones(2)})
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(CheckpointError, match=r"not overwritten: .*thesis\.tex"):
        save_checkpoint(tmp_path, checkpoint, card="x")
    with pytest.raises(CheckpointError, match="is a file"):
        save_checkpoint(tmp_path / "thesis.tex", checkpoint, card="x")
    with pytest.raises(CheckpointError, match="card is empty"):
        save_checkpoint(tmp_path / "c", checkpoint, card=" \n")


def test_killed_while_saving_leaves_no_half_checkpoint(saved: Path) -> None:
    """A process killed before the rename: the target does not exist at all."""
    code = (
        "import os, sys, wmrt.model.checkpoint as m\n"
        "m._swap_in = lambda *_: os.kill(os.getpid(), 9)\n"
        "m.save_checkpoint(sys.argv[2], m.load_checkpoint(sys.argv[1]), card='x')\n"
    )
    target = saved.parent / "target"
    done = subprocess.run([sys.executable, "-c", code, str(saved), str(target)], check=False)
    assert done.returncode == -9
    assert not target.exists()
