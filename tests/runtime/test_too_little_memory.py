"""A model that memory does not suffice for: one typed error with the bytes, before any step."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.house.tree import ROOT
from tests.runtime.models import tiny
from wmrt.core import machine
from wmrt.core.errors import OutOfMemoryError
from wmrt.model.checkpoint import load_checkpoint, save_checkpoint
from wmrt.runtime import WorldModel, world_model

LIMITED = """
import resource, sys
from pathlib import Path
from wmrt import WorldModel
from wmrt.cli import inspect  # what it imports needs room of its own
from wmrt.cli.main import main
from wmrt.core.errors import OutOfMemoryError
WorldModel.from_pretrained("highway")
lines = Path("/proc/self/status").read_text().splitlines()
used = next(int(x.split()[1]) for x in lines if x.startswith("VmSize:")) * 1024
resource.setrlimit(resource.RLIMIT_AS, (used + (3 << 20),) * 2)  # its weights are 6 MB
try:
    WorldModel.from_pretrained("highway")
except OutOfMemoryError as error:
    print(error)
sys.exit(main(["inspect", "highway"]))
"""


def test_a_limit_on_address_space_is_told() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 2, done.stderr
    size = load_checkpoint("highway").path / "model.safetensors"  # type: ignore[operator]
    assert done.stdout.startswith("loading highway: memory could not be had, for weights of ")
    assert f"{size.stat().st_size:,} bytes; " in done.stdout
    assert "bytes are available of its address space (ulimit -v)\n" in done.stdout
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("wmrt: error: wmrt inspect: memory could not be had; ")


@pytest.fixture
def folder(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    save_checkpoint(tmp_path / "model", tiny(seed), card="# tiny")
    return tmp_path / "model"


def test_weights_larger_than_free_memory_are_refused_before_they_are_built(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "available_bytes", lambda: 1_000)
    monkeypatch.setattr(world_model, "build", lambda *_: pytest.fail("it was built"))
    with pytest.raises(OutOfMemoryError, match=r"needs [\d,]+ bytes of memory, 1,000 are availab"):
        WorldModel.from_pretrained(folder)


@pytest.mark.parametrize("executor", ["native", "eager", "auto"])
def test_memory_that_runs_out_while_it_is_built_is_told(
    executor: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def greedy(*_: object, **__: object) -> object:
        return torch.empty(1 << 55, dtype=torch.uint8)

    monkeypatch.setattr("wmrt.runtime.executor.build_network", greedy)
    said = r"building .*model: 36,028,797,018,963,968 bytes could not be had, for weights of"
    with pytest.raises(OutOfMemoryError, match=said):
        WorldModel.from_pretrained(folder, executor=executor)
