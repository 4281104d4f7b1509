"""The live page in a real browser: what it shows of what is sent through the API, and what an
operator does on it."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.service.doubles import Running, service, until
from tests.service.page.browsing import (
    OPERATOR,
    TOKEN,
    let_in,
    opened,
    says,
    text,
)
from tests.service.raw import Raw, state

pytestmark = pytest.mark.full
HOSTILE = "<img src=x onerror=document.title='taken'>"


def latency(running: Running) -> dict[str, Any]:
    """What the service says of the robot's steps."""
    with (
        httpx.Client(base_url=running.tcp, trust_env=False) as http,
        http.stream("GET", "/v1/live", headers={"Authorization": f"Bearer {TOKEN}"}) as answer,
    ):
        for line in answer.iter_lines():
            message = json.loads(line.removeprefix("data: ")) if line else {}
            if "latency" in message:
                found: dict[str, Any] = message["latency"]
                return found
    raise AssertionError("no frame")


def shown(ms: float) -> str:
    digits = 0 if ms >= 100 else 1 if ms >= 10 else 2 if ms >= 1 else 3
    return f"{ms:.{digits}f}"


def test_latencies_are_the_service_s(chromium: Any, running: Running, robot: Raw) -> None:
    for n in range(30):
        robot.acted(n)
    with opened(chromium, running.tcp) as (page, seen):
        says(page, "#latency-n", "last 30 steps")
        told = latency(running)
        assert told["p50"] >= 4.0  # the seat sleeps for so long
        for name in ("p50", "p99", "jitter", "max"):
            assert text(page, f"#{name}") == shown(told[name]), name
        assert text(page, "#p999") == "–" and text(page, "#p999-unit") == "too few"
        assert text(page, "#deadline") == "10000"
        assert text(page, "#misses") == "0 of 30" and text(page, "#step") == "30"
        assert painted(page, "#histogram") > 500
        robot.acted(30, state=state(0.25))
        says(page, "#latency-n", "last 31 steps")
        assert text(page, "#source") == "policy" and text(page, "#state-name") == "closed"
        assert page.title() == "closed · r1 · wmrt"
        assert not seen.faults()


def painted(page: Any, selector: str) -> int:
    """Pixels of a canvas that something is drawn on."""
    count: int = page.eval_on_selector(
        selector,
        """(c) => { const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
        let n = 0; for (let i = 3; i < d.length; i += 4) n += d[i] > 0; return n; }""",
    )
    return count


def flags(page: Any, name: str) -> list[str]:
    found: list[str] = page.locator(f"tr[data-field='{name}'] .chip").all_inner_texts()
    return [flag.removeprefix("▲").strip() for flag in found]


def value(page: Any, name: str) -> str:
    return text(page, f"tr[data-field='{name}'] .value")


def test_every_field_and_what_is_wrong_with_it(chromium: Any, running: Running, robot: Raw) -> None:
    with opened(chromium, running.tcp) as (page, seen):
        robot.say(message(robot, 0, state(0.5, gap=120.0, lane=HOSTILE, pose=[math.nan, 3.0])))
        robot.hear()
        says(page, "#step", "1")
        says(page, "#fields-text", "6 columns")
        assert value(page, "canary") == "0.5000" and flags(page, "canary") == []
        assert value(page, "gap").startswith("120") and flags(page, "gap") == ["out of range"]
        assert value(page, "pose[0]") == "NaN" and flags(page, "pose[0]") == ["not finite"]
        assert value(page, "lane") == HOSTILE and flags(page, "lane") == ["unseen value"]
        assert value(page, "wet") == "false"
        assert text(page, "tr[data-field=gap] .unit") == "m"
        assert text(page, "tr[data-field=gap] .span") == "0 to 100"
        page.check("#flagged")
        assert page.locator("#fields tbody tr:visible").count() == 3
        page.uncheck("#flagged")
        wrong = state(0.5) | {"wheel": 1.0}
        del wrong["gap"]
        robot.say(message(robot, 1, wrong))
        robot.hear()
        says(page, "#fields-text", "not in the schema: wheel")
        assert flags(page, "gap") == ["missing"] and value(page, "gap") == "–"
        assert page.title() != "taken" and not seen.faults()


def message(robot: Raw, sequence: int, values: dict[str, Any]) -> str:
    """An observation as text, in which NaN may be."""
    own = {key: robot.opened[key] for key in ("robot", "session", "epoch")}
    return json.dumps(
        {"kind": "observation", "version": 1, **own, "sequence": sequence, "state": values}
    )


def test_a_trip_is_seen_in_every_place(chromium: Any, running: Running, robot: Raw) -> None:
    with opened(chromium, running.tcp) as (page, seen):
        robot.acted(0)
        says(page, "#state-name", "closed")
        robot.acted(1, state=state(None))  # type: ignore[arg-type]
        says(page, "#state-name", "open")
        says(page, "#says", "Breakers of r1: open.")  # what a screen reader is told
        says(page, "#source", "fallback")
        says(page, "#issues", "input: closed → open")
        assert page.title() == "open · r1 · wmrt"
        assert page.get_attribute("#glyph path", "d") == shape(page, "open")
        assert flags(page, "canary") == ["unknown", "required"]
        page.focus("#lanes")
        page.keyboard.press("End")
        says(page, "#reading", "from fallback; breakers open")
        says(page, "#reading", "tripped: 0 validity")
        page.keyboard.press("Home")
        says(page, "#reading", "from ")
        page.keyboard.press("Escape")
        says(page, "#reading", "Point at the timeline")
        assert robot.refused(0) == "stale"
        says(page, "#issues", "sequence 0: the last one taken in was 1")
        assert not seen.faults()


def shape(page: Any, name: str) -> str:
    """A state's sign, of the script's own source."""
    source = page.evaluate("fetch('page/status.js').then((answer) => answer.text())")
    found: str = source.split(f'\n  {name}: "M')[1].split('"')[0]
    return f"M{found}"


def test_from_a_stop_to_the_policy_again(chromium: Any, running: Running, robot: Raw) -> None:
    breakers = running.host.registry.places["r1"].desk.breakers
    with opened(chromium, running.tcp) as (page, seen):
        robot.acted(0)
        says(page, "#state-name", "closed")
        page.click("#stop")
        assert page.locator("#confirm-yes").evaluate("(b) => b === document.activeElement")
        says(page, "#confirm-text", "Robot r1.")
        page.keyboard.press("Escape")
        assert not page.locator("#confirm").is_visible()
        assert running.host.registry.places["r1"].stop_pressed is False
        page.click("#stop")
        page.click("#confirm-yes")  # without an operator's token
        says(page, "#stop", "Stop is pressed")
        robot.acted(1)
        says(page, "#state-name", "latched")
        until(lambda: breakers.state.value == "latched")

        page.click("[data-action=release]")  # who?
        says(page, "#operator-result", "Enter your name")
        assert page.locator("#operator-name").evaluate("(b) => b === document.activeElement")
        page.fill("#operator-name", "A. Person")
        page.fill("#operator-token", "not-the-operators-token")
        page.click("[data-action=release]")
        assert page.locator("#confirm-no").evaluate("(b) => b === document.activeElement")
        page.click("#confirm-yes")
        says(page, "#confirm-error", "Not done: this token does not open that; send the")
        page.keyboard.press("Escape")
        page.fill("#operator-token", OPERATOR)
        for action, after in (("release", "reset"), ("reset", "engage"), ("engage", "")):
            enabled = page.locator("#way button:enabled")
            assert enabled.count() == 1 and enabled.get_attribute("data-action") == action
            page.click(f"[data-action={action}]")
            says(page, "#confirm-text", "by A. Person")
            page.click("#confirm-yes")
            page.wait_for_selector("#confirm", state="hidden")
            if after:
                page.wait_for_selector(f"[data-action={after}]:enabled")
        assert breakers.engaged
        for n in range(2, 30):
            robot.acted(n)
        says(page, "#state-name", "closed")
        says(page, "#issues", "operator reset: latched → open")
        assert not seen.faults()
        kept = page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}])")
        assert OPERATOR not in kept and OPERATOR not in page.url


def test_the_token(chromium: Any, running: Running, robot: Raw) -> None:
    with opened(chromium, running.tcp, None) as (page, seen):
        page.wait_for_selector("#login[open]")
        assert page.locator("#login-token").evaluate("(b) => b === document.activeElement")
        page.fill("#login-token", "not-this-one")
        page.keyboard.press("Enter")
        says(page, "#login-error", "the token is not this service's")
        page.keyboard.press("Escape")
        says(page, "#link", "token needed")
        says(page, "#notice", "Not let in")
        page.click("#link")
        let_in(page, TOKEN)
        robot.acted(0)
        says(page, "#step", "1")
        assert TOKEN not in page.url and TOKEN not in page.evaluate("JSON.stringify(localStorage)")
        assert not any(TOKEN in address for address in seen.asked)
        page.reload()
        page.wait_for_selector("#link[data-link=live]")  # of this tab's storage
        assert not seen.faults()


def test_a_service_without_tokens(chromium: Any, tmp_path: Path) -> None:
    with (
        service(tmp_path, tcp=True) as running,
        running.raw() as robot,
        opened(chromium, running.tcp, None) as (page, seen),
    ):
        says(page, "#state-text", "Nobody has opened a session yet.")
        robot.open("r1")
        robot.acted(0)
        says(page, "#step", "1")
        says(page, "#operator-none", "no operator token")
        assert page.is_disabled("#operator-token") and page.is_enabled("#stop")
        assert not seen.faults()


def test_several_robots(chromium: Any, running: Running, robot: Raw) -> None:
    other = running.raw(TOKEN)
    other.open("r2")
    robot.acted(0, state=state(0.125))
    other.acted(0, state=state(-0.75))
    with opened(chromium, running.tcp) as (page, seen):
        says(page, "tr[data-field=canary] .value", "0.1250")
        page.select_option("#robot", "r2")
        says(page, "tr[data-field=canary] .value", "−0.7500")
        until(lambda: page.title() == "closed · r2 · wmrt")
        place = running.host.registry.places.pop("r2")
        try:
            says(page, "#notice", "Robot r2 has left this process")
            says(page, "#state-name", "gone")
            says(page, "#robot", "r2 (gone)")
            assert page.is_disabled("#stop")
        finally:
            running.host.registry.places["r2"] = place
        page.wait_for_selector("#stop:enabled")
        assert page.locator("#robot option").all_inner_texts() == ["r1", "r2"]
        assert not seen.faults()


def test_a_robot_that_falls_silent(chromium: Any, running: Running, robot: Raw) -> None:
    with opened(chromium, running.tcp) as (page, seen):
        robot.acted(0)
        says(page, "#notice", "Robot r1 has sent nothing for ")
        robot.acted(1)
        page.wait_for_selector("#notice:empty", state="hidden")
        assert not seen.faults()


def test_old_data_are_called_old(chromium: Any, tmp_path: Path) -> None:
    with service(tmp_path, tcp=True, token=TOKEN) as first:
        port = int(first.tcp.rsplit(":", 1)[1])
        with opened(chromium, first.tcp) as (page, seen):
            with first.raw(TOKEN) as robot:
                robot.open("r1")
                robot.acted(0)
                says(page, "#step", "1")
            first.stop()
            says(page, "#notice", "No data for ")
            assert page.title().startswith("old data")
            assert page.evaluate("document.documentElement.classList.contains('old')")
            says(page, "#link", "not connected")
            age = text(page, "#notice")
            until(lambda: text(page, "#notice") != age)  # it counts
            (tmp_path / "again").mkdir()
            with (
                service(tmp_path / "again", tcp=True, token=TOKEN, port=port) as second,
                second.raw(TOKEN) as robot,
            ):
                page.wait_for_selector("#link[data-link=live]")
                robot.open("r7")
                for n in range(3):
                    robot.acted(n)
                says(page, "#robot", "r7")
                page.wait_for_selector("html:not(.old)")
                says(page, "#notice", "Robot r1 has left")  # nobody has chosen another one
                page.select_option("#robot", "r7")
                says(page, "#step", "3")
            assert not seen.faults()


def test_a_service_that_hangs_is_noticed(chromium: Any, running: Running, robot: Raw) -> None:
    with opened(chromium, running.tcp) as (page, seen):
        robot.acted(0)
        says(page, "#step", "1")
        running.host.outbox.loop.call_soon_threadsafe(time.sleep, 6.0)
        says(page, "#notice", "No data for ")
        page.wait_for_selector("#link[data-link=live]")
        page.wait_for_selector("html:not(.old)")
        assert not seen.faults()
