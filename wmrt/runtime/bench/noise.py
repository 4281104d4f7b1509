"""Whether a result was measured on a machine that did nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from wmrt.runtime.bench.floor import Floor
from wmrt.runtime.bench.record import Recording

#: The floor's IQR over its median, before and after the arms, at most.
SPREAD = 0.03
#: Share of steps without an involuntary context switch, above.
CALM = 0.99


@dataclass(frozen=True)
class Verdict:
    """Quiet exactly when there is no reason against it. A noisy result is not a pass.

    ``calm`` is the share of steps in which no thread of the process was switched away from.
    """

    calm: float
    reasons: tuple[str, ...]

    @property
    def quiet(self) -> bool:
        return not self.reasons

    def to_json(self) -> dict[str, Any]:
        stamp = "quiet" if self.quiet else "noisy"
        return {"stamp": stamp, "calm": self.calm, "reasons": list(self.reasons)}


def judge(recording: Recording, floor: Floor, threads: int) -> Verdict:
    """The stamp of one arm's steps."""
    reasons = []
    for phase in ("before", "after"):
        spread = floor.spread(phase, threads)
        if spread is None:
            reasons.append(f"the floor {phase} the arms is missing")
        elif spread > SPREAD:
            said = f"the floor {phase} the arms varies by {spread:.1%} (IQR/median)"
            reasons.append(f"{said}, above {SPREAD:.0%}")
    interrupted = sum(1 for count in recording.column("switches") if count)
    calm = 1 - interrupted / recording.steps if recording.steps else 0.0
    if not calm > CALM:
        reasons.append(f"{calm:.1%} of the steps were not interrupted, not above {CALM:.0%}")
    return Verdict(calm, tuple(reasons))
