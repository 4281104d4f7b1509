"""``wmrt bench --pages``: arms that differ in where their weights lie."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.calls import line, run
from wmrt.cli.benching.fresh import subject_of
from wmrt.cli.benching.request import Request
from wmrt.cli.benching.subject import stand
from wmrt.cli.main import main
from wmrt.core import machine
from wmrt.runtime.bench.outcome import label

QUICK = ("--threads", "1", "--steps", "12", "--rounds", "2", "--no-cold", "--no-memory")
needs_huge = pytest.mark.skipif(
    machine.huge_pages() not in ("always", "madvise"), reason="no transparent huge pages here"
)


@pytest.fixture(autouse=True)
def small_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """A floor's buffer of 10 MiB."""
    monkeypatch.setattr(machine, "last_level_cache_bytes", lambda: 2**20)


def request_of(folder: Path) -> Request:
    executors = ("native", "eager")
    return Request(
        *(str(folder), None, ("nvfp4",), executors, (1,), (1,), (None,), None, None),
        pages=("auto", "huge"),
    )


@needs_huge
def test_arms_differ_in_their_pages(folder: Path, tmp_path: Path) -> None:
    arguments = ("--recipe", "nvfp4", "--executor", "native", "--pages", "auto", "--pages", "huge")
    document = run(tmp_path / "r.json", "bench", str(folder), *QUICK, *arguments)
    arms = document["results"]["arms"]
    assert [arm["pages"] for arm in arms] == ["auto", "huge"]
    told = [arm["detail"]["report"]["resolved"]["pages"] for arm in arms]
    assert told == ["private", "huge"]
    (ratio,) = document["results"]["ratios"]
    assert (
        ratio["comparable"]
        and ratio["arm"].endswith(", huge pages")
        and ratio["to"] != ratio["arm"]
    )


@needs_huge
def test_fresh_processes_are_asked_for_the_same(folder: Path) -> None:
    request = request_of(folder)
    assert [arm[0] + arm[3] for arm in request.arms()] == ["nativeauto", "nativehuge", "eagerauto"]
    with stand(request, lambda text: None) as made:
        assert [subject_of(one, request).pages for one in made.lines] == ["auto", "huge", "auto"]
        assert label(made.lines[1].arm, made.lines[1].work) == "native nvfp4, 1 thread, huge pages"


def test_other_pages_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "'small' is not one of" in line(capsys, "bench", str(folder), "--pages", "small")
    assert main(("bench", str(folder), *QUICK, "--recipe", "nvfp4", "--pages", "mapped")) == 2
    assert "weights were packed when they were loaded" in capsys.readouterr().err
