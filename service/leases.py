"""Which process serves a robot, among several that share a folder of snapshots.

A robot's record holds its owner and a token that grows by one whenever the robot changes hands.
It is compared and replaced under a lock, so one of two takers gets the robot; whoever held it
before finds another token there, and may neither write a snapshot nor send an answer any more; the
latter as soon as what it has read last has run out (`holding`), which takers by force wait for.
Nothing else looks at a clock: a process lives for as long as it holds the lock of its own file,
which the system ends with the process, however it ends.

The folder has to be one where flock and rename do what POSIX says, for every process that uses it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from wmrt.core.errors import CheckpointError, UsageError
from wmrt.core.files import flush, read_json, replacing, require_writable
from wmrt.service.refusals import Refusal

#: Seconds that a robot's lock is waited for. It is held for the length of one snapshot.
LOCK_SECONDS = 2.0
#: Words for one process: their names begin with its own, and a dot. Claims, for whoever has the
#: robot, end otherwise.
ADDRESSED = (".order", ".answer")


class Owned(NamedTuple):
    """A robot's record. ``held``: its owner has not let it go."""

    token: int
    owner: str
    held: bool


class Lease(NamedTuple):
    """A robot, and the token under which it was taken."""

    robot: str
    token: int


class Claim(NamedTuple):
    """A process asks the owner for a robot.

    Attributes:
        by: who asks. session: the one its client goes on with, None for a new one.
        denied: a refusal's name, once the owner has said no.
    """

    by: str
    session: int | None
    denied: str | None = None


def moved(robot: str) -> Refusal:
    """421: another process serves the robot now."""
    return Refusal(
        "moved", f"another process serves robot {robot} now; connect again, the session goes on"
    )


class Leases:
    """The robots' records in ``folder``, on behalf of one process. Any thread.

    Args:
        folder: of the snapshots; the records lie in one of their own in it.
        label: how people know this process; letters, digits, hyphens.
        reads: nothing is written, and no robot can be taken.

    Attributes:
        owner: this process's name, which no other has ever had; letters, digits, hyphens.
        words: folder of what processes say to each other.

    Raises:
        UsageError: a folder that cannot be written.
    """

    def __init__(self, folder: Path, label: str = "wmrt", reads: bool = False) -> None:
        self.folder = folder / ".owners"
        self.words, self._own_folder = self.folder / "claims", str(self.folder)
        self._living: int | None = None
        if reads:
            return
        require_writable(folder)
        self.words.mkdir(mode=0o700, parents=True, exist_ok=True)
        plain = re.sub(r"[^A-Za-z0-9-]+", "-", label)[:40]
        self.owner = f"{plain}-{os.getpid()}-{secrets.token_hex(6)}"
        self._living = _lock_new(self._alive(self.owner))
        for path in self.folder.glob("*.alive"):
            if not self.is_alive(path.stem):  # of a process that was killed
                path.unlink(missing_ok=True)
        for path in [path for kind in ADDRESSED for path in self.words.glob(f"*{kind}")]:
            if not self.is_alive(path.name.partition(".")[0]):
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """This process serves no robot any more."""
        if self._living is not None:
            self._alive(self.owner).unlink(missing_ok=True)
            os.close(self._living)
            self._living = None

    def _alive(self, owner: str) -> Path:
        return self.folder / f"{owner}.alive"

    def _record(self, robot: str) -> str:
        return f"{self._own_folder}/{robot}.json"

    # Records

    def read(self, robot: str) -> Owned | None:
        """A robot's record; None if there is none.

        Raises:
            CheckpointError: one that is damaged. UsageError: one that cannot be read now.
        """
        path = self._record(robot)
        try:
            with open(path, "rb") as file:
                text = file.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror}") from None
        try:
            token, owner, held = (json.loads(text)[name] for name in Owned._fields)
        except (ValueError, KeyError, TypeError, RecursionError):
            token = None
        if type(token) is not int or not isinstance(owner, str) or type(held) is not bool:
            raise CheckpointError(
                f"{path}: no record of a robot's owner, which it should be; remove this file once "
                f"no process serves robot {robot}: nothing else of the robot is in it"
            )
        return Owned(token, owner, held)

    def robots(self) -> list[str]:
        """Every robot that has a record."""
        return sorted(path.stem for path in self.folder.glob("*.json"))

    def is_alive(self, owner: str) -> bool:
        """Whether the process of that name runs."""
        try:
            descriptor = os.open(self._alive(owner), os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def take(self, robot: str, found: Owned | None) -> Lease | None:
        """Become a robot's owner if its record is still ``found``; None if it is not.

        Raises:
            UsageError: the record cannot be written.
        """
        with self._locked(robot):
            if self.read(robot) != found:
                return None
            lease = Lease(robot, 1 if found is None else found.token + 1)
            self._write(robot, Owned(lease.token, self.owner, True))
        return lease

    def holds(self, lease: Lease) -> bool:
        """Whether the robot is still this process's: one small read of 5 us, its bytes compared; to
        read the JSON takes many times that. OSError: nobody can tell now."""
        try:
            descriptor = os.open(self._record(lease.robot), os.O_RDONLY)
        except FileNotFoundError:  # somebody has removed it
            return False
        try:
            return os.read(descriptor, 4096) == _bytes(Owned(lease.token, self.owner, True))
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def fenced(self, lease: Lease) -> Iterator[None]:
        """A block in which the robot cannot change hands. `Refusal` moved if it has already;
        `UsageError` if nobody can tell."""
        with self._locked(lease.robot):
            try:
                ours = self.holds(lease)
            except OSError as error:
                path = self._record(lease.robot)
                raise UsageError(f"{path} cannot be read: {error.strerror}") from None
            if not ours:
                raise moved(lease.robot)
            yield

    def release(self, lease: Lease) -> None:
        """Let a robot go. Nothing happens if somebody else has it."""
        with self._locked(lease.robot):
            if self.holds(lease):
                self._write(lease.robot, Owned(lease.token, self.owner, False))

    def _write(self, robot: str, owned: Owned) -> None:
        with replacing(Path(self._record(robot))) as temporary:
            temporary.write_bytes(_bytes(owned))
            flush(temporary)  # an empty one, after a power cut, would be nobody's for good

    @contextlib.contextmanager
    def _locked(self, robot: str) -> Iterator[None]:
        """The robot's lock, which the system frees should this process end.

        Raises:
            UsageError: somebody holds it for longer than `LOCK_SECONDS`, or it cannot be had.
        """
        path = self.folder / f"{robot}.lock"
        end = time.monotonic() + LOCK_SECONDS
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise UsageError(f"{path} cannot be opened: {error.strerror}") from None
        try:
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > end:
                        said = f"{path} has been locked for {LOCK_SECONDS:g} s"
                        raise UsageError(f"{said}; does its process hang?") from None
                    time.sleep(0.002)
            yield
        finally:
            os.close(descriptor)

    # Claims: a word from one process to another, about one robot

    def claim(self, robot: str, session: int | None) -> None:
        """Ask the robot's owner for it."""
        self._say(robot, Claim(self.owner, session))

    def heard(self) -> list[str]:
        """Names of the words that lie there."""
        return [one.name for one in os.scandir(self.words) if not one.name.startswith(".")]

    def claims(self, heard: Iterable[str] | None = None) -> list[str]:
        """Robots that somebody asks for, by what was ``heard``, or is now."""
        names = self.heard() if heard is None else heard
        return [name.removesuffix(".json") for name in names if name.endswith(".json")]

    def claimed(self, robot: str) -> Claim | None:
        """What is asked; None for nothing."""
        try:
            data: dict[str, Any] = read_json(self.words / f"{robot}.json")
            return Claim(str(data["by"]), data["session"], data["denied"])
        except (CheckpointError, KeyError):  # withdrawn meanwhile, or none
            return None

    def deny(self, robot: str, claim: Claim, name: str) -> None:
        """Say no, with a refusal's name."""
        self._say(robot, claim._replace(denied=name))

    def withdraw(self, robot: str, by: str | None = None) -> None:
        """Ask no more; with ``by``, on behalf of a process that is dead."""
        claim = self.claimed(robot)
        if claim is not None and claim.by == (by or self.owner):
            (self.words / f"{robot}.json").unlink(missing_ok=True)

    def _say(self, robot: str, claim: Claim) -> None:
        path = self.words / f"{robot}.json"
        with replacing(path) as temporary:
            temporary.touch(0o600)
            temporary.write_text(json.dumps(claim._asdict()), "utf-8")


def _bytes(owned: Owned) -> bytes:
    """A record as it lies on disk."""
    held = "true" if owned.held else "false"
    return f'{{"token": {owned.token}, "owner": "{owned.owner}", "held": {held}}}'.encode()


def _lock_new(path: Path) -> int:
    """A new file, locked until this process ends; it has its name only once it is locked."""
    made = path.with_name(f"{path.name}.new")  # which nobody who looks for *.alive takes for dead
    try:
        descriptor = os.open(made, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        made.rename(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be made and locked: {error.strerror}") from None
    return descriptor
