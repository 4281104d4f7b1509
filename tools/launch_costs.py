"""What borders between kernels cost beside reading a step's bytes, per device; all estimated.

The arithmetic of `tools/launches.py`; costs are in kernels/tuned/launch_costs.json.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
COSTS = ROOT / "kernels" / "tuned" / "launch_costs.json"
LIMITS = ROOT / "kernels" / "tuned" / "aot_limits.json"
#: Targets in milliseconds, or as a multiple of the floor; of the RTX 4090 also for what has none.
TARGETS: Mapping[str, tuple[str, float]] = {"H200": ("ms", 0.40), "RTX 4090": ("floor", 1.25)}


@dataclass(frozen=True)
class Variant:
    """A way to queue a step.

    * ``launches``: nodes of the graph; ``barriers``: over the whole grid, inside kernels
    * ``fills``: borders at which the memory bus runs dry until the next weights arrive
    * ``dependents``: launches, of those above, that begin before the one before has ended
    * ``alone``: kernels or phases that read no weights; ``tails``: those that do
    * ``ahead``: borders that weights are read over, and of them those that are ``past_alone``, over
      a kernel without weights and its own border as well
    * ``queued``: from Python, one by one, without a graph
    """

    name: str
    launches: int
    barriers: int = 0
    fills: int = 0
    dependents: int = 0
    alone: int = 0
    tails: int = 0
    ahead: int = 0
    past_alone: int = 0
    queued: bool = False


@dataclass(frozen=True)
class Cost:
    """Microseconds: of a launch, of a barrier, until weights arrive; of a launch that depends on
    the one before (None: there are none), of a kernel without weights, of what follows the last
    weights, of queueing a launch from Python. `lost` is a share: of what weights asked ahead could
    save, and do not."""

    launch: float
    barrier: float
    fill: float
    dependent: float | None = None
    alone: float = 0.0
    tail: float = 0.0
    queue: float = 0.0
    lost: float = 0.0


@dataclass(frozen=True)
class Device:
    """Bandwidth, and costs as they are taken, at their lowest and at their highest."""

    name: str
    gb_per_s: float
    cost: Cost
    low: Cost
    high: Cost


def lost_ms(variant: Variant, cost: Cost) -> float:
    """Milliseconds that a step takes beyond reading its bytes."""
    border = cost.launch if cost.dependent is None or not variant.dependents else cost.dependent
    launches = (variant.launches - variant.dependents) * cost.launch + variant.dependents * border
    barriers = variant.barriers * cost.barrier + variant.fills * cost.fill
    work = variant.alone * cost.alone + variant.tails * cost.tail
    # Weights of a dependent launch are on their way as it is: there is no wait for them to save.
    waits = border + (0.0 if variant.dependents else cost.fill)
    saved = variant.ahead * waits + variant.past_alone * (border + cost.alone)
    return (launches + barriers + work - (1.0 - cost.lost) * saved) / 1000


def queued_ms(variant: Variant, cost: Cost) -> float:
    """Milliseconds that Python takes to queue a step; 0 of a graph."""
    return variant.launches * cost.queue / 1000 if variant.queued else 0.0


def floor_ms(read_bytes: int, gb_per_s: float) -> float:
    """Milliseconds of reading so many bytes."""
    return read_bytes / gb_per_s / 1e6


def even_launch_us(first: Variant, second: Variant, cost: Cost) -> float | None:
    """The cost of a launch at which both variants take the same time; None where it does not
    matter. Dearer launches favour the one with fewer of them."""
    fewer = first.launches - second.launches
    if fewer == 0:
        return None
    rest = (second.barriers - first.barriers) * cost.barrier
    return (rest + (second.fills - first.fills) * cost.fill) / fewer


def even(device: Device, first: Variant, second: Variant) -> dict[str, Any]:
    """`even_launch_us` beside the cost that is taken."""
    found, taken = even_launch_us(first, second, device.cost), device.cost.launch
    cost = {"launch_us": found, "launch_taken_us": taken}
    return {"device": device.name, **cost, "how": "estimated"}


def devices() -> list[Device]:
    """Every device that costs are known for, with its bandwidth."""
    table = json.loads(COSTS.read_text("utf-8"))
    costs = {name: {**table["everywhere"], **own} for name, own in table["devices"].items()}
    known = json.loads(LIMITS.read_text("utf-8"))["budget"]["devices"]
    bandwidth = {device["name"]: float(device["gb_per_s"]) for device in known}
    return [Device(n, bandwidth[n], *(_cost(c, k) for k in _KINDS)) for n, c in costs.items()]


_KINDS = ("value", "low", "high")


def _cost(costs: Mapping[str, Mapping[str, float]], kind: str) -> Cost:
    units = {name.rpartition("_")[0]: figure[kind] for name, figure in costs.items()}
    return Cost(**units)


def there(variant: Variant, device: Device) -> bool:
    """Whether a device has what the variant needs."""
    return not variant.dependents or device.cost.dependent is not None


def predict(read_bytes: int, device: Device, variant: Variant) -> dict[str, Any]:
    """One row: what a variant is estimated to take on a device."""
    floor = floor_ms(read_bytes, device.gb_per_s)
    low, taken, high = (
        max(floor + lost_ms(variant, cost), queued_ms(variant, cost))
        for cost in (device.low, device.cost, device.high)
    )
    target, given = target_ms(device.name, floor)
    return {
        "device": device.name,
        "variant": variant.name,
        "launches": variant.launches,
        "barriers": variant.barriers,
        "fills": variant.fills,
        "floor_ms": floor,
        "estimated_ms": taken,
        "estimated_low_ms": low,
        "estimated_high_ms": high,
        "ratio_to_floor": taken / floor,
        "target_ms": target,
        "target_given": given,
        "reached": "yes" if high <= target else "no" if low > target else "open",
        "likely": taken <= target,
        "how": "estimated",
    }


def target_ms(device: str, floor: float) -> tuple[float, bool]:
    """Milliseconds, and whether a target is given for this device itself."""
    kind, value = TARGETS.get(device, TARGETS["RTX 4090"])
    return value if kind == "ms" else value * floor, device in TARGETS


def budget(read_bytes: int, device: Device, phases: int) -> dict[str, Any] | None:
    """Microseconds that a border of phases may cost if the device's target is to be met."""
    if device.name not in TARGETS:
        return None
    floor = floor_ms(read_bytes, device.gb_per_s)
    target, _ = target_ms(device.name, floor)
    return {
        "device": device.name,
        "target_ms": target,
        "per_phase_us": (target - floor) * 1000 / phases,
        "how": "estimated",
    }
