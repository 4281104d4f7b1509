"""What a bench says in the end: its stamp, and its gates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from wmrt.cli.benching.request import Request
from wmrt.runtime.bench.outcome import Row


def overall(rows: Sequence[Row]) -> dict[str, Any]:
    """Quiet if every arm was, peers and control arms aside: what they do to themselves is theirs.

    ``reasons`` are each said once, with the arm where it is one arm's.
    """
    own = [row for row in rows if row.work.role == "own"]
    reasons = dict.fromkeys(
        reason if reason.startswith("the floor") else f"{row.label}: {reason}"
        for row in own
        for reason in row.verdict.reasons
    )
    return {"stamp": "noisy" if reasons else "quiet", "reasons": list(reasons)}


def gates(rows: Sequence[Row], request: Request) -> dict[str, Any]:
    """The gates that were given, each with its verdict: ``pass``, ``fail``, ``noisy`` (kept, but in
    a run that was not quiet, which is no pass) or ``missing`` (nothing to judge by)."""
    own = [row for row in rows if row.work.role == "own"]
    found = {}
    if request.deadline_ms is not None:
        missed = {_where(row): row.figures["deadline_misses"] for row in own}
        broken = {where: n for where, n in missed.items() if n}
        found["deadline"] = _gate(own, request.deadline_ms, missed, broken)
    if request.max_ratio is not None:
        limit = request.max_ratio
        ratios = {
            _where(row): row.figures["ratio_to_floor"] for row in own if row.course.rate is None
        }
        above = {where: r for where, r in ratios.items() if r is not None and r > limit}
        found["max_ratio"] = _gate(own, limit, ratios, above)
    return found


def _gate(
    rows: Sequence[Row], limit: float, values: Mapping[str, Any], broken: Mapping[str, Any]
) -> dict[str, Any]:
    verdict = "pass"
    if broken:
        verdict = "fail"
    elif not values or None in values.values():
        verdict = "missing"
    elif any(not row.verdict.quiet for row in rows):
        verdict = "noisy"
    return {"verdict": verdict, "limit": limit, "values": dict(values), "broken": dict(broken)}


def _where(row: Row) -> str:
    return f"{row.label}, {row.course.mode}"


def shortfalls(gates: Mapping[str, Any]) -> str:
    """Gates that did not pass, in words; empty if all did."""
    said = []
    for name, gate in gates.items():
        if gate["verdict"] == "fail":
            broken = ", ".join(f"{where} {value:.4g}" for where, value in gate["broken"].items())
            what = "missed" if name == "deadline" else "ratio to the floor"
            said.append(f"{name} {gate['limit']:g}: {what}: {broken}")
        elif gate["verdict"] != "pass":
            said.append(f"{name} {gate['limit']:g}: {gate['verdict']}, which is no pass")
    return "; ".join(said)
