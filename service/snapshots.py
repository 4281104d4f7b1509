"""Robots' memories on disk: a safetensors file each, whole or not at all, never pickle.

A folder may be shared by several services, of which one at a time serves a robot (`leases`): a
robot that comes back with its session goes on in any of them.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError

from wmrt.core.errors import CheckpointError
from wmrt.core.files import flush, read_json, remove_leftovers, replacing, require_writable
from wmrt.core.wire import WireError
from wmrt.safety import State
from wmrt.service.leases import Lease, Leases
from wmrt.service.memories import Found, Memory, Standing, merged
from wmrt.service.memory_files import (
    pack_memory,
    pack_standing,
    unpack_memory,
    unpack_standing,
)

#: Of a text that is JSON, and not what it should be.
_NONE = (ValueError, KeyError, TypeError, OverflowError, WireError)


class SnapshotStore:
    """Reads and writes memories in ``folder``, which is made if it is not there.

    Args:
        leases: where other processes use the folder too. reads: nothing is written or made.

    Attributes:
        written, failed: snapshots of this process. failing: those since the last one that was
            written. reason: why the last one failed.

    Raises:
        UsageError: a folder that cannot be written.
    """

    def __init__(self, folder: Path, leases: Leases | None = None, reads: bool = False) -> None:
        if not reads:
            require_writable(folder)
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder, self._leases = folder, leases
        self.written = self.failed = self.failing = 0
        self.reason = ""
        self._lock = threading.Lock()

    def path(self, robot: str) -> Path:
        """Where the memory of a robot lies whose name `check_name` has seen."""
        return self.folder / f"{robot}.safetensors"

    def standing_path(self, robot: str) -> Path:
        """The same for where its breakers stand."""
        return self.folder / f"{robot}.breakers.json"

    def write(self, memory: Memory, lease: Lease | None = None) -> None:
        """Write a memory in place of the robot's last one.

        Args:
            lease: under which the robot is this process's, if others use the folder.

        Raises:
            UsageError: the disk is full, or will not take it; the last one stays.
            Refusal: moved: the robot is another process's now, and its snapshot stays.
        """
        with self._fenced(lease):
            self._write(memory)

    def write_standing(self, standing: Standing, lease: Lease | None = None) -> None:
        """The same for where a robot's breakers stand; by one thread at a time."""
        with self._fenced(lease):
            self._replace(self.standing_path(standing.robot), pack_standing(standing))

    def knows(self, robot: str) -> bool:
        """Whether there is anything of a robot."""
        return self.path(robot).exists() or self.standing_path(robot).exists()

    def stopped(self, robot: str, latch: bool) -> Standing:
        """Where the breakers of a robot that no process serves stand once it is stopped: latched,
        or (not ``latch``) as they do, and disengaged."""
        found, standing = self.find(robot, lambda error: None), None
        with contextlib.suppress(CheckpointError):
            standing = self.read_standing(robot)
        state = State.CLOSED.value if found.trouble is None else found.trouble.breakers
        state, memory = State.LATCHED.value if latch else state, found.memory
        if standing is not None:
            return standing._replace(breakers=state, engaged=False)
        if memory is not None:
            own = (memory.session, memory.epoch, memory.sequence, memory.last_action)
            return Standing(robot, *own, state, False)
        return Standing(robot, 0, max(0, found.epoch), -1, (), state, False)

    def _fenced(self, lease: Lease | None) -> contextlib.AbstractContextManager[None]:
        if self._leases is None or lease is None:
            return contextlib.nullcontext()
        return self._leases.fenced(lease)

    def _write(self, memory: Memory) -> None:
        data = pack_memory(memory)
        with self._lock:
            try:
                self._replace(self.path(memory.robot), data)
            except BaseException as error:
                self.failed += 1
                self.failing += 1
                self.reason = str(error)
                raise
            self.written += 1
            self.failing = 0

    def _replace(self, path: Path, data: bytes) -> None:
        with replacing(path) as temporary:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        flush(self.folder)

    def read(self, robot: str) -> Memory | None:
        """A robot's memory; None if there is none.

        Raises:
            CheckpointError: a file that is damaged, of another version, or another robot's.
        """
        path = self.path(robot)
        if not path.exists():
            return None
        try:
            memory = unpack_memory(path)
        except (OSError, RecursionError, SafetensorError, *_NONE) as error:
            said = f"{type(error).__name__}: {error}"[:200]
            raise CheckpointError(f"{path}: no snapshot that can be read: {said}") from None
        if memory.robot != robot:
            raise CheckpointError(f"{path}: a snapshot of robot {memory.robot[:80]!r}")
        return memory

    def read_standing(self, robot: str) -> Standing | None:
        """Where a robot's breakers stood; None if nothing is known.

        Raises:
            CheckpointError: as of `read`.
        """
        path = self.standing_path(robot)
        if not path.exists():
            return None
        data = read_json(path)
        try:
            found = unpack_standing(data)
        except _NONE as error:
            said = f"{type(error).__name__}: {error}"[:200]
            raise CheckpointError(f"{path}: not where breakers stand: {said}") from None
        if found.robot != robot:
            raise CheckpointError(f"{path}: of robot {found.robot[:80]!r}")
        return found

    def find(self, robot: str, told: Callable[[CheckpointError], object]) -> Found:
        """What there is of a robot that no process serves.

        Args:
            told: is called with what cannot be read.
        """
        for path in (self.path(robot), self.standing_path(robot)):
            remove_leftovers(path)  # of a process that was killed while it wrote
        damaged = False
        memory = standing = None
        try:
            memory = self.read(robot)
        except CheckpointError as error:
            damaged = True
            told(error)
        try:
            standing = self.read_standing(robot)
        except CheckpointError as error:
            damaged = True
            told(error)
        return merged(memory, standing, damaged)
