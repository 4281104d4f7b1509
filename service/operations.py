"""What people ask of a service: how it is, and its breakers."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal, cast

from wmrt import __version__
from wmrt.core.errors import SafetyError, WmrtError
from wmrt.core.wire import VERSION
from wmrt.safety import Event
from wmrt.service.desk import Desk
from wmrt.service.elsewhere import kept, ordered
from wmrt.service.host import Host
from wmrt.service.leases import moved
from wmrt.service.messages import OperatorMessage, dumps
from wmrt.service.meter import LEVELS, Stall
from wmrt.service.orders import STOPS, Order
from wmrt.service.places import Place, finished
from wmrt.service.plain import plain
from wmrt.service.refusals import Refusal

#: Events of a robot's breakers that are shown.
EVENTS = 50
#: Seconds to wait for a step that runs before its robot's counters are called busy.
PATIENCE = 1.0
#: Whoever may send an observation may also do these; the others take the operator's token.
FREE = frozenset({"estop", "disengage"})
Action = Literal["reset", "engage", "disengage", "estop", "release"]


def info(host: Host) -> dict[str, Any]:
    """What runs, and how its robots are. Nothing of it waits for a step."""
    settings = host.settings
    return {
        "wmrt": __version__,
        "version": VERSION,
        "ready": not host.reasons(),
        "reasons": host.reasons(),
        "alive": not host.dying(),
        "warnings": host.warnings(),
        "period": host.crew.period,
        "deadline": host.deadline,
        "resample": settings.resample,
        "clock": settings.clock,
        "on_second_client": settings.on_second_client,
        "limits": {
            "robots": settings.robots,
            "body_bytes": settings.max_body,
            "messages_per_s": settings.rate,
            "connections": settings.connections,
        },
        "crew": host.crew.described,
        "schema_hash": host.schema.hash,
        "answers": dict(host.outbox.sent),
        "refusals": nonzero(host.counts),
        "sessions_opened": nonzero(host.meter.opened),
        "event_loop_lag_s": host.pulse.worst,
        "snapshots": None
        if host.registry.store is None
        else {"written": host.registry.store.written, "failed": host.registry.store.failed},
        "certificate": None if host.certificate is None else host.certificate.described(),
        "audit_lost": host.audit.lost,
        "robots": {name: robot(place) for name, place in host.registry.places.items()},
    }


def robot(place: Place) -> dict[str, Any]:
    session, desk = place.session, place.desk
    return {
        "epoch": session.epoch,
        "sequence": session.sequence,
        "connected": session.holder is not None,
        "observations": dict(session.counts),
        "step": desk.breakers.step,
        "breakers": desk.state.value,
        "engaged": place.engaged,
        "stop_pressed": place.stop_pressed,
        "sources": nonzero(place.meter.sources),
        "deadline_misses": place.meter.late,
        "stalls": [_stall(one) for one in place.meter.stalls],
        "trips": {LEVELS[level]: n for level, n in place.meter.trips.items() if n},
    }


def _stall(stall: Stall) -> dict[str, Any]:
    told = stall._asdict()
    return {"seconds_ago": time.monotonic() - told.pop("at"), **told}


def nonzero(counts: Mapping[str, int]) -> dict[str, int]:
    """Those that have happened."""
    return {name: count for name, count in counts.items() if count}


async def breakers(host: Host, robot: str | None) -> str:
    """State, counters and last events of a robot's breakers, or of all robots', as JSON.

    Text, one robot after the other: the events of four are 4 000 objects, and copied once more by
    FastAPI, which looks for what JSON has not. Memory that they take at once stays taken.
    """
    places = dict(host.registry.places)
    if robot is not None and ((place := places.get(robot)) is None or place.leaving):
        told = await ordered(host, _order(host, "look", robot), _look)
        return f'{{"robots":{{{json.dumps(robot)}:{told["text"]}}}}}'
    names = list(places) if robot is None else [robot]
    texts = await asyncio.gather(*(_breakers(places[name]) for name in names))
    each = (f"{json.dumps(name)}:{text}" for name, text in zip(names, texts, strict=True))
    return f'{{"robots":{{{",".join(each)}}}}}'


async def _look(place: Place) -> dict[str, Any]:
    return {"text": await _breakers(place)}


async def _breakers(place: Place) -> str:
    desk = place.desk

    def read() -> tuple[dict[str, Any], tuple[Event, ...]]:
        return desk.controller.stats(), desk.breakers.events.latest(EVENTS)

    told: dict[str, Any] = {**robot(place), "busy": False, "stats": None, "events": None}
    try:
        future = asyncio.wrap_future(desk.call(read))
        told["stats"], events = await asyncio.wait_for(future, PATIENCE)
        told["events"] = [event.to_json() for event in events]
    except asyncio.TimeoutError:  # a step runs for longer than that
        told["busy"] = True
    return dumps(plain(told))


async def operate(
    host: Host, action: Action, message: OperatorMessage, operator: bool, client: str
) -> dict[str, Any]:
    """Do something to a robot's breakers, wherever it is served, and say what they are then.

    Raises:
        Refusal: it takes the operator's token; the robot is not known; the breakers refuse it;
            unconfirmed: another process serves the robot and has not said that it is done.
    """
    if action not in FREE and not operator:
        how = "send it as the bearer token"
        if host.settings.operator_token is None:
            how = "this service has none; set WMRT_SERVE_OPERATOR_TOKEN where it runs"
        host.audit.note("forbidden", action=action, robot=message.robot[:80], client=client)
        raise Refusal("forbidden", f"{action} takes the operator's token: {how}")
    place = host.registry.places.get(message.robot)
    if place is not None and not place.leaving:
        try:
            return await _here(host, action, message, operator, client, place)
        except Refusal as refusal:
            if refusal.name != "moved":  # else whoever has it now does it
                raise
    told: dict[str, Any] = {}
    try:
        with host.telemetry.span("operate", action=action, robot=message.robot[:80]):
            order = _order(host, action, message.robot, message.model_dump(), client, operator)
            here = partial(_here, host, action, message, operator, client)
            told = await ordered(host, order, here)
        return told
    except Exception as error:
        told = {"refused": str(error)[:300]}
        raise
    finally:
        host.audit.note(
            f"breakers_{action}_elsewhere", robot=message.robot[:80], operator=message.operator,
            client=client, owner=told.get("owner"), state=told.get("breakers"), entitled=operator,
            **{name: why for name, why in told.items() if name == "refused"},
        )  # fmt: skip


def _order(
    host: Host,
    action: str,
    robot: str,
    message: dict[str, Any] | None = None,
    client: str = "",
    operator: bool = False,
) -> Order:
    handover = host.registry.handover
    by = "" if handover is None else handover.leases.owner
    return Order(by, robot, action, message or {}, client, operator)


async def obey(host: Host, order: Order) -> dict[str, Any]:
    """What another process, which has looked at its client's rights, wants of a robot here.

    Raises:
        Refusal: moved: the robot is not here any more; or as of `operate`.
    """
    place = host.registry.places.get(order.robot)
    if place is None and order.action in STOPS:  # taken, and then not served, nor let go
        told = await kept(host.registry, order)
        if told is not None:
            return told
    if place is None or place.leaving:
        raise moved(order.robot)
    if order.action == "look":
        return await _look(place)
    message, client = OperatorMessage(**order.message), f"{order.client} by way of {order.by}"
    action = cast(Action, order.action)
    return await _here(host, action, message, order.operator, client, place)


async def _here(
    host: Host, action: Action, message: OperatorMessage, operator: bool, client: str, place: Place
) -> dict[str, Any]:
    refused: dict[str, str] = {}
    try:
        with host.telemetry.span("operate", action=action, robot=message.robot):
            await _operate(host, action, message, place)
        if action in STOPS:
            await _outlives(host, action, place)
        # A process that is killed must not undo it.
        if action in ("estop", "release"):
            host.registry.keeper.soon(place)
        else:
            await host.registry.keep(place)
    except Exception as error:  # no line may say that something was done which was not
        refused["refused"] = str(error)[:300]
        raise
    finally:
        host.audit.note(
            f"breakers_{action}", robot=message.robot, operator=message.operator, client=client,
            state=place.desk.state.value, entitled=operator, **refused,
        )  # fmt: skip
    return robot(place)


async def _outlives(host: Host, action: Action, place: Place) -> None:
    """Wait until a stop holds whatever becomes of this process: nobody is told before that it was
    done. Also where another process has the robot, which this one has not noticed."""
    try:
        await host.registry.keeper.keep_standing(place)
    except Refusal:
        raise
    except asyncio.TimeoutError:
        why = "the folder of snapshots has not answered"
    except WmrtError:  # the audit log tells it
        why = "the folder of snapshots cannot be used now"
    else:
        return
    raise Refusal(
        "unconfirmed",
        f"{action} of robot {place.session.robot} holds while this process runs, and is NOT known "
        f"to outlive it: {why}: use the robot's own stop, too",
    )


async def _operate(host: Host, action: Action, message: OperatorMessage, place: Place) -> None:
    desk, name = place.desk, message.operator
    controller = desk.controller
    if action in ("estop", "release"):  # never behind a step that runs
        desk.estop(action == "estop")
        place.stop_pressed = action == "estop"
    elif action == "disengage":
        await finished(desk.call(controller.disengage))
    elif action == "engage":

        def engage() -> None:
            _require_no_stop(desk, "engage")
            controller.engage(name, message.measured)

        await finished(desk.call(engage))
    else:

        def reset() -> None:
            _require_no_stop(desk, "reset")
            controller.reset_latch(name)

        await finished(desk.call(reset))


def _require_no_stop(desk: Desk, action: str) -> None:
    """Raise `SafetyError` while a stop waits for the action that it latches with: what is done now
    would be undone by that. Between two steps."""
    if desk.pressed:
        raise SafetyError(
            f"{action}: the emergency stop was pressed and latches with the robot's next action; "
            "release it, and reset after that action"
        )
