"""The table of ``wmrt drive``, and the words that its table and its report share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from wmrt.cli.driving.plan import Plan
from wmrt.cli.driving.stand import Account
from wmrt.core.seeds import HELD_OUT


def title(plan: Plan, account: Account) -> str:
    driver = plan.model if account.recipe is None else f"{plan.model} ({account.recipe})"
    return f"{plan.env} driven by {driver}"


def notes(plan: Plan, account: Account, seeds: range, jobs: int) -> list[str]:
    """What a reader has to know to read the figures right."""
    found = list(account.notes)
    if not all(seed in HELD_OUT for seed in (seeds[0], seeds[-1])):
        found.append(
            f"seeds {seeds[0]} to {seeds[-1]} are not all held out from training "
            f"({HELD_OUT.start} to {HELD_OUT.stop - 1})"
        )
    if jobs > 1:
        found.append(f"{jobs} processes share the cores: their latencies are no measure of one")
    if account.levels and account.deadline_s is None:
        found.append("no deadline was enforced")
    if plan.arm != "model" and plan.recipe is not None:
        found.append(f"recipe {plan.recipe} is not used: {plan.model} has no weights")
    return found


def facts(plan: Plan, account: Account) -> list[tuple[str, str]]:
    """Requested and resolved, kernel by kernel; for people."""
    found = []
    if account.report is not None:
        requested = ", ".join(f"{k} {v}" for k, v in account.report["requested"].items() if v)
        found.append(("requested", requested))
        resolved = ", ".join(f"{k} {v}" for k, v in account.report["resolved"].items() if v)
        found.append(("resolved", resolved))
        found.append(("kernels", _kernels(account.report)))
        if account.report["layout"]["converted"]:
            found.append(("layout", _layout(account.report["layout"])))
        found.append(("holds", _bytes(account.report["bytes"])))
    if account.consensus is not None:
        found.append(("second opinion", _kernels(account.consensus)))
        found.append(("it holds", _bytes(account.consensus["bytes"])))
    if account.channels:
        found.append(("consensus of", ", ".join(account.channels)))
    if account.planner is not None:
        found.append(("planner", _planner(account.planner)))
    levels = ", ".join(map(str, account.levels)) or "none"
    deadline = "none" if account.deadline_s is None else f"{account.deadline_s * 1e3:g} ms"
    found.append(("breaker levels", f"{levels}; deadline {deadline}"))
    return found


def _kernels(report: Mapping[str, Any]) -> str:
    return ", ".join(f"{n} linears by {name}" for name, n in report["kernels"].items())


def _planner(facts: Mapping[str, Any]) -> str:
    timing = facts["timing"]
    took = (
        "without a deadline, so not measured"
        if timing is None
        else f"{timing['step_ms']:.1f} ms a control step, the model alone {timing['own_ms']:.1f}, "
        f"{timing['allowed_ms']:.1f} allowed"
    )
    return (
        f"{facts['name']}, {facts['samples']} sequences of {facts['horizon']} steps around the "
        f"model's own and the plan itself: {facts['steps']} imagined steps; {took}"
    )


def _layout(layout: Mapping[str, Any]) -> str:
    return f"stored as {layout['stored']}, converted to {layout['running']} when it was loaded"


def _bytes(parts: Mapping[str, int]) -> str:
    listed = ", ".join(f"{name} {size:,}" for name, size in parts.items())
    return f"{sum(parts.values()):,} bytes: {listed}"


def figures(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The summary as label and value, one line each."""
    half = summary["return_ci95"]
    interval = "" if half is None else f" ±{half:.2f} (95%)"
    collisions = f"{summary['collisions']} of {summary['episodes']} episodes"
    offroad = round(summary["offroad_rate"] * summary["episodes"])
    lines = [
        ("return", f"{summary['return_mean']:.2f}{interval}"),
        ("collisions", collisions + (f", {offroad} left the road" if offroad else "")),
        ("mean speed", f"{summary['mean_speed']:.1f} m/s"),
        ("distance", f"{summary['distance_m']:.0f} m an episode"),
    ]
    if summary["trips"] is not None:
        names = ("validity", "range", "rate", "consensus")
        trips = ", ".join(f"{n} {summary['trips'][str(i)]}" for i, n in enumerate(names))
        lines.append(("breaker trips", f"{trips} in {summary['steps']} steps"))
        late = summary["deadline_misses"]
        steps = (
            f"{summary['fallback_steps']} by the fallback, {summary['degraded_steps']} degraded, "
            f"{summary['openings']} openings",
            "no deadline" if late is None else f"{late} late",
        )
        lines.append(("steps", ", ".join(steps)))
    lines.append(("step", f"{_latency(summary['step_ms'])} ({summary['latency']})"))
    if summary["trips"] is not None:
        lines.append(("state to action", _latency(summary["act_ms"])))
    lines += [(f"channel {name}", _vote(told)) for name, told in summary["channels"].items()]
    if summary["monitor"] is not None:
        found = summary["monitor"]
        episodes = f"{found['episodes_with_alarm']} of {summary['episodes']} episodes"
        lines.append(("monitor", f"{found['alarms']} alarms, in {episodes}"))
    resident = summary["resident_bytes"]
    lines.append(("resident", "no model" if resident is None else f"{resident / 1e6:.2f} MB"))
    return lines


def _vote(told: Mapping[str, Any]) -> str:
    """What a consensus channel did and cost."""
    parts = [f"{told['votes']} votes, {told['failures']} failed, {told['late']} late"]
    if told["ms"]["n"]:
        parts.append(f"{told['ms']['p50']:.2f} ms a vote")
    if told["observe_ms"]["n"]:
        parts.append(f"{told['observe_ms']['p50']:.2f} ms a step between")
    if told["resident_bytes"] is not None:
        parts.append(f"{told['resident_bytes'] / 1e6:.2f} MB")
    return ", ".join(parts)


def _latency(timing: Mapping[str, Any]) -> str:
    if not timing["n"]:
        return "never asked"
    return ", ".join(f"{key} {timing[key]:.2f}" for key in ("p50", "p90", "p99", "max")) + " ms"


def show(
    console: Console,
    heading: str,
    remarks: list[str],
    lines: list[tuple[str, str]],
) -> None:
    """Print the table, then the remarks."""
    table = Table(title=heading, title_justify="left", show_header=False, box=None)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for label, value in lines:
        table.add_row(label, value.replace("[", r"\["))
    console.print(table)
    for remark in remarks:
        console.print(f"note: {remark}", markup=False, soft_wrap=True)
