"""The table of `tools/gpu_check.py`, from its results alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_ARM = ("arm", "recipe", "p50 ms", "p99", "p99.9", "max", "enqueue", "floor", "x floor", "stamp")


def lines(what: Mapping[str, Any], results: Mapping[str, Any]) -> Iterator[str]:
    """Text, line by line: what it ran on, a verdict for each section, a table of step times."""
    yield f"{what['device']} (sm_{what['capability']}), torch {what['torch']}, CUDA {what['cuda']}"
    yield f"triton {what['triton']}, Python {what['python']}, commit {what['commit']}"
    yield f"nvidia-smi: {what['smi'] or 'not told'}"
    yield ""
    for name, found in results.items():
        seconds = f"{found['seconds']:.0f} s" if "seconds" in found else ""
        yield f"{name:<10} {found['verdict']:<6} {seconds:>6}  {found['reason']}".rstrip()
    yield ""
    yield from _details({name: found["findings"] for name, found in results.items()})
    arms = [arm for name in results for arm in _arms(results[name]["findings"])]
    if arms:
        yield ""
        yield from _table([_ARM, *map(_row, arms)])


def _details(findings: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    copied = findings.get("bandwidth", {}).get("gb_per_s")
    if copied is not None:
        yield f"copy {copied:.0f} GB/s"
    counts = findings.get("tests", {}).get("counts")
    if counts:
        yield "tests " + ", ".join(f"{count} {result}" for result, count in counts.items())
    for failure in findings.get("tests", {}).get("failures", ()):
        yield f"  {failure['test']}: {failure['reason']}"
    for recipe, found in findings.get("capture", {}).items():
        different = ", ".join(found["different"]) or "nothing"
        yield f"{recipe}: {found['steps']} replays against eager steps, {different} differs"
    group = findings.get("group", {})
    for count, times in group.get("step_ms", {}).items():
        yield f"group: {count} robots {times['p50']:.3f} ms, p99 {times['p99']:.3f}"
    misses = findings.get("jitter", {}).get("misses")
    if misses:
        causes = ", ".join(f"{count} {cause}" for cause, count in misses["causes"].items())
        yield f"jitter: {len(misses['steps'])} missed {causes}".rstrip()
    memory = findings.get("memory", {})
    if memory:
        yield f"memory: {memory.get('host')}, device {memory.get('device')}"
    for section in ("bench", "launches", "peer"):
        for pair in findings.get(section, {}).get("ratios", ()):
            if pair["comparable"]:
                yield f"{pair['arm']} takes {pair['median']:.2f} times {pair['to']}"


def _arms(findings: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    one = findings.get("arm")
    return [*findings.get("arms", ()), *([one] if one else [])]


def _row(arm: Mapping[str, Any]) -> tuple[str, ...]:
    times, enqueue = arm["step_ms"], arm["enqueue_ms"]
    figures = [times["p50"], times["p99"], times["p999"], times["max"]]
    figures += [None if enqueue is None else enqueue["p50"], arm["floor_ms"]]
    ratio = arm["ratio_to_floor"]
    return (
        f"{arm['name']} {arm['mode']}",
        arm["recipe"],
        *("missing" if value is None else f"{value:.3f}" for value in figures),
        "missing" if ratio is None else f"{ratio:.2f}",
        arm["noise"]["stamp"],
    )


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Columns as wide as they need."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)).rstrip()
