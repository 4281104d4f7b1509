"""A browser on the live page, which remembers all that a person would not see."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

sync_api = pytest.importorskip(
    "playwright.sync_api", reason="no playwright; run: make setup-system"
)

CHROMIUM = shutil.which("chromium")
ARGUMENTS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
#: Milliseconds to wait for what takes one of them on a quiet machine.
PATIENCE = 60_000
DESKTOP, PHONE = (1360, 900), (390, 844)
TOKEN, OPERATOR = "client-" + "t" * 16, "operator-" + "o" * 16


@dataclass
class Seen:
    """What a page did besides being looked at.

    Attributes:
        said: errors and warnings on its console, and errors that nothing caught.
        asked: addresses of its requests.
    """

    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def faults(self) -> list[str]:
        """Without what the browser itself says of an answer that is a refusal, or none."""
        return [text for text in self.said if not text.startswith("Failed to load resource")]


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """Chromium; the test skips where it is not."""
    if CHROMIUM is None:
        pytest.skip("no chromium; run: make setup-system")
    with sync_api.sync_playwright() as own:
        made = own.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS, timeout=PATIENCE)
        try:
            yield made
        finally:
            made.close()


@contextlib.contextmanager
def opened(
    chromium: Any,
    address: str,
    token: str | None = TOKEN,
    size: tuple[int, int] = DESKTOP,
    scheme: str = "light",
    **options: Any,
) -> Iterator[tuple[Any, Seen]]:
    """The page at ``address``, let in with ``token`` if it is one."""
    width, height = size
    context = chromium.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, **options
    )
    context.set_default_timeout(PATIENCE)
    page, seen = context.new_page(), Seen()
    page.on("request", lambda request: seen.asked.append(request.url))
    page.on("pageerror", lambda error: seen.said.append(str(error)))
    page.on(
        "console",
        lambda message: (
            seen.said.append(message.text) if message.type in ("error", "warning") else None
        ),
    )
    try:
        page.goto(f"{address}/")
        if token is not None:
            let_in(page, token)
        yield page, seen
    finally:
        context.close()


def let_in(page: Any, token: str) -> None:
    """Type the token, and wait for data."""
    page.wait_for_selector("#login[open]")
    page.fill("#login-token", token)
    page.keyboard.press("Enter")
    page.wait_for_selector("#link[data-link=live]")


def says(page: Any, selector: str, text: str) -> None:
    """Wait until an element has ``text`` in it."""
    sync_api.expect(page.locator(selector)).to_contain_text(text, timeout=PATIENCE)


def text(page: Any, selector: str) -> str:
    """The text of an element, now."""
    found: str = page.text_content(selector)
    return found
