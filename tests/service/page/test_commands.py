"""Commands on the live page: none waits for another one, and what became of each is told."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.service.doubles import CanarySeat, Running, service, until
from tests.service.page.browsing import OPERATOR, TOKEN, let_in, opened, says, text
from tests.service.raw import Raw

pytestmark = pytest.mark.full


@contextlib.contextmanager
def held(page: Any, path: str) -> Iterator[list[Any]]:
    """Requests wait here, and go on when this ends."""
    waiting: list[Any] = []

    def hold(route: Any) -> None:
        waiting.append(route)

    page.route(path, hold)
    try:
        yield waiting
    finally:
        for route in waiting:
            route.continue_()
        page.unroute(path)


def sign(page: Any) -> None:
    """As an operator."""
    page.fill("#operator-name", "A. Person")
    page.fill("#operator-token", OPERATOR)


def focused(page: Any, selector: str) -> bool:
    found: bool = page.locator(selector).evaluate("(b) => b === document.activeElement")
    return found


def disengage(running: Running, robot: str = "r1") -> None:
    answer = httpx.post(
        f"{running.tcp}/v1/breakers/disengage",
        json={"robot": robot},
        headers={"Authorization": f"Bearer {TOKEN}"},
        trust_env=False,
    )
    assert answer.status_code == 200


def test_a_stop_waits_for_no_other_command(chromium: Any, running: Running, robot: Raw) -> None:
    place = running.host.registry.places["r1"]
    robot.acted(0)
    disengage(running)
    with opened(chromium, running.tcp) as (page, seen):
        sign(page)
        with held(page, "**/v1/breakers/engage") as engaging:
            page.click("[data-action=engage]:enabled")
            page.click("#confirm-yes")
            until(lambda: page.wait_for_timeout(10) or engaging)
            page.click("#confirm-no")
            says(page, "#operator-result", 'not answered yet: "Engage" for robot r1')
            page.click("#stop")
            page.click("#confirm-yes")
            page.wait_for_selector("#confirm", state="hidden")
            assert place.stop_pressed
            says(page, "#operator-result", "The emergency stop is pressed. Robot r1.")
            page.click("[data-action=release]:enabled")
        says(page, "#operator-result", 'Late answer to "Engage" for robot r1: ')
        assert page.is_visible("#confirm")  # another command's
        says(page, "#confirm-title", "Release the emergency stop?")
        assert text(page, "#confirm-error") == ""
        page.click("#confirm-yes")
        page.wait_for_selector("#confirm", state="hidden")
        assert not place.stop_pressed and not seen.faults()


def test_a_late_answer_is_of_its_own_robot(chromium: Any, running: Running, robot: Raw) -> None:
    running.raw(TOKEN).open("r2")
    with opened(chromium, running.tcp) as (page, seen):
        with held(page, "**/v1/breakers/disengage") as waiting:
            page.click("[data-action=disengage]:enabled")
            page.click("#confirm-yes")
            until(lambda: page.wait_for_timeout(10) or waiting)
            page.click("#confirm-no")
            page.select_option("#robot", "r2")
            page.wait_for_selector("#link[data-link=live]")
            until(lambda: page.title().endswith("· r2 · wmrt"))
            page.evaluate(
                """() => { window.named = []; const stop = document.getElementById('stop');
                new MutationObserver(() => { stop.click();
                  named.push(document.getElementById('confirm-text').textContent); })
                .observe(document.getElementById('operator-result'), {childList: true}); }"""
            )
        says(page, "#operator-result", "Late answer")
        assert page.evaluate("named.at(-1)").startswith("Robot r2.")
        assert not seen.faults()


def fail(answer: dict[str, Any] | None, route: Any) -> None:
    if answer is None:
        route.abort("failed")
    else:
        route.fulfill(**answer)


def test_what_is_not_known_is_not_called_undone(
    chromium: Any, running: Running, robot: Raw
) -> None:
    place = running.host.registry.places["r1"]
    estop, unknown = "**/v1/breakers/estop", "whether it was done is not known; look at the state."
    proxy = {"status": 502, "content_type": "text/html", "body": "<h1>Bad Gateway</h1>"}
    fault = {"status": 500, "json": {"error": {"name": "internal", "message": "see the log"}}}
    with opened(chromium, running.tcp) as (page, seen):
        page.click("#stop:enabled")
        for answer, told in ((None, "No answer"), (proxy, "status 502"), (fault, "see the log")):
            page.route(estop, functools.partial(fail, answer))
            page.click("#confirm-yes")
            says(page, "#confirm-error", f"{told}: {unknown}")
            page.unroute(estop)
        assert not place.stop_pressed
        page.click("#confirm-yes")  # again, in the same place
        page.wait_for_selector("#confirm", state="hidden")
        assert place.stop_pressed and not seen.faults()


def test_the_next_step_has_the_focus(chromium: Any, running: Running, robot: Raw) -> None:
    robot.acted(0)
    with opened(chromium, running.tcp) as (page, seen):
        sign(page)
        page.focus("#stop")
        page.keyboard.press("Enter")
        page.keyboard.press("Enter")
        page.wait_for_selector("#confirm", state="hidden")
        assert focused(page, "[data-action=release]")
        robot.acted(1)
        page.keyboard.press("Enter")
        page.click("#confirm-yes")
        page.wait_for_selector("#confirm", state="hidden")
        assert focused(page, "[data-action=reset]")
        assert not seen.faults()


def test_a_stop_of_a_robot_at_rest(chromium: Any, running: Running, robot: Raw) -> None:
    with opened(chromium, running.tcp) as (page, seen):
        page.click("#stop:enabled")
        page.click("#confirm-yes")
        says(page, "#stop", "Stop is pressed")
        says(page, "#state-text", "The emergency stop is pressed.")
        assert "policy drives" not in text(page, "#state-text")
        assert page.locator("#way [data-is=next]").get_attribute("data-step") == "release"
        assert not seen.faults()


@pytest.mark.parametrize("header", [None, "x-session-id", "x-robot"])
def test_a_fleet_finds_the_robot(chromium: Any, tmp_path: Path, header: str | None) -> None:
    options: dict[str, Any] = {"tcp": True, "token": TOKEN, "route_by": header}
    with service(tmp_path, [CanarySeat(), CanarySeat()], **options) as running:
        for name in ("r1", "r2"):
            own = {"Authorization": f"Bearer {TOKEN}", header or "x-session-id": name}
            http = httpx.Client(base_url=running.tcp, headers=own, trust_env=False)
            with http:
                assert http.post("/v1/reset", json={"robot": name}).status_code == 200
        with opened(chromium, running.tcp) as (page, seen):
            asked: list[Any] = []
            page.on("request", lambda one: asked.append((one.url, one.all_headers())))
            page.select_option("#robot", "r2")
            page.click("#stop")
            page.click("#confirm-yes")
            says(page, "#operator-result", "The emergency stop is pressed. Robot r2.")
            page.wait_for_selector("#link[data-link=live]")
            found = {path: h.get(header or "x-session-id") for url, h in asked
                     if (path := url.removeprefix(running.tcp))}  # fmt: skip
            assert found == {"/v1/live?robot=r2": "r2", "/v1/breakers/estop": "r2"}
            assert ("those of one process" in text(page, "#facts")) is (header is not None)
            page.goto(f"{running.tcp}/?robot=r2")
            says(page, "#stop", "Stop is pressed")
            assert not seen.faults()


def test_a_stop_gets_through_although_six_pages_look(
    chromium: Any, running: Running, robot: Raw
) -> None:
    with opened(chromium, running.tcp) as (page, seen):
        for _ in range(5):
            other = page.context.new_page()
            other.goto(f"{running.tcp}/")
            let_in(other, TOKEN)
        page.bring_to_front()
        page.wait_for_selector("#link[data-link=live]")
        page.click("#stop:enabled")
        page.click("#confirm-yes")
        says(page, "#operator-result", "The emergency stop is pressed.")
        assert running.host.registry.places["r1"].stop_pressed
        page.wait_for_selector("#link[data-link=live]")
        assert not seen.faults()


def test_a_token_that_cannot_be_one_is_not_sent(
    chromium: Any, running: Running, robot: Raw
) -> None:
    disengage(running)
    with opened(chromium, running.tcp) as (page, seen):
        page.fill("#operator-name", "A. Person")
        page.fill("#operator-token", f"{OPERATOR}\u2013x")
        page.click("[data-action=engage]:enabled")
        says(page, "#operator-result", "What was typed is no token")
        assert focused(page, "#operator-token") and page.is_hidden("#confirm")
        assert not seen.faults()
