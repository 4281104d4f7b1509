"""What `/healthz` and `/readyz` tell, and why.

Three questions, because the answers are acted on differently: a process that is *dying* is started
again, one that is *not ready* gets no further robots, and *warnings* are for people. What all
replicas share, such as the disk of the snapshots, is a warning: were it a reason, one full disk
would take every replica out at once, with robots that they could well go on serving.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from wmrt.core.errors import DeviceError
from wmrt.safety import State
from wmrt.service.holding import FRESH, Holds

if TYPE_CHECKING:
    from wmrt.service.host import Host
    from wmrt.service.places import Place

#: Steps in a row that raise before the model counts as failed. One may be a robot's own fault.
FAILURES = 3
#: Seconds that the event loop may be late: again and again, and once.
LAG, STALL = 0.25, 1.0
#: Snapshots in a row that fail before it is told.
SNAPSHOTS = 3


def dying(host: Host) -> list[str]:
    """Why only a new process would help; empty if none is needed."""
    limit = host.settings.stuck_after
    found = [
        f"thread {worker.name} has ended"
        for worker in dict.fromkeys(host.crew.threads)
        if not worker.alive and not host.draining
    ]
    found += [
        f"the policy of robot {name} has been at one step for {seconds:.0f} s"
        for name, place in sorted(host.registry.places.items())
        if (seconds := place.desk.policy.running()) > limit
    ]
    oldest = host.outbox.oldest()
    waits = 0.0 if oldest is None else (time.perf_counter_ns() - oldest.waits_ns) * 1e-9
    if oldest is not None and waits > limit and not found:
        found.append(f"robot {oldest.observed.robot} has waited {waits:.0f} s for an answer")
    # A device that failed fails every later step too: the driver's errors stay.
    found += [why for why, error in _failed(host) if isinstance(error, DeviceError)]
    return found


def routing(host: Host) -> list[str]:
    """Why no connection may be sent here; empty if it may. A latch is no reason: it would send its
    robot to where nobody knows of it."""
    found = [] if host.warm else ["the model is warming up"]
    found += ["the service is stopping"] if host.draining else []
    return found + dying(host)


def reasons(host: Host) -> list[str]:
    """Why no further robot can be served; empty if it can."""
    found = [] if host.warm else ["the model is warming up"]
    found += ["the service is stopping"] if host.draining else []
    latched = sorted(n for n, p in host.registry.places.items() if _latched(p))
    if latched:
        found.append(f"latched until an operator resets: {', '.join(latched)}")
    found += dying(host)
    found += [why for why, error in _failed(host) if not isinstance(error, DeviceError)]
    if host.pulse.steady > LAG:
        found.append(f"the event loop is {host.pulse.steady:.2f} s late, again and again")
    return found


def warnings(host: Host) -> list[str]:
    """What somebody should look at, although robots are served."""
    found = []
    store = host.registry.store
    if store is not None and store.failing >= SNAPSHOTS:
        found.append(f"the last {store.failing} snapshots failed: {store.reason}")
    found += [
        f"where the breakers of robot {robot} stand is not on disk: {why}"
        for robot, why in sorted(host.registry.keeper.unwritten().items())
    ]
    if host.registry.handover is not None:
        found += _folder(host.registry.handover.holds)
    if host.certificate is not None and (trouble := host.certificate.trouble()):
        found.append(trouble)
    if host.pulse.worst > STALL:
        found.append(f"the event loop was {host.pulse.worst:.1f} s late a short while ago")
    if host.audit.lost:
        found.append(f"{host.audit.lost} lines of the audit log are lost")
    return found


def _folder(holds: Holds) -> list[str]:
    """Of the folder that processes share. What was read counts for `FRESH`; then no action leaves,
    and a new process would read no more."""
    if (seconds := holds.hangs()) > FRESH / 2:
        return [f"the folder of snapshots has not answered for {seconds:.1f} s"]
    why = f"whose robots these are cannot be read, {holds.failed} times by now: {holds.reason}"
    return [why] if holds.reason else []


def _latched(place: Place) -> bool:
    return place.desk.state is State.LATCHED


def _failed(host: Host) -> list[tuple[str, Exception | None]]:
    found = []
    for name, place in sorted(host.registry.places.items()):
        policy = place.desk.policy
        if policy.failures >= FAILURES:
            error = policy.error
            said = f"{type(error).__name__}: {error}"[:200]
            found.append((f"robot {name}: {policy.failures} steps in a row failed: {said}", error))
    return found
