"""The live page's stream: which robot it is of, how late it is, and when there is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.service.doubles import Running, until
from tests.service.page.browsing import TOKEN, let_in, opened, says, text
from tests.service.raw import Raw
from tests.service.test_viewers import counter
from wmrt.service.live import Live

pytestmark = pytest.mark.full


def changed(monkeypatch: pytest.MonkeyPatch, change: Callable[[dict[str, Any]], object]) -> None:
    """Frames go through ``change``."""
    make = Live.frame

    def frame(self: Live, *arguments: Any) -> dict[str, Any]:
        made = make(self, *arguments)
        change(made)
        return made

    monkeypatch.setattr(Live, "frame", frame)


def seen_by_nobody(page: Any, hidden: bool) -> None:
    page.evaluate(
        """(hidden) => { Object.defineProperty(document, 'hidden', {value: hidden,
        configurable: true}); document.dispatchEvent(new Event('visibilitychange')); }""",
        hidden,
    )


def test_data_that_arrive_late_are_called_old(
    chromium: Any, running: Running, robot: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    held_back = [0.0]
    changed(monkeypatch, lambda made: made.update(at_ms=made["at_ms"] - 1000 * held_back[0]))
    with opened(chromium, running.tcp) as (page, seen):
        robot.acted(0)
        says(page, "#step", "1")
        page.wait_for_timeout(1000)
        assert not page.evaluate("document.documentElement.classList.contains('old')")
        held_back[0] = 1.0  # less than what is called old
        page.wait_for_timeout(500)
        assert "late" not in text(page, "#notice")
        held_back[0] = 7.0
        says(page, "#notice", "Data arrive 7.")
        page.wait_for_selector("html.old")
        says(page, "#link", "late")
        until(lambda: page.title().startswith("old data"))
        age = text(page, "#age")
        assert float(age.split(" ")[0]) >= 7.0, age
        held_back[0] = 0.0
        page.wait_for_selector("html:not(.old)")
        says(page, "#link", "live")
        assert not seen.faults()


def test_clocks_may_drift_apart(chromium: Any, running: Running) -> None:
    with opened(chromium, running.tcp, None) as (page, _):
        late = page.evaluate(
            """async () => {
            const { Link } = await import('/page/link.js');
            const link = new Link({hello() {}, frame() {}, change() {}}), found = [];
            const day = (slower, more) => { let at = 0; link.heard = 0; link.least = Infinity;
              for (let n = 0; n < 432000; n += 1) { at += 200; link.heard = at * slower + more(n);
                link.measure(at, 200); }
              return link.late; };
            return [day(1.0003, () => 0), day(0.9997, () => 0), day(1, (n) => n < 9 ? 0 : 60000)];
            }"""
        )
        assert abs(late[0]) < 0.01 and abs(late[1]) < 0.01
        assert late[2] > 15.0  # a minute's delay that lasts for a day


def test_a_page_that_nobody_sees_lets_go(chromium: Any, running: Running, robot: Raw) -> None:
    with opened(chromium, running.tcp) as (page, seen):
        robot.acted(0)
        says(page, "#step", "1")
        seen_by_nobody(page, True)
        page.wait_for_timeout(1000)
        seen_by_nobody(page, False)  # a look at another page
        page.wait_for_timeout(6000)
        assert counter(running).count == 1
        seen_by_nobody(page, True)
        until(lambda: page.wait_for_timeout(10) or page.title() == "paused · r1 · wmrt", 60.0)
        until(lambda: counter(running).count == 0)
        says(page, "#link", "paused")
        page.wait_for_timeout(1500)
        assert counter(running).count == 0
        robot.acted(1)
        seen_by_nobody(page, False)
        says(page, "#step", "2")
        page.wait_for_selector("html:not(.old)")
        assert page.title() == "closed · r1 · wmrt" and not seen.faults()


def test_what_is_no_token_is_said_to_be_none(chromium: Any, running: Running) -> None:
    with opened(chromium, running.tcp, None) as (page, seen):
        page.wait_for_selector("#login[open]")
        for wrong in (TOKEN.replace("-", "\u2013"), f"{TOKEN} x"):
            page.fill("#login-token", wrong)
            page.keyboard.press("Enter")
            says(page, "#login-error", "Not let in: what was typed is no token")
            page.wait_for_selector("#login[open]")
        page.evaluate("sessionStorage.setItem('wmrt-token', 'caf\u00e9\u2013')")
        page.reload()
        says(page, "#login-error", "is no token")
        says(page, "#link", "token needed")
        let_in(page, TOKEN)
        page.reload()
        page.wait_for_selector("#link[data-link=live]")
        assert not seen.faults()


def test_the_robot_stays_the_one_that_was_shown(
    chromium: Any, running: Running, robot: Raw
) -> None:
    running.raw(TOKEN).open("r2")
    places = running.host.registry.places
    with opened(chromium, running.tcp) as (page, seen):
        until(lambda: page.title() == "closed · r1 · wmrt")
        places["r1"] = places.pop("r1")  # now r2 is the first one
        with page.expect_request("**/v1/live?robot=r1"):
            page.click("#link")
        says(page, "#robot option:first-child", "r2")
        assert page.title() == "closed · r1 · wmrt" and page.input_value("#robot") == "r1"
        assert not seen.faults()


def test_the_selector_names_the_robot_that_is_shown(
    chromium: Any, running: Running, robot: Raw
) -> None:
    running.raw(TOKEN).open("r2")
    places = running.host.registry.places
    with opened(chromium, running.tcp) as (page, seen):
        page.select_option("#robot", "r2")
        page.focus("#robot")
        until(lambda: page.title() == "closed · r2 · wmrt")
        places["r3"] = places["r1"]  # other options
        try:
            says(page, "#robot", "r3")
            assert page.input_value("#robot") == "r2"
        finally:
            del places["r3"]
        assert not seen.faults()


def test_a_choice_holds_before_its_first_frame(chromium: Any, running: Running, robot: Raw) -> None:
    running.raw(TOKEN).open("r2")
    robot.acted(0)
    with opened(chromium, running.tcp) as (page, seen):
        says(page, "#step", "1")
        page.route("**/v1/live**", lambda route: None)  # it never comes
        page.select_option("#robot", "r2")
        until(lambda: page.title().endswith("· r2 · wmrt"))
        assert text(page, "#step") == "–" and page.input_value("#robot") == "r2"
        page.click("#stop")
        says(page, "#confirm-text", "Robot r2.")
        page.click("#confirm-yes")
        places = running.host.registry.places
        until(lambda: places["r2"].stop_pressed)
        assert not places["r1"].stop_pressed and not seen.faults()


def test_a_stream_that_cannot_be_read_is_closed(
    chromium: Any, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(chromium, running.tcp) as (page, seen):
        changed(monkeypatch, lambda made: made.pop("robots"))
        until(lambda: page.wait_for_timeout(10) or len(seen.said) > 4, 60.0)
        assert any("TypeError" in said for said in seen.said)
        until(lambda: counter(running).count <= 1)


def test_two_notices_are_two(chromium: Any, running: Running, robot: Raw) -> None:
    with opened(chromium, running.tcp) as (page, seen):
        robot.acted(0)
        page.evaluate(
            """() => { window.told = []; const node = document.getElementById('notice');
            new MutationObserver(() => told.push([node.textContent, node.ariaLive ??
              node.getAttribute('aria-live')])).observe(node, {childList: true}); }"""
        )
        says(page, "#notice", "Robot r1 has sent nothing for ")
        places = running.host.registry.places
        places["gone"] = places.pop("r1")
        try:
            says(page, "#notice", "Robot r1 has left")
        finally:
            places["r1"] = places.pop("gone")
        told = page.evaluate("told")
        for words in ("Robot r1 has sent", "Robot r1 has left"):  # the first time
            assert next(live for said, live in told if words in said) == "assertive", told
        assert "off" in {live for _, live in told}  # only the seconds are others
        assert not seen.faults()


def test_why_it_takes_no_robots_is_told(
    chromium: Any, running: Running, robot: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    reasons = ["latched until an operator resets: r1", "the event loop is 0.40 s late"]
    warnings = ["3 lines of the audit log are lost"]
    robot.acted(0)
    with opened(chromium, running.tcp) as (page, seen):
        says(page, "#ready", "yes")
        says(page, "#warnings", "none")
        monkeypatch.setattr(type(running.host), "reasons", lambda _: reasons)
        monkeypatch.setattr(type(running.host), "warnings", lambda _: warnings)
        says(page, "#ready", f"no: {'; '.join(reasons)}")
        says(page, "#warnings", warnings[0])
        says(page, "#notice", "The event loop is 0.40 s late.")
        assert "atched" not in text(page, "#notice") and not seen.faults()
