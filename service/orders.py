"""What is done to the breakers of a robot that another process serves: that process does it.

An order is a file in the folder that the processes share, which is theirs alone: clients reach it
by way of a process that has looked at their rights. Its name begins with whom it is for, so that
whoever looks for claims sees it too. It is removed before it is obeyed: once, or not at all. The
answer is a file of the same kind for whoever asked.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from wmrt.core.errors import CheckpointError
from wmrt.core.files import read_json, replacing
from wmrt.service.leases import ADDRESSED, Leases, moved
from wmrt.service.logs import log
from wmrt.service.refusals import Refusal

#: Done by an owner also when it is late, and nobody waits for its answer any more.
STOPS = frozenset({"estop", "disengage"})
#: Seconds between two looks whether whom an order is for still has the robot.
LOOK = 0.1


class Order(NamedTuple):
    """One action.

    Attributes:
        by: the process that asks. action: of `operations.Action`, or ``look``.
        message: an `OperatorMessage`. client: who sent it. operator: with the operator's token.
    """

    by: str
    robot: str
    action: str
    message: dict[str, Any]
    client: str
    operator: bool = False


Obey = Callable[[Order], Awaitable[dict[str, Any]]]


class Orders:
    """Gives orders to the processes that share a folder, and obeys theirs. In the event loop.

    Args:
        leases: this process's.

    Attributes:
        obey: does what is ordered; `Refusal` moved if the robot is not here. None: not yet.
    """

    def __init__(self, leases: Leases) -> None:
        self._leases = leases
        self.obey: Obey | None = None
        self._asked: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._seen: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def owner(self, robot: str) -> str | None:
        """The living process that has a robot, this one included; None if none has."""
        return await asyncio.to_thread(self._owner, robot)

    def _owner(self, robot: str) -> str | None:
        found = self._leases.read(robot)
        if found is None or not found.held or not self._leases.is_alive(found.owner):
            return None
        return found.owner

    async def ask(self, owner: str, order: Order) -> dict[str, Any] | None:
        """Have a robot's owner do something, however long that takes; its result, None if it turns
        out that it has the robot no more.

        Raises:
            Refusal: by the owner. UsageError, CheckpointError, OSError: the folder.
        """
        number = secrets.token_hex(6)
        path = self._leases.words / f"{owner}.{number}.order"
        answer = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        writing = asyncio.create_task(asyncio.to_thread(_write, path, order._asdict()))
        try:
            await asyncio.shield(writing)
            while not (await asyncio.wait({answer}, timeout=LOOK))[0]:
                if await self.owner(order.robot) != owner:
                    return None
            return _result(answer.result())
        finally:
            del self._asked[number]
            if order.action not in STOPS:  # later it may be wrong; nobody waits for the disk
                self._keep(asyncio.create_task(_withdrawn(writing, path)))

    def heed(self, names: Iterable[str]) -> None:
        """Begin with what there is for this process among what was heard."""
        for name in names:
            ours = name.endswith(ADDRESSED) and name.startswith(f"{self._leases.owner}.")
            if ours and name not in self._seen:
                self._seen.add(name)
                self._keep(asyncio.create_task(self._take(name)))

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Nothing more is obeyed."""
        for task in self._tasks:
            task.cancel()

    async def _take(self, name: str) -> None:
        path = self._leases.words / name
        try:
            data = await asyncio.to_thread(_taken, path)
            number, kind = name.split(".")[1:]
            if data is not None and kind == "order":
                order = Order(**data)
                told = await self._obeyed(order)
                if told is not None:
                    back = self._leases.words / f"{order.by}.{number}.answer"
                    await asyncio.to_thread(_write, back, told)
            elif data is not None and (asked := self._asked.get(number)) is not None:
                asked.set_result(data)
            self._seen.discard(name)
        except Exception:  # it stays, and is not looked at again: whoever asked is told so
            log.exception("a word from another process could not be heeded", file=str(path))

    async def _obeyed(self, order: Order) -> dict[str, Any] | None:
        """What to answer; None for an order of before: of a process that is dead."""
        if order.action not in STOPS and not await asyncio.to_thread(
            self._leases.is_alive, order.by
        ):
            return None
        try:
            if self.obey is None:
                raise moved(order.robot)
            return {"result": await self.obey(order)}
        except Refusal as refusal:
            return {"refused": refusal.name, "message": str(refusal)}
        except Exception:
            log.exception("an order failed", robot=order.robot, action=order.action)
            said = "a fault of the process that serves the robot; its log says more"
            return {"refused": "internal", "message": said}


def _result(told: dict[str, Any]) -> dict[str, Any] | None:
    if "refused" not in told:
        return dict(told["result"])
    if told["refused"] == "moved":
        return None
    raise Refusal(told["refused"], told["message"])


def _write(path: Path, data: dict[str, Any]) -> None:
    with replacing(path) as temporary:
        temporary.touch(0o600)
        temporary.write_text(json.dumps(data), "utf-8")


async def _withdrawn(writing: asyncio.Task[None], path: Path) -> None:
    """Remove an order that nobody waits for any more; not before it lies there."""
    await asyncio.wait({writing})
    await asyncio.to_thread(_remove, path)


def _taken(path: Path) -> dict[str, Any] | None:
    """What a file holds, which is removed; None for one that was withdrawn."""
    try:
        data = read_json(path)
        path.unlink()
    except FileNotFoundError:
        return None
    except CheckpointError:
        if path.exists():
            raise
        return None
    return data


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("an order could not be withdrawn", file=str(path), reason=str(error))
