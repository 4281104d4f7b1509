"""Robots' memories on disk: a safetensors file each, whole or not at all, never pickle.

A folder may be shared by several services, of which one at a time serves a robot (`leases`): a
robot that comes back with its session goes on in any of them.
"""

from __future__ import annotations

import json
import math
import os
import threading
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from wmrt.core.errors import CheckpointError
from wmrt.core.files import flush, remove_leftovers, replacing, require_writable
from wmrt.core.wire import session_number, session_text
from wmrt.runtime.snapshot import Origin, Snapshot
from wmrt.safety import State
from wmrt.service.desk import Memory
from wmrt.service.leases import Lease, Leases

VERSION = 1
_GENERATOR = "generator"
_STATES = {state.value for state in State}


class SnapshotStore:
    """Reads and writes memories in ``folder``, which is made if it is not there.

    Args:
        leases: where other processes use the folder too.

    Attributes:
        written, failed: snapshots of this process. failing: those since the last one that was
            written. reason: why the last one failed.

    Raises:
        UsageError: a folder that cannot be written.
    """

    def __init__(self, folder: Path, leases: Leases | None = None) -> None:
        require_writable(folder)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder, self._leases = folder, leases
        self.written = self.failed = self.failing = 0
        self.reason = ""
        self._lock = threading.Lock()

    def path(self, robot: str) -> Path:
        """Where the memory of a robot lies whose name `check_name` has seen."""
        return self.folder / f"{robot}.safetensors"

    def write(self, memory: Memory, lease: Lease | None = None) -> None:
        """Write a memory in place of the robot's last one.

        Args:
            lease: under which the robot is this process's, if others use the folder.

        Raises:
            UsageError: the disk is full, or will not take it; the last one stays.
            Refusal: moved: the robot is another process's now, and its snapshot stays.
        """
        if self._leases is None or lease is None:
            self._write(memory)
            return
        with self._leases.fenced(lease):
            self._write(memory)

    def _write(self, memory: Memory) -> None:
        data = save(
            {**memory.snapshot.tensors, _GENERATOR: memory.snapshot.generator},
            {"wmrt": json.dumps(_describe(memory))},
        )
        path = self.path(memory.robot)
        with self._lock:
            try:
                with replacing(path) as temporary:
                    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
                    with os.fdopen(descriptor, "wb") as file:
                        file.write(data)
                        file.flush()
                        os.fsync(file.fileno())
                flush(self.folder)
            except BaseException as error:
                self.failed += 1
                self.failing += 1
                self.reason = str(error)
                raise
            self.written += 1
            self.failing = 0

    def read(self, robot: str) -> Memory | None:
        """A robot's memory; None if there is none.

        Raises:
            CheckpointError: a file that is damaged, of another version, or another robot's.
        """
        path = self.path(robot)
        if not path.exists():
            return None
        try:
            with safe_open(path, framework="pt") as file:
                described = json.loads((file.metadata() or {})["wmrt"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}
            memory = _rebuild(described, tensors)
        except (OSError, ValueError, KeyError, TypeError, RecursionError, SafetensorError) as error:
            said = f"{type(error).__name__}: {error}"[:200]
            raise CheckpointError(f"{path}: no snapshot that can be read: {said}") from None
        if memory.robot != robot:
            raise CheckpointError(f"{path}: a snapshot of robot {memory.robot[:80]!r}")
        return memory

    def clean(self, robot: str) -> None:
        """Remove what a process that was killed while it wrote has left."""
        with self._lock:
            remove_leftovers(self.path(robot))


def _describe(memory: Memory) -> dict[str, Any]:
    origin = memory.snapshot.origin
    return {
        "version": VERSION,
        "robot": memory.robot,
        "session": session_text(memory.session),
        "epoch": memory.epoch,
        "sequence": memory.sequence,
        "steps": memory.steps,
        "last_action": list(memory.last_action),
        "previous_action": list(memory.snapshot.last_action),
        "breakers": memory.breakers,
        "engaged": memory.engaged,
        "origin": {
            "schema": origin.schema,
            "network": origin.network,
            "weights": origin.weights,
            "recipe": origin.recipe,
        },
    }


def _rebuild(described: Any, tensors: dict[str, torch.Tensor]) -> Memory:
    """The memory; ValueError, KeyError or TypeError for what is none."""
    if described["version"] != VERSION:
        raise ValueError(f"version {described['version']!r}, this wmrt reads {VERSION}")
    generator = tensors.pop(_GENERATOR)
    origin = Origin(**described["origin"])
    snapshot = Snapshot(origin, tensors, generator, _action(described["previous_action"]))
    if described["breakers"] not in _STATES or type(described["engaged"]) is not bool:
        raise ValueError(f"breakers {described['breakers']!r}, engaged {described['engaged']!r}")
    counts = [described[name] for name in ("epoch", "sequence", "steps")]
    least = (0, -1, 0)
    if not all(type(count) is int and count >= n for count, n in zip(counts, least, strict=True)):
        raise ValueError(f"epoch, sequence and steps {counts}")
    epoch, sequence, steps = counts
    return Memory(
        robot=str(described["robot"]),
        session=session_number(described["session"]),
        epoch=epoch,
        sequence=sequence,
        steps=steps,
        last_action=_action(described["last_action"]),
        breakers=described["breakers"],
        engaged=described["engaged"],
        snapshot=snapshot,
    )


def _action(values: Any) -> tuple[float, ...]:
    action = tuple(float(value) for value in values)
    if not all(math.isfinite(value) and -1.0 <= value <= 1.0 for value in action):
        raise ValueError(f"action {action}: not in [-1, 1]")
    return action
