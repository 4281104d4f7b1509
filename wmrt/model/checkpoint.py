"""Checkpoints: a folder of ``config.json``, ``model.safetensors`` and a ``README.md`` card.

Saving never leaves half a checkpoint: everything is written to a temporary folder beside the
target, flushed, and renamed. Loading is strict and has no lenient mode: whatever is missing,
unexpected, of another shape or dtype, truncated or altered is a `CheckpointError` that lists the
names. Pickle is never read or written.
"""

from __future__ import annotations

import json
import mmap
import os
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from wmrt.core.errors import CheckpointError, UsageError
from wmrt.core.files import flush
from wmrt.core.types import ActionSpec
from wmrt.model import verdicts
from wmrt.model.checkpoint_checks import check_schema, check_tensors, some
from wmrt.model.checkpoint_config import CheckpointConfig, read_config
from wmrt.model.locate import (
    CARD_FILE,
    CONFIG_FILE,
    MONITOR_FILE,
    WEIGHTS_FILE,
    resolve_checkpoint,
)
from wmrt.model.schema import StateSchema
from wmrt.model.tree_hash import tree_hash

__all__ = [
    "Checkpoint",
    "check_schema",
    "check_tensors",
    "load_checkpoint",
    "require_replaceable",
    "resolve_checkpoint",
    "save_checkpoint",
]

_FILES = {CONFIG_FILE, WEIGHTS_FILE, CARD_FILE, MONITOR_FILE}


@dataclass(frozen=True)
class Checkpoint:
    """Everything that makes a trained model.

    Args:
        schema: the state contract it was trained on.
        model: configuration of the network, plain JSON data.
        actions: what its outputs mean on the machine.
        quantization: contract of the packed weights (recipe and layout), or None for float weights.
        provenance: where it came from (seeds, data, results), plain JSON data.
        tensors: name to tensor. After loading they are views of the mapped file (copy on write).
        path: the folder it was loaded from, None for one that only lives in memory.
        weights_sha256: tree hash of the weight file it was loaded from (`wmrt.model.tree_hash`).
    """

    schema: StateSchema
    model: dict[str, Any]
    actions: ActionSpec
    quantization: dict[str, Any] | None
    provenance: dict[str, Any]
    tensors: dict[str, Tensor] = field(repr=False)
    path: Path | None = None
    weights_sha256: str | None = None


def save_checkpoint(folder: str | os.PathLike[str], checkpoint: Checkpoint, *, card: str) -> None:
    """Write a checkpoint folder; replaces a checkpoint that is already there.

    Args:
        folder: target; it must not exist, or be empty, or hold a checkpoint and nothing else.
        checkpoint: what to write; its ``path`` and ``weights_sha256`` are ignored.
        card: text of ``README.md``, for people.

    Raises:
        CheckpointError: the target holds other files or cannot be written, the card is empty, two
            tensors share memory, or the configuration is not plain JSON data. The target is then as
            it was before.
    """
    target = Path(folder).absolute()
    if not card.strip():
        raise CheckpointError("card is empty; say what the model is and what it scores")
    require_replaceable(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.new-", dir=target.parent))
        try:
            _write(staging, checkpoint, card)
            staging.chmod(0o755)  # mkdtemp gives 0700
            _swap_in(staging, target)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    except OSError as error:
        raise CheckpointError(f"{target} cannot be written: {error.strerror or error}") from None


def load_checkpoint(
    name_or_path: str | os.PathLike[str],
    *,
    revision: str | None = None,
    verify: Literal["cached", "always"] = "cached",
) -> Checkpoint:
    """Open a checkpoint; its tensors are views of the mapped file, nothing is copied.

    Args:
        name_or_path: a folder, a packaged name, or a hub repository (`resolve_checkpoint`).
        revision: hub revision.
        verify: ``cached`` hashes a file once and remembers the verdict for as long as the file
            stays the same; ``always`` hashes it again.

    Raises:
        CheckpointError: anything about it is not exactly as recorded; the message lists the names.
        UsageError: another value for ``verify``.
    """
    if verify not in ("cached", "always"):
        raise UsageError(f"verify must be 'cached' or 'always', got {verify!r}")
    folder = resolve_checkpoint(name_or_path, revision)
    config = read_config(folder)
    weights = folder / WEIGHTS_FILE
    tensors = _map_tensors(weights, config)
    _verify_hash(weights, config.weights_root, always=verify == "always")
    return Checkpoint(
        schema=config.schema,
        model=config.model,
        actions=config.actions,
        quantization=config.quantization,
        provenance=config.provenance,
        tensors=tensors,
        path=folder,
        weights_sha256=config.weights_root,
    )


def _map_tensors(weights: Path, config: CheckpointConfig) -> dict[str, Tensor]:
    """Views of the mapped file, checked against what the configuration lists."""
    size = _prefetch(weights)
    try:
        with safe_open(str(weights), framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}
        check_tensors(config.tensors, tensors)
    except (SafetensorError, OSError) as error:
        cut = size < config.weights_bytes
        why = f"truncated: {size} bytes, {CONFIG_FILE} records {config.weights_bytes}"
        raise CheckpointError(
            f"{weights}: {why if cut else 'not a valid safetensors file'} ({error}); copy it again"
        ) from None
    except CheckpointError as error:
        raise CheckpointError(f"{weights}: {error}") from None
    if size != config.weights_bytes:  # last: what the tensors say is worth more to the reader
        raise CheckpointError(
            f"{weights}: {size} bytes, {CONFIG_FILE} records {config.weights_bytes}; "
            "copy both again"
        )
    return tensors


def _prefetch(weights: Path) -> int:
    """Size of the file; asks the kernel to start reading all of it (MADV_WILLNEED)."""
    try:
        with open(weights, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > 0:  # an empty file cannot be mapped
                with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                    mapped.madvise(mmap.MADV_WILLNEED)
    except OSError as error:
        raise CheckpointError(f"{weights}: cannot be read: {error.strerror or error}") from None
    return size


def _verify_hash(weights: Path, root: str, *, always: bool) -> None:
    key = verdicts.key_of(weights, root)
    if not always and verdicts.is_verified(key):
        return
    try:
        found = tree_hash(weights)
    except OSError as error:
        raise CheckpointError(f"{weights}: cannot be read: {error.strerror or error}") from None
    if found != root:
        raise CheckpointError(
            f"{weights}: SHA-256 tree hash is {found}, {CONFIG_FILE} records {root}; "
            "the file was altered or damaged; copy it again"
        )
    if verdicts.key_of(weights, root) == key:  # not changed while it was read
        verdicts.remember(key)


def require_replaceable(target: Path) -> None:
    """Raise `CheckpointError` if a checkpoint cannot be saved to ``target``: `save_checkpoint`'s
    own check, for those who work long before they save."""
    if not target.exists():
        return
    if not target.is_dir():
        raise CheckpointError(f"{target} is a file; give a folder")
    others = sorted(entry.name for entry in target.iterdir() if entry.name not in _FILES)
    if others:
        raise CheckpointError(f"{target} holds other files, not overwritten: {some(others)}")


def _write(staging: Path, checkpoint: Checkpoint, card: str) -> None:
    weights = staging / WEIGHTS_FILE
    tensors = {name: t.detach().cpu().contiguous() for name, t in checkpoint.tensors.items()}
    try:
        save_file(tensors, str(weights), metadata={"format": "pt"})
    except (RuntimeError, ValueError, SafetensorError) as error:
        raise CheckpointError(f"tensors cannot be saved: {' '.join(str(error).split())}") from None
    config = CheckpointConfig(
        schema=checkpoint.schema,
        model=checkpoint.model,
        actions=checkpoint.actions,
        quantization=checkpoint.quantization,
        provenance=checkpoint.provenance,
        weights_bytes=weights.stat().st_size,
        weights_root=tree_hash(weights),
        tensors={name: (tuple(t.shape), t.dtype) for name, t in tensors.items()},
    )
    try:
        text = json.dumps(config.to_json(), indent=1, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"configuration is not plain JSON data: {error}") from None
    (staging / CONFIG_FILE).write_text(text + "\n", encoding="utf-8")
    (staging / CARD_FILE).write_text(card.rstrip() + "\n", encoding="utf-8")
    for entry in staging.iterdir():
        entry.chmod(0o644)  # safetensors makes its files 0600
        flush(entry)
    flush(staging)


def _swap_in(staging: Path, target: Path) -> None:
    """Rename ``staging`` to ``target``; what was there is moved aside first and removed last."""
    aside = staging.with_name(staging.name.replace(".new-", ".old-"))
    replaced = target.exists()
    if replaced:
        target.rename(aside)
    try:
        staging.rename(target)
    except BaseException:
        if replaced:
            aside.rename(target)
        raise
    flush(target.parent)
    if replaced:
        shutil.rmtree(aside, ignore_errors=True)
