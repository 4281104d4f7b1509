"""Dashboard and alerts: what they name is there, and every expression parses."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.house.tree import ROOT
from tests.service.doubles import service
from wmrt.service.certificates import Validity

promql = pytest.importorskip("promql_parser", reason="run: pip install 'wmrt[dev]'")
FOLDER = ROOT / "deploy" / "observability"
#: Of Prometheus itself, for every target; and what it puts on every series.
SCRAPED, TARGET = {"up"}, {"instance", "job"}
DASHBOARD = json.loads((FOLDER / "grafana-dashboard.json").read_text("utf-8"))
ALERTS = yaml.safe_load((FOLDER / "alerts.yaml").read_text("utf-8"))


def rules() -> list[dict[str, Any]]:
    return [rule for group in ALERTS["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def expressions() -> list[str]:
    """Every one, with what Grafana puts in place of its variables."""
    found = [rule["expr"] for rule in rules()]
    found += [target["expr"] for panel in panels() for target in panel["targets"]]
    found += [one["expr"] for one in DASHBOARD["annotations"]["list"]]
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            found.append(re.fullmatch(r"label_values\((.*), \w+\)", variable["query"]["query"])[1])  # type: ignore[index]
    return [text.replace("$__rate_interval", "5m") for text in found]


def selectors(node: Any) -> Iterator[Any]:
    """Every selector of a parsed expression."""
    if isinstance(node, promql.VectorSelector):
        yield node
    elif isinstance(node, promql.MatrixSelector):
        yield node.vector_selector
    elif isinstance(node, promql.BinaryExpr):
        yield from selectors(node.lhs)
        yield from selectors(node.rhs)
    elif isinstance(node, promql.Call):
        for argument in node.args:
            yield from selectors(argument)
    elif not isinstance(node, promql.NumberLiteral | promql.StringLiteral):
        yield from selectors(node.expr)


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, set[str]]]:
    """Every series of a service with a robot: its labels, and their values."""
    with service(tmp_path_factory.mktemp("s"), tcp=True) as running:
        raw = running.raw()
        raw.open("r1")
        raw.acted(0)
        ends = datetime.now(timezone.utc)
        running.host.certificate = SimpleNamespace(  # type: ignore[assignment]
            validity=Validity(ends, ends), trouble=str
        )
        text = httpx.get(f"{running.tcp}/metrics", trust_env=False).text
    found: dict[str, dict[str, set[str]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = found.setdefault(sample.name, {})
            for key, value in sample.labels.items():
                labels.setdefault(key, set()).add(value)
    return found


@pytest.mark.parametrize("text", expressions())
def test_an_expression_names_what_there_is(
    text: str, series: dict[str, dict[str, set[str]]]
) -> None:
    named = list(selectors(promql.parse(text)))
    assert named
    for selector in named:
        assert selector.name in {*series, *SCRAPED}, f"{selector.name} in {text}"
        labels = series.get(selector.name, {})
        for matcher in selector.matchers.matchers:
            if matcher.name in TARGET or matcher.value.startswith("$"):
                assert matcher.name in {*TARGET, *labels}, f"{matcher.name} in {text}"
                continue
            assert set(matcher.value.split("|")) <= labels[matcher.name], f"{matcher} in {text}"


def test_labels_that_are_summed_by_are_there(series: dict[str, dict[str, set[str]]]) -> None:
    for text in expressions():
        own = {label for s in selectors(promql.parse(text)) for label in series.get(s.name, {})}
        for listed in re.findall(r"\b(?:by|on) \(([^)]*)\)", text):
            assert set(re.split(r",\s*", listed)) <= own | TARGET, text


def test_a_wrong_expression_would_be_found(series: dict[str, dict[str, set[str]]]) -> None:
    for text in ("sum(rate(wmrt_steps_total[5m])", "wmrt_steps_total[5x]", "sum by wmrt_ready"):
        with pytest.raises(ValueError):
            promql.parse(text)
    with pytest.raises(AssertionError):
        test_an_expression_names_what_there_is("rate(wmrt_step_total[5m]) > 0", series)
    with pytest.raises(AssertionError):
        test_an_expression_names_what_there_is('wmrt_breakers_state{state="shut"} == 1', series)


def test_every_metric_of_ours_is_on_the_dashboard_or_alerted(
    series: dict[str, dict[str, set[str]]],
) -> None:
    used = {s.name for text in expressions() for s in selectors(promql.parse(text))}
    ours = {name for name in series if name.startswith("wmrt_")}
    ours = {name for name in ours if not name.endswith(("_sum", "_count"))}  # of histograms
    assert ours - used == {"wmrt_period_seconds"}


def test_alerts_say_what_to_do() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names) >= 15
    for rule in rules():
        assert rule["labels"]["severity"] in ("page", "ticket"), rule
        assert set(rule["annotations"]) == {"summary", "action"}, rule
        assert re.fullmatch(r"\d+[sm]", rule.get("for", "0s")), rule
        for label in re.findall(r"\$labels\.(\w+)", str(rule["annotations"])):
            assert label in rule["expr"] or label in {*TARGET, "robot"}, rule


def test_who_restarts_it_and_for_what_is_told() -> None:
    """`wmrt.service.health.dying` is what the liveness probe and systemd's watchdog go by."""
    (action,) = (r["annotations"]["action"] for r in rules() if r["alert"] == "WmrtNotAlive")
    assert "liveness probe" in action and "systemd by the watchdog" in action
    text = (FOLDER / "README.md").read_text("utf-8")
    (alive,) = re.findall(r"^\| `/healthz` \|.*$", text, re.MULTILINE)
    for why in ("thread of the model has ended", "device has failed"):
        assert why in action and why in alive
    assert "waited" in alive and "a step has run" in alive


def test_the_dashboard_holds_together() -> None:
    everything = DASHBOARD["panels"]
    ids = [panel["id"] for panel in everything]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in everything:
        at = panel["gridPos"]
        cells = {(at["x"] + i, at["y"] + j) for i in range(at["w"]) for j in range(at["h"])}
        assert not cells & taken and at["x"] + at["w"] <= 24, panel["title"]
        taken |= cells
    known = {variable["name"] for variable in DASHBOARD["templating"]["list"]} | {"__rate_interval"}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps([everything, DASHBOARD["annotations"]])))
    assert used <= known | {"__all"} and {"robot", "instance", "datasource"} <= used


def test_the_page_about_it_names_every_metric(series: dict[str, dict[str, set[str]]]) -> None:
    text = (FOLDER / "README.md").read_text("utf-8")
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in series}
    for name in families:
        if name.startswith("wmrt_"):
            assert f"`{name}`" in text, name
    for name in re.findall(r"`(wmrt_\w+)`", text):
        assert name in families, name


def test_its_files_are_these() -> None:
    found = {path.name for path in FOLDER.iterdir()}
    assert found == {"README.md", "alerts.yaml", "grafana-dashboard.json"}
