"""What the routes answer, for OpenAPI."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from wmrt.core.wire import REFUSALS


def _example(**values: Any) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": [values]})


class Health(BaseModel):
    """Alive or not, and to whoever sends the token why not."""

    model_config = _example(ok=True)
    ok: bool
    reasons: list[str] = []


class Ready(BaseModel):
    """Ready or not; to whoever sends the token why not, and what else is wrong."""

    model_config = _example(ready=False, reasons=["the model is warming up"])
    ready: bool
    reasons: list[str] = []
    warnings: list[str] = []


class Fault(BaseModel):
    """A name that programs know, and words."""

    name: str
    message: str


class Refused(BaseModel):
    """Why there is no answer."""

    model_config = _example(
        kind="refused",
        version=1,
        error={"name": "stale", "message": "sequence 4: the last one taken in was 9"},
        sequence=4,
    )
    kind: str
    version: int
    error: Fault
    sequence: int | None


class Action(BaseModel):
    """The answer to an observation; see `wmrt.core.wire.Acted`."""

    model_config = _example(
        kind="action", version=1, robot="r2", session="0123456789abcdef", epoch=0, sequence=1,
        step=1, action=[0.02, -0.4], source="policy", breakers="closed", tripped=[], late=False,
        skipped=0, captured_ns=81234567890, queue_ns=41000, policy_ns=612000, act_ns=655000,
    )  # fmt: skip
    kind: str
    version: int
    robot: str
    session: str
    epoch: int
    sequence: int
    step: int
    action: list[float]
    source: str
    breakers: str
    tripped: list[int]
    late: bool
    skipped: int
    captured_ns: int | None
    queue_ns: int
    policy_ns: int | None
    act_ns: int


class Opened(BaseModel):
    """A session. ``memory``: ``kept``, ``restored`` from a snapshot, or ``fresh``. ``steps_lost``:
    sequence numbers up to ``answered`` that a restored memory knows nothing of."""

    model_config = _example(
        kind="opened", version=1, robot="r2", session="0123456789abcdef", epoch=0, sequence=-1,
        memory="fresh", resumed=False, steps_lost=0, schema_hash="9c1f", period=0.1, clock="system",
    )  # fmt: skip
    kind: str
    version: int
    robot: str
    session: str
    epoch: int
    sequence: int
    memory: str
    resumed: bool
    steps_lost: int
    schema_hash: str
    period: float
    clock: str


class Schema(BaseModel):
    """States and actions."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "schema": {"version": 1, "name": "", "neutral": [0.0], "fields": []},
                    "schema_hash": "9c1f",
                    "actions": [{"name": "torque", "unit": "N m", "low": -2.0, "high": 2.0}],
                    "period": 0.1,
                }
            ]
        },
    )
    state_schema: dict[str, Any] = Field(alias="schema")
    schema_hash: str
    actions: list[dict[str, Any]]
    period: float


class Robot(BaseModel):
    """A robot's session and breakers. ``owner``: the process that serves it, where that is another
    one than was asked."""

    model_config = _example(
        epoch=0, sequence=9, connected=True, observations={"taken": 10, "answered": 10},
        step=10, breakers="latched", engaged=False, stop_pressed=True,
        sources={"policy": 9, "fallback": 1}, deadline_misses=0, trips={"validity": 1}, stalls=[],
    )  # fmt: skip
    epoch: int
    sequence: int
    connected: bool = Field(description="Over a WebSocket; never so over HTTP.")
    observations: dict[str, int]
    step: int
    breakers: str
    engaged: bool
    stop_pressed: bool
    sources: dict[str, int]
    deadline_misses: int
    trips: dict[str, int]
    stalls: list[dict[str, float | str | None]]
    owner: str | None = None


_ROBOT: dict[str, Any] = {
    "epoch": 0, "sequence": 9, "connected": True, "observations": {"taken": 10, "answered": 10},
    "step": 10, "breakers": "closed", "engaged": True,
}  # fmt: skip
#: Examples of answers whose form depends on what runs.
INFO: dict[str, Any] = {
    "ready": True, "reasons": [], "period": 0.1, "deadline": 0.1, "clock": "system",
    "on_second_client": "refuse", "refusals": {"held": 1},
    "limits": {"robots": 1, "body_bytes": 131072, "messages_per_s": 2000.0, "connections": 256},
    "robots": {"r2": _ROBOT},
}  # fmt: skip
BREAKERS: dict[str, Any] = {
    "robots": {"r2": {**_ROBOT, "busy": False, "stats": {"steps": 10}, "events": []}}
}
METRICS = "# TYPE wmrt_ready gauge\nwmrt_ready 1\n"


def shown(example: Any, kind: str = "application/json") -> dict[int | str, dict[str, Any]]:
    """An entry of a route's ``responses``: what its answer looks like."""
    return {200: {"content": {kind: {"example": example}}}}


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Entries of a route's ``responses``, with the names of refusals that have the status; 401 and
    403 may come from any of them."""
    return {
        status: {
            "model": Refused,
            "description": ", ".join(name for name, s in REFUSALS.items() if s == status),
        }
        for status in sorted({*statuses, 401, 403})
    }
