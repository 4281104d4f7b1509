"""The four gates of a recipe: execution, quality, capacity, speed. Evidence in, verdict out.

A verdict is never drawn from a figure that is absent: what could not be had is ``missing``, with
the reason, and what has no meaning is ``not comparable``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from wmrt.core import measure
from wmrt.quant import Recipe
from wmrt.quant.ledger import Figure, Ledger
from wmrt.train.quality import OpenLoop

Verdict = Literal["pass", "fail", "unsupported", "missing", "not comparable"]

#: Return a recipe may lose, relative to bf16 on the same seeds.
LOSS_FLOOR = -0.05
#: The file against the ledger's estimate, and resident memory against the ledger.
FILE_BOUND, RESIDENT_BOUND = 0.01, 1.10
#: Two orders of a float32 sum over K <= 6912 differ by at most K 2^-24 = 4e-4 of the summed
#: magnitudes; anything above is another computation.
DEVIATION = 1e-3


@dataclass(frozen=True)
class Gate:
    """Verdict, the sentence that says why, and everything it was drawn from (JSON data)."""

    verdict: Verdict
    reason: str
    evidence: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"verdict": self.verdict, "evidence": {"reason": self.reason, **self.evidence}}


def missing(reason: str, **evidence: Any) -> Gate:
    return Gate("missing", reason, evidence)


# -- G1 execution --------------------------------------------------------------------------------


def execution(probe: Mapping[str, Any], plan: Mapping[str, Recipe], why: Mapping[str, str]) -> Gate:
    """Whether every linear ran the operator its recipe asks for, from packed codes only.

    Args:
        probe: what `wmrt.runtime.probe.probe` returned.
        plan: recipe of each linear. why: reason of each linear that is left out.
    """
    from wmrt.kernels import operators

    known = {op.name: op for op in operators()}
    rows, faults = [], []
    for name, recipe in plan.items():
        call, report = probe["calls"].get(name), probe["report"]["layers"].get(name)
        rows.append(_row(name, recipe, call, why.get(name)))
        op = known.get(report or "")
        asked = (recipe.weight_format, recipe.activation)
        if call is None or not call["calls"]:
            faults.append(f"{name} was never called")
        elif op is None or (op.format, op.activation) != asked:
            faults.append(f"{name} runs {report}, asked for {asked[0]} with {asked[1]}")
        elif call["kernels"] != [report]:
            faults.append(f"{name} ran {', '.join(call['kernels'])}, the report names {report}")
        elif not call["deviation"] <= DEVIATION:
            faults.append(f"{name} deviates from the reference by {call['deviation']:.1e}")
    if probe["float_copies"]:
        faults.append(f"{len(probe['float_copies'])} float copies of packed weights are held")
    kernels = ", ".join(f"{n} linears by {name}" for name, n in probe["report"]["kernels"].items())
    evidence = {
        "kernels": probe["report"]["kernels"],
        "layout": probe["report"]["resolved"]["layout"],
        "model_bytes": probe["report"]["model_bytes"],
        "resident": probe["resident"],
        "float_copies": probe["float_copies"],
        "linears": rows,
        "faults": faults,
    }
    if faults:
        return Gate("fail", "; ".join(faults), evidence)
    return Gate("pass", f"{kernels}; no other kernel ran, no float copy is held", evidence)


def _row(
    name: str, recipe: Recipe, call: Mapping[str, Any] | None, why: str | None
) -> dict[str, Any]:
    asked = {"layer": name, "weights": recipe.weight_format, "activations": recipe.activation}
    seen = {k: v for k, v in (call or {}).items() if k != "kernels"}
    return {**asked, "kernel": ", ".join((call or {}).get("kernels", [])), **seen, "excluded": why}


# -- G2 quality ----------------------------------------------------------------------------------


def quality(opened: OpenLoop | str, closed: Mapping[str, Any]) -> Gate:
    """Verdict on the return, unless the predicted states are already worse than no prediction.

    ``opened`` is what recorded drives show, or why there were none; ``closed`` is `paired`'s
    result, or ``{"missing": reason}``.
    """
    shown = {"missing": opened} if isinstance(opened, str) else opened.to_json()
    evidence = {"open_loop": shown, "closed_loop": dict(closed)}
    if not isinstance(opened, str):
        for mine, theirs in zip(opened.packed, opened.bf16, strict=True):
            if mine.model >= mine.persistence and theirs.model < theirs.persistence:
                reason = f"{mine.steps} steps ahead it predicts no better than that nothing changes"
                return Gate("fail", f"{reason}; bf16 does", evidence)
    if "missing" in closed:
        return Gate("missing", f"closed loop: {closed['missing']}", evidence)
    if isinstance(opened, str):
        return Gate("missing", f"open loop: {opened}", evidence)
    low, high = closed["low"], closed["high"]
    if low is None or high is None:
        return Gate("missing", "return: no interval; more episodes (--episodes)", evidence)
    seen = f"return {closed['relative']:+.1%} (95%: {low:+.1%} to {high:+.1%})"
    seen = f"{seen} against bf16 on {closed['seeds']} seeds"
    if low >= LOSS_FLOOR:
        return Gate("pass", f"{seen}; no worse than {LOSS_FLOOR:.0%}", evidence)
    if high < LOSS_FLOOR:
        return Gate("fail", f"{seen}; worse than {LOSS_FLOOR:.0%}", evidence)
    return Gate("missing", f"{seen}: interval too wide: more episodes (--episodes)", evidence)


def paired(packed: Sequence[float], bf16: Sequence[float]) -> dict[str, Any]:
    """Returns on the same seeds: means, relative difference and its 95% interval."""
    relative, low, high = measure.relative_ci95(packed, bf16)
    return {
        "seeds": len(packed),
        "packed_mean": math.fsum(packed) / len(packed),
        "bf16_mean": math.fsum(bf16) / len(bf16),
        "relative": relative,
        "low": low,
        "high": high,
    }


# -- G3 capacity ---------------------------------------------------------------------------------


def capacity(ledger: Ledger, file_bytes: int, resident: Figure) -> Gate:
    """The ledger's estimate against the weight file and against resident memory.

    ``ledger`` must hold a workspace, or resident memory has nothing to stand against.
    """
    estimated, expected = ledger.file.bytes, ledger.total.bytes
    columns = {k: v for k, v in ledger.to_json().items() if k != "tensors"}
    evidence: dict[str, Any] = {
        "ledger": columns,
        "file": {"bytes": file_bytes, "how": "measured"},
        "resident": resident.to_json(),
        "file_difference": None if estimated is None else estimated / file_bytes - 1,
        "resident_ratio": None,
    }
    if estimated is None:
        return Gate("missing", "the ledger has no estimate of the file", evidence)
    off = estimated / file_bytes - 1
    said = f"ledger {estimated:,} bytes, file {file_bytes:,} ({off:+.2%})"
    if abs(off) > FILE_BOUND:
        return Gate("fail", f"{said}: more than {FILE_BOUND:.0%} apart", evidence)
    if resident.bytes is None or expected is None:
        return Gate("missing", f"{said}; resident memory cannot be read here", evidence)
    ratio = evidence["resident_ratio"] = resident.bytes / expected
    said = f"{said}; in memory {expected:,}, resident {resident.bytes:,} ({ratio:.2f}x)"
    if ratio > RESIDENT_BOUND:
        return Gate("fail", f"{said}: above {RESIDENT_BOUND:.2f}x", evidence)
    return Gate("pass", said, evidence)


# -- G4 speed ------------------------------------------------------------------------------------


def speed(kernels: Mapping[str, int]) -> Gate | None:
    """Missing while only reference operators run, whose times say nothing of the format; None
    when there is something to time."""
    from wmrt.kernels import operators

    fast = {op.name for op in operators() if op.implementation != "reference"}
    if fast & kernels.keys():
        return None
    ran = ", ".join(kernels)
    return missing(f"only reference kernels exist ({ran}); their times say nothing of the format")


def speed_verdict(timing: Mapping[str, Any]) -> Gate:
    """Verdict on times taken side by side; see `wmrt.train.timing.side_by_side`."""
    low, high = timing["ratio_p5"], timing["ratio_p95"]
    said = f"bf16 takes {timing['ratio_p50']:.2f}x as long ({low:.2f} to {high:.2f})"
    if low > 1:
        return Gate("pass", said, timing)
    return Gate("fail" if high < 1 else "missing", f"{said}: not faster", timing)
