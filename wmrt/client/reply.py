"""What a robot gets."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wmrt.core.wire import Acted, WireError, session_number


class Answer(NamedTuple):
    """The answer to one observation.

    Attributes:
        action: float32[A], normalised to [-1, 1]; what to send out now.
        source: where it comes from: ``policy``, ``clamped``, ``planned``, ``fallback``, ...
        breakers: their state after the step. tripped: levels that tripped.
        late: the step missed the service's deadline.
        sequence, epoch: of the observation it answers. step: number of the control step.
        skipped: observations that were replaced by newer ones since the last answer.
        queue_ns, policy_ns, act_ns: in the service: waiting, the policy's own step (None: it was
            not asked), the whole step.
        round_trip_ns: from the call to the answer, on this side.
    """

    action: NDArray[np.float32]
    source: str
    breakers: str
    tripped: tuple[int, ...]
    late: bool
    sequence: int
    epoch: int
    step: int
    skipped: int
    queue_ns: int
    policy_ns: int | None
    act_ns: int
    round_trip_ns: int


def answer(acted: Acted, round_trip_ns: int) -> Answer:
    """From the wire's form."""
    (
        _, _, epoch, sequence, step, action, source, breakers, tripped, late, skipped, _, queue,
        policy, act,
    ) = acted  # fmt: skip
    return Answer(
        np.array(action, np.float32), source, breakers, tripped, late, sequence, epoch, step,
        skipped, queue, policy, act, round_trip_ns,
    )  # fmt: skip


def from_json(data: dict[str, Any]) -> Acted:
    """An answer that came as JSON; `WireError` if it is none."""
    known = {key: value for key, value in data.items() if key not in ("kind", "version")}
    try:
        known["session"] = session_number(known["session"])
        known["action"], known["tripped"] = tuple(known["action"]), tuple(known["tripped"])
        return Acted(**known)
    except (KeyError, TypeError) as error:
        raise WireError(f"an answer in JSON that is none: {error}") from None
