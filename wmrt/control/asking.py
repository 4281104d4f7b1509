"""One question to the policy, whose answer may be anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from wmrt.control.convert import FLOAT32, as_action, as_chunk, as_predicted
from wmrt.control.protocol import Policy
from wmrt.core.errors import STOPPING
from wmrt.safety import Finding, Proposal


class Answer(NamedTuple):
    """What came of it.

    Attributes:
        proposal: for the breakers.
        chunk: the next actions, row 0 for now; empty when there is none to rely on.
        note: what was wrong with the chunk, or else what the policy itself notes: no reason to
            distrust the action.
        policy_ns: duration of the policy's step.
        foreseen: the next state as the policy predicts it, as it came.
    """

    proposal: Proposal
    chunk: tuple[tuple[float, ...], ...]
    note: Finding | None
    policy_ns: int
    foreseen: Any = None


def ask(
    policy: Policy,
    state: Mapping[str, Any],
    previous: Sequence[float],
    predicted: Sequence[str],
    rows: int,
    timer: Callable[[], int],
) -> Answer:
    """Ask ``policy``; never raises on its account.

    Args:
        previous: the action actually sent, given to the policy as float32[A] of its own.
        predicted: numeric state fields to take from the prediction.
        rows: how much of the chunk to keep.
    """
    size = len(previous)
    given = np.array(previous, FLOAT32)
    began = timer()
    ended = None
    try:
        step = policy.step(dict(state), given)
        ended = timer()
        action = as_action(step.action, size)
        foreseen = getattr(step, "predicted", None)
        following = as_predicted(foreseen, predicted)
        chunk = as_chunk(getattr(step, "chunk", None), size, rows)
        noted = getattr(step, "note", None)
    except STOPPING:
        raise
    except BaseException as error:  # a policy must not stop the loop
        took = (timer() if ended is None else ended) - began
        return Answer(Proposal(fault=Finding("policy", type(error).__name__[:80])), (), None, took)
    took = ended - began
    if isinstance(action, Finding):
        return Answer(Proposal(fault=action), (), None, took)
    if isinstance(following, Finding):
        return Answer(Proposal(action, fault=following), (), None, took)
    if isinstance(chunk, Finding):
        return Answer(Proposal(action, following), (), chunk, took, foreseen)
    note = noted if isinstance(noted, Finding) else None
    # Their own constructors run in Python, for 100 ns more each.
    proposal = tuple.__new__(Proposal, (action, following, None, False))
    return tuple.__new__(Answer, (proposal, chunk, note, took, foreseen))
