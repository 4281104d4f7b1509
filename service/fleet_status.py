"""Where each robot of a fleet is: what the folder of snapshots says. Ray is not asked."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from wmrt.core.errors import UsageError, WmrtError
from wmrt.service.leases import Leases
from wmrt.service.snapshots import SnapshotStore


def where(folder: Path) -> list[dict[str, Any]]:
    """A row a robot: ``robot``, ``owner``, ``token``, ``state`` (``served``, ``free``: its owner
    let it go, ``orphaned``: its owner is dead), and of its last snapshot ``sequence``, ``epoch``
    and ``breakers``, None where there is none that can be read; ``fault`` says why.

    Nothing is written: whoever asks may be another user than the fleet's, before its first start.

    Raises:
        UsageError: there is no such folder, or it cannot be read.
    """
    leases, store = Leases(folder, reads=True), SnapshotStore(folder, reads=True)
    if not folder.is_dir():
        raise UsageError(f"snapshots {folder}: there is no such folder")
    try:
        if leases.folder.name in os.listdir(folder):
            os.listdir(leases.folder)
    except OSError as error:
        raise UsageError(f"snapshots {folder}: {error.filename}: {error.strerror}") from None
    return [_row(leases, store, robot) for robot in leases.robots()]


def _row(leases: Leases, store: SnapshotStore, robot: str) -> dict[str, Any]:
    row: dict[str, Any] = {"robot": robot, "owner": None, "token": None, "state": None}
    row.update(sequence=None, epoch=None, breakers=None, fault=None)
    try:
        owned = leases.read(robot)
        if owned is not None:
            state = "free" if not owned.held else "orphaned"
            if owned.held and leases.is_alive(owned.owner):
                state = "served"
            row.update(owner=owned.owner, token=owned.token, state=state)
        memory, standing = store.read(robot), store.read_standing(robot)
        if memory is not None:
            row.update(sequence=memory.sequence, epoch=memory.epoch, breakers=memory.breakers)
        if standing is not None:
            row.update(epoch=standing.epoch, breakers=standing.breakers)
    except WmrtError as error:
        row["fault"] = str(error)[:200]
    return row
