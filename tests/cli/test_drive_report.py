"""The report page and the film."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.drive_doubles import Scripted, Straight, outcome
from wmrt.cli.driving.episode import drive_episode
from wmrt.cli.driving.picture import page
from wmrt.cli.driving.reel import caption
from wmrt.cli.driving.stand import Account, Stand
from wmrt.cli.driving.summary import Tally
from wmrt.cli.report.page import render, write_report

pytest.importorskip("PIL", reason="pip install 'wmrt[drive]'")
from PIL import Image

from wmrt.cli.report.film import CAPTION, Film

HOSTILE = "</script><script>document.title='taken'</script> <!-- \u2028 {{style}} {{data}}"


def document(controlled: bool = True) -> dict[str, Any]:
    tally = Tally()
    changes: dict[str, Any] = {} if controlled else {"state": None, "late": None}
    for seed in (3, 4):
        outcomes = [outcome(1.0 + n, **changes) for n in range(4)]
        arm = Scripted(outcomes, controlled)
        tally.add(drive_episode(Straight(crash=seed == 4), arm, seed))
    levels = (0, 1, 2, 3) if controlled else ()
    stand = Stand(Straight(), Scripted([]), Account(levels))
    results = {
        "seeds": [3, 4],
        "summary": tally.summary(jobs=1, resident_bytes=None),
        "episodes": tally.rows(),
        "run": {"levels": list(levels)},
    }
    return page(stand, tally, "A title", ["a note", HOSTILE], [("kernels", HOSTILE)], results)


def embedded(html: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found.group(1))
    return data


def test_page_carries_its_data_whatever_is_in_it() -> None:
    expected = document()
    html = render(expected)
    assert embedded(html) == json.loads(json.dumps(expected))
    assert html.count("<script") == 2 and html.count("</script>") == 2


def test_page_needs_nothing_else() -> None:
    html = render({**document(), "notes": [], "facts": []})
    addresses = set(re.findall(r"https?://[^\s\"'<>)]+", html))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a name, never fetched
    assert not re.search(r"\b(?:src|href|@import|url\(|fetch\(|XMLHttpRequest)", html)
    assert "{{" not in html
    assert "prefers-color-scheme: dark" in html and 'name="viewport"' in html


def test_page_refuses_what_json_cannot_hold() -> None:
    with pytest.raises(ValueError, match="JSON"):
        render({"x": float("nan")})


@pytest.mark.full
@pytest.mark.parametrize("controlled", [True, False])
def test_page_fills_itself_in_a_browser(tmp_path: Path, controlled: bool) -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no chromium; run: make setup-system")
    write_report(tmp_path / "report.html", document(controlled))
    done = subprocess.run(
        [
            *(chromium, "--headless=new", "--no-sandbox", "--disable-gpu"),
            *(f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=2000"),
            *("--dump-dom", f"file://{tmp_path / 'report.html'}"),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    html = done.stdout
    assert "<title>A title</title>" in html
    assert html.count('<tr data-seed="') == 2 and html.count("<polyline") == 4
    assert html.count('class="tile"') == 7 and 'class="bin"' in html
    assert ('class="closed"' in html) is controlled
    assert ">0.0 s</output>" in html  # the replay stands at its start, so nothing failed before


def test_film_keeps_every_frame_and_a_colour_that_comes_last(tmp_path: Path) -> None:
    film = Film(0.1)
    for n in range(23):
        frame = np.full((40, 120, 3), 100, np.uint8)
        frame[10:20, 4 * n : 4 * n + 10] = (200, 200, 0)
        if n == 22:
            frame[30:36, 50:60] = (255, 20, 20)
        film.add(frame, f"{n} s")
    assert len(film) == 23
    size = film.save(tmp_path / "f.gif")
    assert size == (tmp_path / "f.gif").stat().st_size
    with Image.open(tmp_path / "f.gif") as gif:
        assert (gif.n_frames, gif.size) == (23, (120, 40 + CAPTION))  # type: ignore[attr-defined]
        assert gif.info["duration"] == 100 and gif.info["loop"] == 0
        gif.seek(22)
        last = np.asarray(gif.convert("RGB"))
    assert last[33, 55].tolist() == [255, 20, 20] and last[15, 90].tolist() == [200, 200, 0]


def test_film_without_frames_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one frame"):
        Film(0.1).save(tmp_path / "f.gif")


def test_caption_says_where_the_action_came_from() -> None:
    env = Straight()
    env.n = 3
    text = caption(env, 12, outcome(tripped=(2,), source="fallback", state="half_open"))
    assert text == (
        " 1.2 s    83 km/h   steering +0.030 rad   acceleration -2.5 m/s^2   breakers half open   "
        "action: fallback   trip at level 2"
    )
    assert caption(env, 0, outcome(state=None)).endswith("m/s^2")
