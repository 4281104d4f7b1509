"""Whether memory suffices for a model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from wmrt.core import memory
from wmrt.model.checkpoint import Checkpoint
from wmrt.model.locate import WEIGHTS_FILE, resolve_checkpoint


@contextmanager
def enough_memory(checkpoint: Checkpoint) -> Iterator[None]:
    """`OutOfMemoryError` where memory does not suffice to build it: before, if it cannot."""
    what = f"building {checkpoint.path or 'the model'}"
    size = sum(tensor.nbytes for tensor in checkpoint.tensors.values())
    if checkpoint.path is not None:  # mapped, and every step reads it: its pages have to stay
        memory.require(size, what)
    with memory.told(what, lambda: size):
        yield


def weight_bytes(name_or_path: str | Path, revision: str | None) -> int:
    """Bytes of a checkpoint's weight file."""
    return (resolve_checkpoint(name_or_path, revision) / WEIGHTS_FILE).stat().st_size
