"""Recordings of a run: one for every seed, whose car and breakers are its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wmrt.control.recording import FileRecorder
from wmrt.control.recording.parts import SUFFIX, check_new
from wmrt.core.errors import UsageError
from wmrt.core.extras import require
from wmrt.core.files import require_writable


class Records:
    """Opens a recording for each seed.

    Args:
        place: a file for a single seed, its name ending in ``.mcap``, else a folder.
        facts: what each of them notes, besides its seed.
    """

    def __init__(self, place: Path, facts: Mapping[str, str]) -> None:
        self._place, self._facts = place, dict(facts)
        self._open: FileRecorder | None = None

    def open(self, seed: int) -> FileRecorder:
        """The recorder of this seed's drive."""
        path = path_of(self._place, seed)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._open = FileRecorder(path, facts={**self._facts, "seed": str(seed)})
        return self._open

    def close(self) -> dict[str, Any] | None:
        """Finish the recording that is open, if one is; what became of it."""
        recorder, self._open = self._open, None
        if recorder is None:
            return None
        recorder.close()
        return {"file": str(recorder.path), **recorder.stats()}


def path_of(place: Path, seed: int) -> Path:
    """Where the drive of a seed is recorded."""
    return place if place.suffix == SUFFIX else place / f"drive-{seed}{SUFFIX}"


def check_place(place: Path, seeds: range) -> None:
    """Raise `UsageError` if a recording cannot be made, `MissingExtraError` without mcap."""
    require("mcap.writer", "record")
    if place.suffix == SUFFIX and len(seeds) > 1:
        raise UsageError(
            f"{place} holds one drive and {len(seeds)} are to be driven; give a folder"
        )
    require_writable(place.parent if place.suffix == SUFFIX else place)
    for seed in seeds:
        check_new(path_of(place, seed))
