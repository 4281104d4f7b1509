"""What exactly was measured, and on what."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from typing import Any

from wmrt.cli.benching.request import Request
from wmrt.cli.benching.subject import Stand
from wmrt.core import machine
from wmrt.runtime.bench.outcome import Row, label


def resolved(
    request: Request, made: Stand, rows: Sequence[Row], results: Mapping[str, Any]
) -> dict[str, Any]:
    """``identity.resolved`` of the result file."""
    reports = [row.figures["detail"].get("report", {}) for row in rows]
    kernels = sorted({name for report in reports for name in report.get("kernels", {})})
    isas = {report.get("resolved", {}).get("isa") for report in reports}
    return {
        "executors": list(dict.fromkeys(row.course.arm.name for row in rows)),
        "threads": list(request.threads),
        "kernels": kernels,
        "isa": sorted(isa for isa in isas if isa),
        "cpu_features": list(machine.cpu_features()),
        "last_level_cache_bytes": machine.last_level_cache_bytes(),
        "memory_bytes": machine.memory_bytes(),
        "governor": machine.frequency_governor(),
        "transparent_huge_pages": machine.huge_pages(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "weights": {
            one.name: {
                "sha256": one.checkpoint.weights_sha256,
                "origin": one.checkpoint.provenance.get("weights", "trained"),
            }
            for one in made.stored
        },
        "isolation": list(results["isolation"]),
    }


def facts(made: Stand, what: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The same for people."""
    found = [("processor", machine.cpu_name()), ("commit", machine.source_commit() or "unknown")]
    torch = machine.installed_version("torch")
    found.append(("versions", f"Python {what['python']}, torch {torch}, Linux {what['kernel']}"))
    for key in ("executors", "threads", "kernels", "isa", "cpu_features"):
        found.append((key.replace("_", " "), ", ".join(map(str, what[key])) or "none"))
    for key in ("governor", "transparent_huge_pages"):
        found.append((key.replace("_", " "), what[key] or "not told"))
    for name, weights in what["weights"].items():
        found.append((f"weights, {name}", f"{weights['origin']}, tree hash {weights['sha256']}"))
    found += [
        (label(x.arm, x.work), str(dict(x.arm.detail).get("versions", "")))
        for x in made.lines
        if x.work.role == "peer"
    ]
    return found
