"""``report.html`` of a bench: one file without a script, its plots as SVG inside."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from wmrt.cli import report
from wmrt.cli.benching import charts, show
from wmrt.core.files import replacing
from wmrt.runtime.bench.outcome import Row, in_ms

REPORT = "report.html"


def render(
    title: str, rows: Sequence[Row], results: Mapping[str, Any], facts: Sequence[tuple[str, str]]
) -> str:
    """The page. ``results`` is plain JSON data, ``facts`` the identity in words."""
    tables = (show.latency(rows), show.floors(rows), show.segment_table(rows))
    sections = [_table(head[0], head, body) for head, body in tables if body]
    sections += _tables(results)
    sections += [_arm(row) for row in rows]
    parts = {
        "{{style}}": (Path(report.__file__).parent / "style.css").read_text("utf-8").strip(),
        "{{title}}": escape(title),
        "{{subtitle}}": _stamp(results["noise"]),
        "{{notes}}": "".join(f"<li>{escape(note)}</li>" for note in _notes(results)),
        "{{sections}}": "\n".join(sections),
        "{{facts}}": "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in facts),
        "{{raw}}": escape(json.dumps(results, indent=1, allow_nan=False)),
    }
    page = Path(__file__).with_name("page.html").read_text("utf-8")
    pieces = [page]
    for placeholder, text in parts.items():  # only in the page's own text, not in what was put in
        pieces = [
            piece
            for index, part in enumerate(pieces)
            for piece in (_split(part, placeholder, text) if index % 2 == 0 else [part])
        ]
    return "".join(pieces)


def _split(part: str, placeholder: str, text: str) -> list[str]:
    """Own text, put in, own text, ...: an odd number of pieces, so that the parity is kept."""
    own = part.split(placeholder)
    return [piece for item in own for piece in (item, text)][:-1]


def write(path: Path, text: str) -> None:
    """Write the page whole or not at all; `UsageError` if it cannot be."""
    with replacing(path) as temporary:
        temporary.write_text(text, "utf-8")


def _notes(results: Mapping[str, Any]) -> list[str]:
    told = [*show.cold_notes(results["cold_start"]), *show.flat_notes(results["memory"])]
    return [*results["notes"], *told]


def _stamp(noise: Mapping[str, Any]) -> str:
    stamp = noise["stamp"]
    said = "; ".join(noise["reasons"]) or "the floor was steady and hardly a step interrupted"
    return f'<span class="{stamp}">{stamp}</span>: {escape(said)}'


def _tables(results: Mapping[str, Any]) -> list[str]:
    named = (
        ("Ratios, round by round", show.ratio_table(results["ratios"])),
        ("Cold start, fresh processes", show.cold_table(results["cold_start"])),
        ("Memory, fresh processes", show.memory_table(results["memory"])),
        ("Missing", (("arm", "reason"), [(m["name"], m["reason"]) for m in results["missing"]])),
    )
    return [_table(title, head, body) for title, (head, body) in named if body]


def _table(title: str, head: Iterable[str], body: Iterable[Sequence[str]]) -> str:
    columns = "".join(f"<th>{escape(name)}</th>" for name in head)
    lines = "\n".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in body
    )
    return (
        f'<section class="card"><h2>{escape(title)}</h2><div class="scroll"><table><thead><tr>'
        f"{columns}</tr></thead><tbody>\n{lines}\n</tbody></table></div></section>"
    )


def _arm(row: Row) -> str:
    """Plots of one arm in one mode."""
    figures, samples = row.figures, in_ms(row.course.recording.column("duration"))
    times = figures["step_ms"]
    marks = [(name, times[name]) for name in ("p50", "p99") if times[name] is not None]
    if figures["floor_ms"] is not None:
        marks.append(("floor", figures["floor_ms"]))
    late = row.course.recording.column("late")
    answered = [a + b / 1e6 for a, b in zip(samples, late, strict=True)]
    plots = (
        charts.histogram(samples, marks),
        charts.cumulative(samples, marks),
        charts.series(answered, figures["deadline"]),
    )
    return (
        f'<section class="card"><h2>{escape(row.label)}, {escape(show.mode(figures))}</h2>'
        f'<p class="muted">{escape(show.in_words(figures))} {_stamp(figures["noise"])}.</p>'
        f'<div class="plots">{"".join(plots)}</div></section>'
    )
