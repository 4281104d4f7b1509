"""Which folder a name stands for."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from wmrt.core.errors import CheckpointError
from wmrt.model import locate
from wmrt.model.locate import packaged_names, resolve_checkpoint


def make(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    return folder


@pytest.fixture(autouse=True)
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two packaged checkpoints, and an empty working folder."""
    monkeypatch.setattr(locate, "PACKAGED", tmp_path / "packaged")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    make(tmp_path / "packaged" / "zoo")
    return make(tmp_path / "packaged" / "highway")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[dict[str, Any]]:
    """A hub that knows one repository, o/good, and records what it is asked."""
    calls: list[dict[str, Any]] = []
    folder = make(tmp_path / "hub")

    def snapshot_download(repo: str, **options: Any) -> str:
        calls.append({"repo": repo, **options})
        if repo == "o/good":
            return str(folder)
        if repo == "o/empty":
            return str(tmp_path / "here")
        raise OSError("404 not found\nmany more lines")

    module = ModuleType("huggingface_hub")
    module.snapshot_download = snapshot_download  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    return calls


def test_existing_path_wins_over_a_packaged_name(packaged: Path) -> None:
    assert resolve_checkpoint("highway") == packaged
    here = make(Path("highway"))
    assert resolve_checkpoint("highway") == here
    assert resolve_checkpoint(here.absolute()) == here.absolute()


def test_existing_owner_name_path_wins_over_the_hub(hub: list[dict[str, Any]]) -> None:
    make(Path("o/good"))
    assert resolve_checkpoint("o/good") == Path("o/good")
    assert hub == []


def test_hub_is_asked_only_for_owner_slash_name(hub: list[dict[str, Any]], tmp_path: Path) -> None:
    assert resolve_checkpoint("o/good", "v1") == tmp_path / "hub"
    assert hub[0]["repo"] == "o/good" and hub[0]["revision"] == "v1"
    assert set(hub[0]["allow_patterns"]) == {
        *("config.json", "model.safetensors", "README.md", "monitor.json")
    }
    no_repository = ["unknown", "./o/x", "/o/x", "../x", "a/b/c", "", "~none/x", ".hidden/x"]
    no_repository += ["n" * 5000, "nul\0/x"]
    for name in [*no_repository, "o/", "o//x", "o/.."]:
        with pytest.raises(CheckpointError):
            resolve_checkpoint(name)
    assert len(hub) == 1


def test_hub_errors_are_one_line(hub: list[dict[str, Any]]) -> None:
    with pytest.raises(CheckpointError, match=r"'o/bad' cannot be had: 404 not found$"):
        resolve_checkpoint("o/bad")
    with pytest.raises(CheckpointError, match=r"'o/empty' holds no config\.json"):
        resolve_checkpoint("o/empty")


def test_unknown_bare_name_lists_the_packaged_ones() -> None:
    assert packaged_names() == ("highway", "zoo")
    with pytest.raises(CheckpointError, match=r"'highwy'.*packaged: highway, zoo"):
        resolve_checkpoint("highwy")


def test_a_packaged_name_cannot_climb_out() -> None:
    for name in ("..", "zoo/../zoo", "zoo/../../here"):
        with pytest.raises(CheckpointError):
            resolve_checkpoint(name)


def test_folder_without_configuration_and_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"holds no config\.json"):
        resolve_checkpoint(tmp_path / "here")
    Path("highway").mkdir()
    with pytest.raises(CheckpointError, match="run from another folder"):
        resolve_checkpoint("highway")
    with pytest.raises(CheckpointError, match="is a file"):
        resolve_checkpoint(tmp_path / "packaged" / "zoo" / "config.json")


def test_revision_of_a_local_checkpoint_is_refused(packaged: Path) -> None:
    for name in ("highway", packaged):
        with pytest.raises(CheckpointError, match="revision 'v1' was given"):
            resolve_checkpoint(name, "v1")
