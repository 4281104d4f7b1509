"""What a recording says of the controller it is of: all that a replay needs to build it again."""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from wmrt import __version__
from wmrt.control.planning import Planner
from wmrt.control.recording.topics import FORMAT
from wmrt.control.recording.values import encode
from wmrt.core import machine
from wmrt.core.errors import UsageError

if TYPE_CHECKING:
    from wmrt.control.controller import Controller


def head_of(controller: Controller, facts: Mapping[str, str]) -> dict[str, str]:
    """Text by name, JSON where it is more than a word; ``facts`` of the user's own come last.

    Raises:
        UsageError: the controller, or its model, has a past that the recording would not hold; or
            a fact that is no text, or has the name of one of these.
    """
    model, breakers = controller.model, controller.breakers
    _require_fresh(controller)
    head = {
        "format": FORMAT,
        "recording": secrets.token_hex(8),
        "policy": type(model).__name__,
        "schema": _text(model.schema.to_json() if hasattr(model.schema, "to_json") else None),
        "schema_hash": str(getattr(model.schema, "hash", "")),
        "actions": _text(model.actions.to_json()),
        "limits": _text(breakers.limits.to_json()),
        "limits_hash": breakers.limits.hash,
        "controller": _text(encode(_settings(controller))),
        "monitor": _text(_monitor(controller)),
        "planner": _text(model.settings.to_json() if isinstance(model, Planner) else None),
        **_of_model(model),
        "versions": _text(_versions()),
        "machine": machine.cpu_name(),
    }
    wrong = sorted(key for key, fact in facts.items() if key in head or not isinstance(fact, str))
    if wrong:
        raise UsageError(f"facts: {wrong[0]!r} must be text and none of {', '.join(head)}")
    return {**head, **facts}


def _settings(controller: Controller) -> dict[str, Any]:
    """What the controller was built with, besides objects, whose names stand for them. Reads its
    private parts: nobody else needs these."""
    channels = [
        {"name": c.name, "every": c.every, "model": identity(getattr(c, "policy", None))}
        for c in controller._channels._channels
    ]
    return {
        "robot": controller.breakers._machine._robot,
        "max_age_ns": controller._intake._ages._max_age_ns,
        "max_chunk_age": controller._plan.rows - 1,
        "steps_per_question": controller._plan.every,
        "deadline_ns": controller._consultant._deadline_ns,
        "clock": type(controller.clock).__name__,
        "fallback": controller._fallback.fallback is not None,
        "channels": channels,
    }


def _monitor(controller: Controller) -> dict[str, Any] | None:
    """The calibration of its monitor, None without one."""
    calibration = controller._monitor.calibration
    return None if calibration is None else calibration.to_json()


def identity(model: Any) -> dict[str, Any] | None:
    """Whose decisions they are: a `WorldModel`'s weights, recipe and how its session picks, and how
    a planner around it plans; None for any other policy, which a recording cannot name."""
    if isinstance(model, Planner):
        inside = identity(model.model)
        return None if inside is None else {**inside, "planner": model.settings.to_json()}
    origin = getattr(model, "origin", None)
    if origin is None:
        return None
    own = origin()
    return {
        "weights_sha256": own.weights,
        "recipe": own.recipe,
        "network": own.network,
        "schema_hash": own.schema,
        "session": dict(model.session.options),
        "planner": None,
    }


def _inner(model: Any) -> Any:
    """The policy itself, without a planner around it."""
    return model.model if isinstance(model, Planner) else model


def _of_model(model: Any) -> dict[str, str]:
    known = identity(model)
    if known is None:
        return {"model": _text(None)}
    report = _inner(model).report()
    resolved = {key: report.resolved.get(key) for key in ("executor", "threads", "isa", "device")}
    return {"model": _text(known), "ran": _text(resolved)}


def _require_fresh(controller: Controller) -> None:
    if controller.breakers.step:
        raise UsageError(
            f"recording: these breakers have made {controller.breakers.step} steps already, which "
            "the recording would not hold; give new ones"
        )
    model: Any = controller.model
    session = getattr(model.model if isinstance(model, Planner) else model, "session", None)
    session = getattr(_inner(controller.model), "session", None)
    taken = 0 if session is None else int(session.ring.step[0])
    if taken:
        raise UsageError(
            f"recording: the model remembers {taken} steps, which the recording would not hold; "
            "call its reset() first"
        )


def _versions() -> dict[str, str | None]:
    return {
        "wmrt": __version__,
        "python": ".".join(map(str, sys.version_info[:3])),
        "torch": machine.installed_version("torch"),
        "numpy": machine.installed_version("numpy"),
        "commit": machine.source_commit(),
    }


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
