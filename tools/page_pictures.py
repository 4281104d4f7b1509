"""Pictures of the service's live page while the shipped model drives: benchmarks/page.

    python tools/page_pictures.py --out benchmarks/page

Needs Chromium and playwright (`make setup-system`). A car drives by the service for about a minute
behind sensors that fail now and then; then its emergency stop is pressed on the page itself.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import gymnasium

import wmrt.envs  # noqa: F401  # registers them
from wmrt.cli.common import console
from wmrt.client import connect
from wmrt.core.errors import UsageError
from wmrt.core.extras import require
from wmrt.service.crew import load_crew
from wmrt.service.server import Server, addresses, listening
from wmrt.service.settings import read_settings

TOKEN, OPERATOR = "token-of-this-service", "token-of-its-operator"
ROBOT = "highway-car-7"
SIZES = {"desktop": (1360, 1490), "phone": (390, 844)}
ARGUMENTS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync"
).split()
#: Colours of a picture: a page is flat, and a file a fifth the size.
COLOURS = 128


@contextlib.contextmanager
def serving(folder: Path, recipe: str) -> Iterator[str]:
    """The shipped model behind its service, in a thread; its address over HTTP."""
    settings = read_settings(
        recipe=recipe,
        socket=folder / "wmrt.sock",
        port=0,
        token=TOKEN,
        operator_token=OPERATOR,
        threads=1,
    )
    with listening(settings) as sockets:
        server = Server(load_crew(settings), settings)
        thread = threading.Thread(target=server.run_on, args=(sockets,))
        thread.start()
        try:
            (address,) = (a for a in addresses(sockets, settings) if a.startswith("ws:"))
            yield address.replace("ws:", "http:")
        finally:
            server.should_exit = True
            thread.join()


def drive(folder: Path, until: threading.Event) -> None:
    """A car on a highway in real time, with sensors that fail every so often."""
    env = gymnasium.make("wmrt/HighwayOccluded-v0")
    info = env.reset(seed=3)[1]
    with connect(f"unix:{folder / 'wmrt.sock'}", ROBOT, token=TOKEN, opening=60.0) as robot:
        step, at = 0, time.monotonic()
        while not until.is_set():
            answer = robot.act(failing(dict(info["state"]), step), deadline=5.0)
            _, _, ended, cut, info = env.step(answer.action)
            if ended or cut:
                info = env.reset(seed=step)[1]
            step, at = step + 1, max(at + 0.1, time.monotonic())
            time.sleep(max(0.0, at - time.monotonic()))
    env.close()


def failing(state: dict[str, Any], step: int) -> dict[str, Any]:
    """``state`` as failing sensors would have it."""
    moment = step % 400
    if moment >= 330:
        state["front_gap"] = float("nan")
    if 300 <= moment < 306:
        state["ego_speed"] = None
    if moment >= 380:
        state["rear_dv"] = 24.5
    return state


class Photographer:
    """Takes pictures of one page after the other."""

    def __init__(self, chromium: Any, address: str, out: Path) -> None:
        self._chromium, self._address, self._out = chromium, address, out

    @contextlib.contextmanager
    def page(self, size: str, scheme: str) -> Iterator[Any]:
        width, height = SIZES[size]
        context = self._chromium.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme
        )
        page = context.new_page()
        page.goto(f"{self._address}/")
        page.fill("#login-token", TOKEN)
        page.keyboard.press("Enter")
        page.wait_for_selector("#link[data-link=live]")
        page.wait_for_timeout(2000)
        yield page
        context.close()

    def take(self, page: Any, name: str) -> None:
        from PIL import Image

        path = self._out / f"{name}.png"
        page.screenshot(path=path)
        with Image.open(path) as picture:
            small = picture.convert("RGB").quantize(
                COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE
            )
        small.save(path, optimize=True)
        console().print(f"{path}: {path.stat().st_size} bytes", markup=False)


def photograph(camera: Photographer) -> None:
    """Driving, in light and dark; then stopped by hand."""
    with camera.page("desktop", "light") as page:
        camera.take(page, "driving-desktop-light")
    with camera.page("phone", "dark") as page:
        camera.take(page, "driving-phone-dark")
    with camera.page("desktop", "dark") as page:
        page.fill("#operator-name", "A. Person")
        page.click("#stop")
        page.wait_for_timeout(500)
        camera.take(page, "confirm-desktop-dark")
        page.click("#confirm-yes")
        page.wait_for_timeout(3000)
        camera.take(page, "latched-desktop-dark")
    with camera.page("phone", "light") as page:
        camera.take(page, "latched-phone-light")
        page.evaluate("document.querySelector('.time').scrollIntoView()")
        page.wait_for_timeout(500)
        camera.take(page, "timeline-phone-light")


@click.command()
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), required=True)
@click.option("--recipe", default="nvfp4", show_default=True)
@click.option("--seconds", default=38.0, show_default=True, help="Of driving before the first one.")
def main(out: Path, recipe: str, seconds: float) -> None:
    """Pictures of the live page."""
    sync_api = require("playwright.sync_api", "browser")
    chromium = shutil.which("chromium")
    if chromium is None:
        raise UsageError("no chromium; run: make setup-system")
    out.mkdir(parents=True, exist_ok=True)
    stopped = threading.Event()
    with tempfile.TemporaryDirectory() as name, serving(Path(name), recipe) as address:
        driver = threading.Thread(target=drive, args=(Path(name), stopped))
        driver.start()
        try:
            with sync_api.sync_playwright() as playwright:
                own = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
                time.sleep(seconds)
                photograph(Photographer(own, address, out))
                own.close()
        finally:
            stopped.set()
            driver.join()


if __name__ == "__main__":
    main()
