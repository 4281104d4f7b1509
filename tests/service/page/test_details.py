"""How the live page writes one value: each of its parts by itself, given what the service tells."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.service.doubles import Running, service
from tests.service.page.browsing import opened

pytestmark = pytest.mark.full
ROWS = """() => Object.fromEntries([...document.querySelectorAll('#fields tbody tr')].map((row) => {
  const told = (cell) => row.querySelector(cell).textContent;
  const chips = [...row.querySelectorAll('.chip')].map((chip) => chip.textContent);
  return [row.dataset.field, [told('.value'), told('.span'), chips.join()]]; }))"""
SCHEMA = {
    "schema_hash": "another",
    "schema": {
        "fields": [
            {"name": "tiny", "kind": "numeric", "low": 0.00125, "high": 0.004, "decimals": 5},
            {"name": "wide", "kind": "numeric", "low": -2.5, "high": 100.0, "decimals": 3},
            {"name": "v", "kind": "vector", "n": 2, "low": -0.25, "high": 10, "decimals": 2},
            {"name": "who", "kind": "category", "values": ["infant", "nan", "inf"]},
            {"name": "task", "kind": "instruction"},
        ]
    },
}
STATE = {"values": [0.002, "-inf", "nan", "inf", "infant"], "instruction": "go", "extra": [],
         "flags": {"task": ["unseen"], "v": ["length"]}, "whole": [], "age_ms": None}  # fmt: skip


@pytest.fixture(scope="module")
def idle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Nothing but a place that the page comes from."""
    with service(tmp_path_factory.mktemp("details"), tcp=True) as one:
        yield one


@pytest.fixture
def page(chromium: Any, idle: Running) -> Iterator[Any]:
    with opened(chromium, idle.tcp, None) as (own, seen):
        own.wait_for_selector("#link[data-link=live]")
        yield own
        assert not seen.faults()


def test_fields_of_every_kind(page: Any) -> None:
    page.evaluate(
        """async ([hello, state]) => { const { Fields } = await import('/page/fields.js');
        window.own = new Fields(); own.start(hello); own.update(state); }""",
        [SCHEMA, STATE],
    )
    assert page.evaluate(ROWS) == {
        "tiny": ["0.00200", "0.00125 to 0.004", ""],
        "wide": ["−∞", "−2.5 to 100", ""],
        "v[0]": ["NaN", "−0.25 to 10", "wrong length"],
        "v[1]": ["∞", "−0.25 to 10", "wrong length"],
        "who": ["infant", "infant, nan, inf", ""],
        "task": ["go", "text", "unseen value"],
    }
    assert "3 flagged" in page.text_content("#fields-text")
    for word in ("nan", "inf"):
        state = STATE | {"values": [*STATE["values"][:4], word], "flags": {}}  # type: ignore[index]
        page.evaluate("(state) => own.update(state)", state)
        assert page.evaluate(ROWS)["who"] == [word, "infant, nan, inf", ""]
    page.evaluate("(hello) => own.start(hello)", SCHEMA)  # another robot's, or a later service's
    assert page.evaluate(ROWS)["task"] == ["–", "text", ""]


@pytest.mark.parametrize("first", [-24, 24])
def test_the_deadline_is_on_the_axis(page: Any, first: int) -> None:
    """Steps that all take 0.01 ms, or 100 ms, against a deadline of 1 ms."""
    found = page.evaluate(
        """async (first) => { const { Histogram } = await import('/page/histogram.js');
        const own = CanvasRenderingContext2D.prototype, dash = own.setLineDash, move = own.moveTo;
        let now = ''; const at = [];
        own.setLineDash = function (d) { now = d.join(); dash.call(this, d); };
        own.moveTo = function (x, y) { if (now === '6,3') at.push(x); move.call(this, x, y); };
        const one = new Histogram(), ms = 10 ** (first / 12);
        one.canvas.measure(); one.clear(1); at.length = 0;
        one.update({n: 5, p50: ms, p99: ms, p999: null, jitter: 0, max: ms,
          histogram: {first, per_decade: 12, counts: [5]}});
        own.setLineDash = dash; own.moveTo = move;
        return [at, one.canvas.width]; }""",
        first,
    )
    (at,), width = found
    assert 34 <= at <= width - 10


def test_times_have_units(page: Any) -> None:
    event = {"at_ms": None, "step": 4, "level": "validity", "cause": "input", "field": "gap",
             "before": "closed", "after": "open"}  # fmt: skip
    events = [
        {"n": 0, "kind": "undated", "value": None, "limit": 50_000_000, **event},
        {"n": 1, "kind": "out of order", "value": 5_000_000_000, "limit": 5_000_200_000, **event},
        {"n": 2, "kind": "out of order", "value": 5_000_000_000, "limit": 5_000_000_000, **event},
        {"n": 3, "kind": "range", "value": 120.0, "limit": 100.0, **event},
    ]
    told = page.evaluate(
        """async (events) => { const { Issues } = await import('/page/issues.js');
        new Issues().update({robot: 'r', refusals: [], events}, 0);
        return [...document.querySelectorAll('#issues p')].map((p) => p.textContent); }""",
        events,
    )
    ends = [said.split("gap · ")[1] for said in reversed(told)]
    assert ends == [
        "undated · allowed 50.0 ms",
        "out of order · captured 0.200 ms before the last one",
        "out of order · captured when the last one was",
        "range · 120 · allowed 100",
    ]
