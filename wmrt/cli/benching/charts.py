"""Plots of step times as SVG text: histogram, cumulative share, time series."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

WIDTH, HEIGHT = 520, 200
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 510, 26, 172
_BINS = 60
#: Columns of a time series; more steps than that share one, drawn from their least to their most.
_COLUMNS = 450
_TAILS = (0.5, 0.9, 0.99, 0.999, 0.9999)

Place = Callable[[float], float]


def histogram(samples: Sequence[float], marks: Sequence[tuple[str, float]]) -> str:
    """Counts of step times in ms over a logarithmic axis; ``marks`` are named lines."""
    low, high = _span(samples)
    x = _log_axis(low, high)
    counts = [0] * _BINS
    for sample in samples:
        share = math.log(sample / low) / math.log(high / low)
        counts[min(int(share * _BINS), _BINS - 1)] += 1
    most = max(counts)
    parts = [_y_tick(f"{most}", _TOP), _y_tick("0", _BOTTOM)]
    for index, count in enumerate(counts):
        if count:
            left, right = (low * (high / low) ** (i / _BINS) for i in (index, index + 1))
            tall = max((_BOTTOM - _TOP) * count / most, 1.0)
            title = f"{_short(left)} to {_short(right)} ms: {count} steps"
            parts.append(
                f'<rect class="bin" x="{x(left):.1f}" y="{_BOTTOM - tall:.1f}" '
                f'width="{max(x(right) - x(left) - 0.8, 0.8):.1f}" height="{tall:.1f}">'
                f"<title>{title}</title></rect>"
            )
    parts += _marks(marks, x, low, high)
    return _svg("Histogram of step times", [*parts, *_time_ticks(low, high, x)])


def cumulative(samples: Sequence[float], marks: Sequence[tuple[str, float]]) -> str:
    """Share of steps that were at most so long; its axis spreads the tail (one decade per row)."""
    low, high = _span(samples)
    x = _log_axis(low, high)
    ordered, n = sorted(samples), len(samples)
    rows = math.log10(max(n, 10))

    def y(share: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * min(-math.log10(max(1 - share, 1 / n)) / rows, 1)

    shares = sorted({round(n * (1 - 10 ** (-rows * i / 200))) for i in range(201)} | {0, n - 1})
    points = [f"{x(ordered[i]):.1f},{y(i / n):.1f}" for i in shares if 0 <= i < n]
    parts = [_y_tick(f"{100 * t:g}%", y(t)) for t in _TAILS if 1 - t >= 1 / n]
    parts.append(f'<polyline class="curve" points="{" ".join(points)}"/>')
    parts += _marks(marks, x, low, high)
    return _svg("Cumulative share of steps", [*parts, *_time_ticks(low, high, x)])


def series(samples: Sequence[float], deadline: float | None) -> str:
    """Step times in the order they were taken, with the deadline as a line."""
    low, high = 0.0, max(*samples, deadline or 0.0) * 1.05
    count = len(samples)

    def y(value: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * (value - low) / (high - low)

    parts = [_y_tick(_short(value), y(value)) for value in (0.0, high / 2.1, high / 1.05)]
    columns = min(count, _COLUMNS)
    path = []
    for column in range(columns):
        part = samples[column * count // columns : (column + 1) * count // columns]
        at = _LEFT + (_RIGHT - _LEFT) * (column + 0.5) / columns
        path.append(f"M{at:.1f},{y(min(part)) + 0.8:.1f}V{y(max(part)) - 0.8:.1f}")
    parts.append(f'<path class="curve" d="{"".join(path)}"/>')
    if deadline is not None:
        line = f'y1="{y(deadline):.1f}" y2="{y(deadline):.1f}"'
        parts.append(f'<line class="deadline" x1="{_LEFT}" x2="{_RIGHT}" {line}/>')
        parts.append(_text(_RIGHT, y(deadline) - 4, f"deadline {_short(deadline)} ms", "end"))
    ends = ((_LEFT, "0", "start"), (_RIGHT, f"step {count}", "end"))
    parts += [_text(at, _BOTTOM + 16, words, anchor) for at, words, anchor in ends]
    return _svg("Step times in order, ms", parts)


def _span(samples: Sequence[float]) -> tuple[float, float]:
    low, high = max(min(samples), 1e-6), max(*samples, 1e-6)
    return low * 0.98, max(high, low * 1.05) * 1.02


def _log_axis(low: float, high: float) -> Place:
    return lambda value: (
        _LEFT + (_RIGHT - _LEFT) * math.log(max(value, low) / low) / math.log(high / low)
    )


def _marks(marks: Sequence[tuple[str, float]], x: Place, low: float, high: float) -> list[str]:
    """Named lines; those beside the axis are left out."""
    parts = []
    for row, (name, value) in enumerate(mark for mark in marks if low <= mark[1] <= high):
        at, top = x(value), 22 + 11 * row
        parts.append(f'<line class="rule" x1="{at:.1f}" x2="{at:.1f}" y1="{top}" y2="{_BOTTOM}"/>')
        end = at > _RIGHT - 90
        where = at - 4 if end else at + 4
        parts.append(_text(where, top + 8, f"{name} {_short(value)}", "end" if end else "start"))
    return parts


def _time_ticks(low: float, high: float, x: Place) -> list[str]:
    ticks = [m * 10**e for e in range(-6, 7) for m in (1, 2, 5)]
    inside = [tick for tick in ticks if low <= tick <= high]
    if len(inside) < 2:
        inside = [low, math.sqrt(low * high), high]
    parts, free = [], -math.inf
    for tick in inside:
        if x(tick) >= free:
            free = x(tick) + 52
            anchor = "end" if x(tick) > _RIGHT - 20 else "middle"
            parts.append(_text(x(tick), _BOTTOM + 16, f"{_short(tick)} ms", anchor))
    return parts


def _y_tick(words: str, at: float) -> str:
    line = f'<line class="axis" x1="{_LEFT}" x2="{_RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
    return line + _text(_LEFT - 6, at + 4, words, "end")


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _short(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def _svg(name: str, parts: Sequence[str]) -> str:
    title = f'<text class="name" x="0" y="12">{escape(name)}</text>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(name)}">{title}{"".join(parts)}</svg>'
    )
