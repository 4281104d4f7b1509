"""What the terminal and the report say of a bench: heads and rows of words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from wmrt.runtime.bench.outcome import Row

Words = tuple[Sequence[str], Sequence[Sequence[str]]]


def mode(figures: Mapping[str, Any]) -> str:
    rate = figures["rate_hz"]
    return "back to back" if rate is None else f"at {rate:g} Hz"


def short(row: Row) -> str:
    """An arm and its mode in few letters: ``native nvfp4 2t b8 50Hz``."""
    arm, rate = row.course.arm, row.figures["rate_hz"]
    batch = "" if row.work.batch == 1 else f" b{row.work.batch}"
    pages = "" if row.work.pages == "auto" else f" {row.work.pages}"
    paced = "" if rate is None else f" {rate:g}Hz"
    return f"{arm.name} {arm.recipe} {arm.threads}t{batch}{pages}{paced}"


def latency(rows: Sequence[Row]) -> Words:
    """One line per arm and mode, in ms."""
    head = "step, ms", "n", "p50", "p90", "p99", "p99.9", "max", "jitter", "p99/p50"
    body = []
    for row in rows:
        t = row.figures["step_ms"]
        times = [ms(t[key]) for key in ("p50", "p90", "p99", "p999", "max", "jitter")]
        body.append((short(row), str(t["n"]), *times, ratio(t["p99_over_p50"])))
    return head, body


def floors(rows: Sequence[Row]) -> Words:
    """Against the floor and the deadline, one line per arm and mode."""
    head = "floor, deadline", "floor", "p50/floor", "compute", "deadline", "misses", "streak", ""
    body = []
    for row in rows:
        f = row.figures
        streak = "–" if f["misses"] is None else str(f["misses"]["longest_streak"])
        misses = "–" if f["deadline_misses"] is None else str(f["deadline_misses"])
        near = ms(f["floor_ms"]), ratio(f["ratio_to_floor"]), ms(f["compute_floor_ms"])
        gates = *near, ms(f["deadline"]), misses, streak
        body.append((short(row), *gates, f["noise"]["stamp"]))
    return head, body


def segment_table(rows: Sequence[Row]) -> Words:
    """Medians of the parts of a step in ms, one line per arm and mode that has parts."""
    named = list(dict.fromkeys(name for row in rows for name in row.figures["segments_ms"]))
    body = []
    for row in rows:
        parts, wake = row.figures["segments_ms"], row.figures["wake_up_ms"]
        if parts:
            times = [ms(parts[name]["p50"]) if name in parts else "–" for name in named]
            late = "–" if wake is None else f"{ms(wake['p50'])} / {ms(wake['max'])}"
            body.append((short(row), *times, late))
    return ("parts, p50 ms", *named, "wake-up p50/max"), body


def ratio_table(ratios: Sequence[Mapping[str, Any]], to: str | None = None) -> Words:
    """Time of one arm over another's, with the quartiles of the rounds; only over arm ``to`` if
    given, whose name then stands in the head alone."""
    body: list[Sequence[str]] = []
    for pair in ratios:
        if to is not None and (pair["to"] != to or not pair["comparable"]):
            continue
        over = () if to is not None else (pair["to"],)
        body.append((pair["arm"], *over, pair["mode"], *_ratio(pair)))
    head = ("arm", "over") if to is None else (f"over {to}",)
    return (*head, "mode", "ratio", "IQR", "differs"), body


def _ratio(pair: Mapping[str, Any]) -> tuple[str, str, str]:
    if not pair["comparable"]:
        return "–", "–", f"not comparable: {pair['reason']}"
    low, high = pair["iqr"]
    differs = "yes" if pair["differs"] else "no: IQRs overlap"
    return f"{pair['median']:.3g}", f"{low:.3g} to {high:.3g}", differs


def cold_table(starts: Sequence[Mapping[str, Any]]) -> Words:
    """Seconds to the first action; one that cannot be had says why in its place."""
    seconds = ("first_action_s", "load_s", "first_step_s", "start_and_imports_s")
    body = [
        (
            f"{start['arm']}: {start['figure']}",
            *(f"{start[key]:.3f}" if key in start else "–" for key in seconds),
        )
        for start in starts
    ]
    return ("cold start, s", "first action", "load", "first step", "(imports)"), body


def cold_notes(starts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Why cold starts are missing, each reason once."""
    return list(dict.fromkeys(f"{s['figure']}: {s['missing']}" for s in starts if s.get("missing")))


def memory_table(found: Sequence[Mapping[str, Any]]) -> Words:
    """Resident bytes against the ledger."""
    body = []
    for one in found:
        resident, rss, pss = (mb(one[key]["bytes"]) for key in ("resident", "rss", "pss"))
        ledger = mb(one["ledger_bytes"])
        body.append((one["arm"], resident, ledger, ratio(one["ratio_to_ledger"]), rss, pss))
    return ("memory, MB", "resident", "ledger", "ratio", "(RSS", "PSS)"), body


def flat_notes(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Whether memory stays, a line for each arm that was watched."""
    return [f"memory of {x['arm']}: {_flat(x['flat'])}" for x in found if x["flat"] is not None]


def _flat(flat: Mapping[str, Any]) -> str:
    own, planted = flat["bytes_per_1000_steps"], flat["planted_bytes_per_1000_steps"]
    if own is None or planted is None:
        return str(flat["verdict"])
    return (
        f"{flat['verdict']}, {own:,.0f} bytes per 1,000 steps over {flat['steps']:,} steps; with "
        f"the planted leak {planted:,.0f}"
    )


def in_words(figures: Mapping[str, Any]) -> str:
    """The figures of one arm in a sentence or two."""
    t, floor = figures["step_ms"], figures["floor_ms"]
    said = f"{t['n']} steps: p50 {ms(t['p50'])}, p99 {ms(t['p99'])}, max {ms(t['max'])} ms."
    if floor is not None:
        said += f" Floor {ms(floor)} ms, p50 is {ratio(figures['ratio_to_floor'])} times that."
    if figures["misses"] is not None:
        causes = ", ".join(f"{cause} {n}" for cause, n in figures["misses"]["causes"].items())
        said += (
            f" {figures['deadline_misses']} steps missed {ms(figures['deadline'])} ms, at most "
            f"{figures['misses']['longest_streak']} in a row{': ' if causes else ''}{causes}."
        )
    return said


def ms(value: float | None) -> str:
    if value is None:
        return "–"
    digits = 3 if value < 1 else 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:.{digits}f}"


def ratio(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}" if value < 100 else f"{value:.0f}"


def mb(value: int | None) -> str:
    return "–" if value is None else f"{value / 1e6:.1f}"


def show(console: Console, title: str, rows: Sequence[Row], results: Mapping[str, Any]) -> None:
    """Print the tables; those with nothing in them are left out."""
    console.print(title, style="bold", markup=False, soft_wrap=True)
    first = rows[0].label
    tables = (
        *(latency(rows), floors(rows), segment_table(rows), ratio_table(results["ratios"], first)),
        *(cold_table(results["cold_start"]), memory_table(results["memory"])),
    )
    for head, body in tables:
        if body:
            console.print(_table(head, body))
    for one in results["missing"]:
        console.print(f"missing {one['name']}: {one['reason']}", markup=False)
    told = [*cold_notes(results["cold_start"]), *flat_notes(results["memory"])]
    for note in [*told, *results["notes"]]:
        console.print(note, markup=False)
    noise = results["noise"]
    said = "" if not noise["reasons"] else f": {'; '.join(noise['reasons'])}; not a pass"
    console.print(f"{noise['stamp']}{said}", style="bold", markup=False)


def _table(head: Sequence[str], body: Sequence[Sequence[str]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", title=None)
    for index, name in enumerate(head):
        justify: JustifyMethod = "right" if index else "left"  # the first one makes room
        table.add_column(name, justify=justify, overflow="fold", no_wrap=index > 0)
    for row in body:
        table.add_row(*(Text(cell) for cell in row))
    return table
