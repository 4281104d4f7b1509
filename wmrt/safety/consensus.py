"""Level 3: two of three channels must agree (2oo3 voting, IEC 61508-6 annex B).

Channels must be diverse: three runs of one deterministic graph always agree and show nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from wmrt.safety.judge import Action
from wmrt.safety.table import Cause


class Verdict(NamedTuple):
    """Outcome of a vote.

    Attributes:
        cause: None when all three agree, else `Cause.PAIR` or `Cause.NO_MAJORITY`.
        action: what the vote gives, None without a majority.
        out: index of the channel that is dead or voted out, None if there is no single one.
    """

    cause: Cause | None
    action: Action | None
    out: int | None


def agrees(a: Action, b: Action, tolerance: Sequence[float]) -> bool:
    """True when every dimension differs by at most its tolerance (both finite)."""
    return all(abs(x - y) <= t for x, y, t in zip(a, b, tolerance, strict=True))


def vote(votes: Sequence[Action | None], tolerance: Sequence[float]) -> Verdict:
    """Vote over three channels; the first is the running model. None is a failed channel.

    All three pairs agree: the element-wise median. Only some pairs agree: the model's action if a
    pair holds it, else the pair's mean. With two overlapping pairs the model is in one of them, and
    ``out`` is the later one of the two channels that disagree. No pair, or fewer than two live
    channels: no majority.
    """
    a, b, c = votes
    ab = a is not None and b is not None and agrees(a, b, tolerance)
    ac = a is not None and c is not None and agrees(a, c, tolerance)
    bc = b is not None and c is not None and agrees(b, c, tolerance)
    if ab and ac and bc:
        median = tuple(sorted(column)[1] for column in zip(*votes, strict=True))
        return Verdict(None, median, None)
    if ab or ac:
        return Verdict(Cause.PAIR, a, 2 if ab else 1)
    if bc:
        mean = tuple(0.5 * (x + y) for x, y in zip(b, c, strict=True))  # type: ignore[arg-type]
        return Verdict(Cause.PAIR, mean, 0)
    return Verdict(Cause.NO_MAJORITY, None, None)
