"""What people do to a robot that has no place in this process: its owner does it, or the disk keeps
it until the robot comes back. Or it is told loudly that it was not done."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from wmrt.core.errors import WmrtError
from wmrt.service.host import Host
from wmrt.service.memories import Standing, Trouble
from wmrt.service.orders import STOPS, Order
from wmrt.service.places import Place
from wmrt.service.refusals import Refusal
from wmrt.service.registry import Registry
from wmrt.service.sessions import check_name

#: Seconds for all of it.
PATIENCE = 2.0
#: Seconds until the next look at a robot that is on its way.
POLL = 0.02
Here = Callable[[Place], Awaitable[dict[str, Any]]]


async def ordered(host: Host, order: Order, here: Here) -> dict[str, Any]:
    """Do it where the robot is, and return what that says, with ``owner`` where that is another
    process.

    Args:
        here: does it to a robot that has come to this process meanwhile.

    Raises:
        Refusal: of whoever has the robot; unknown_session: nobody knows it; refused: it takes a
            robot that is connected; unconfirmed: its owner has not answered, or the folder.
    """
    check_name(order.robot)  # it becomes a file's
    asked: list[str] = []
    try:
        return await asyncio.wait_for(_ordered(host, order, here, asked), PATIENCE)
    except asyncio.TimeoutError:
        place = host.registry.places.get(order.robot)
        why = "the folder of snapshots has not answered"
        if asked:
            why = f"process {asked[-1]}, which serves it, has not answered"
        elif place is not None and place.leaving:
            why = "it is leaving this process, and has not come to another one"
        raise _unconfirmed(order, f"{why} within {PATIENCE:g} s") from None
    except (WmrtError, OSError) as error:
        if isinstance(error, Refusal):
            raise
        host.audit.note("lease_failed", robot=order.robot, reason=str(error)[:300])
        raise _unconfirmed(order, "the folder of snapshots cannot be used now") from None


async def _ordered(host: Host, order: Order, here: Here, asked: list[str]) -> dict[str, Any]:
    registry, robot = host.registry, order.robot
    while True:
        place = registry.places.get(robot)
        if place is not None and not place.leaving:
            try:
                return await here(place)
            except Refusal as refusal:
                if refusal.name != "moved":
                    raise
            await asyncio.sleep(POLL)
            continue
        owner = None
        if registry.handover is not None:
            owner = await registry.handover.orders.owner(robot)
            if owner is not None and owner != registry.handover.leases.owner:
                asked.append(owner)
                told = await registry.handover.orders.ask(owner, order)
                if told is not None:
                    return {**told, "owner": owner}
                continue
        if place is None:
            # It goes on if nobody waits any more: a lease that was taken for it is given back.
            keeping = asyncio.create_task(kept(registry, order))
            keeping.add_done_callback(lambda done: done.cancelled() or done.exception())
            told = await asyncio.shield(keeping)
            if told is not None:
                return told
        await asyncio.sleep(POLL)


async def kept(registry: Registry, order: Order) -> dict[str, Any] | None:
    """Have a robot that no process serves come back stopped; None if one serves it."""
    robot, handover, keeper = order.robot, registry.handover, registry.keeper
    async with registry.lock(robot):
        if robot in registry.places:
            return None
        record = None if handover is None else await asyncio.to_thread(handover.leases.read, robot)
        known = record is not None or robot in registry.parted or await keeper.knows(robot)
        if not known or order.action == "look":
            where = "is served nowhere now" if known else "is not known here, nor on disk"
            what = "" if order.action == "look" else f"; {order.action} was NOT done"
            raise Refusal("unknown_session", f"robot {robot} {where}{what}")
        if order.action not in STOPS:
            why = f"robot {robot} is served nowhere now; {order.action} takes one that is connected"
            raise Refusal("refused", why)
        latch = order.action == "estop"
        if handover is None:
            return _told(await _caution(registry, robot, latch))
        lease = await handover.take_free(robot)
        if lease is None:
            return None
        try:
            return _told(await keeper.stop(robot, latch, lease))
        finally:
            await handover.release(lease)


async def _caution(registry: Registry, robot: str, latch: bool) -> Standing:
    """The same where no other process may have it: what the disk does not take, this one knows."""
    parted = registry.parted.get(robot)
    state = "latched" if latch else "closed" if parted is None else parted.breakers
    standing = Standing(robot, 0, 0, -1, (), state, False)
    try:
        if registry.store is not None:
            standing = await registry.keeper.stop(robot, latch, None)
    except WmrtError:
        registry.parted[robot] = Trouble(state, False)
        raise
    if parted is not None:
        registry.parted[robot] = Trouble(state, False)
    return standing


def _told(standing: Standing) -> dict[str, Any]:
    """As of a robot that has a place."""
    return {
        **{"epoch": standing.epoch, "sequence": standing.sequence, "connected": False},
        **{"observations": {}, "step": 0, "breakers": standing.breakers, "engaged": False},
        **{"stop_pressed": False, "sources": {}, "deadline_misses": 0, "trips": {}, "stalls": []},
    }


def _unconfirmed(order: Order, why: str) -> Refusal:
    what = f"{order.action} of robot {order.robot}"
    todo = ""
    if order.action in STOPS:
        todo = ": use the robot's own stop, then send this again"
    return Refusal("unconfirmed", f"{what} is NOT known to be done: {why}{todo}")
