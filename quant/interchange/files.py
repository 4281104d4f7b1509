"""Folders of safetensors files: read whole or in shards, written under a temporary name."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from wmrt.core.errors import CheckpointError
from wmrt.core.files import flush, read_json

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


def some(names: Iterable[str], most: int = 8) -> str:
    """The first names, and how many more there are."""
    listed = sorted(names)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder, as views of its mapped files.

    Raises `CheckpointError` for a file that is missing or damaged, and for tensors that are not in
    the shard where the index puts them.
    """
    index = folder / INDEX_FILE
    if not index.is_file():
        return _read_file(folder / WEIGHTS_FILE)
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(p, str) for p in places.values()):
        raise CheckpointError(f"{index}: weight_map is no map of names to files")
    tensors: dict[str, Tensor] = {}
    for shard in sorted(set(places.values())):
        if Path(shard).name != shard:
            raise CheckpointError(f"{index}: {shard!r} is no file of this folder")
        found = _read_file(folder / shard)
        meant = {name for name, place in places.items() if place == shard}
        if meant != set(found):
            raise CheckpointError(
                f"{folder / shard}: missing: {some(meant - set(found)) or 'none'}; "
                f"not in the index: {some(set(found) - meant) or 'none'}"
            )
        tensors |= found
    return tensors


def _read_file(path: Path) -> dict[str, Tensor]:
    try:
        with safe_open(str(path), framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}
    except (OSError, SafetensorError) as error:
        text = " ".join(str(error).split())
        raise CheckpointError(
            f"{path}: cannot be read, it is missing, truncated or damaged: {text}"
        ) from None


def require_new(folder: Path) -> None:
    """Raise `CheckpointError` unless `folder` does not exist or is empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CheckpointError(f"{folder} is there already and is not replaced; give a new folder")


def write_folder(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write ``config.json`` and ``model.safetensors``; nothing is left at `folder` on failure.

    JSON as compressed-tensors writes it: two spaces, sorted keys, no line end after the last.
    """
    require_new(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}.new-", dir=folder.parent))
    try:
        try:
            text = json.dumps(config, indent=2, sort_keys=True, allow_nan=False)
            save_file(dict(tensors), str(staging / WEIGHTS_FILE), metadata={"format": "pt"})
        except (TypeError, ValueError, RuntimeError, SafetensorError) as error:
            raise CheckpointError(f"cannot be saved: {' '.join(str(error).split())}") from None
        (staging / CONFIG_FILE).write_text(text, "utf-8")
        for entry in staging.iterdir():
            entry.chmod(0o644)  # safetensors makes its files 0600
            flush(entry)
        staging.chmod(0o755)  # mkdtemp gives 0700
        staging.rename(folder)
        flush(folder.parent)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
