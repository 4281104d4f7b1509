"""Where the native executor's weights lie: as asked, as told, and the same answers from there."""

from __future__ import annotations

import gc
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.runtime.models import drive, same, states, tiny
from wmrt.core import machine
from wmrt.core.errors import UnsupportedError, UsageError
from wmrt.kernels.native import library as lib
from wmrt.model.checkpoint import save_checkpoint
from wmrt.runtime import WorldModel
from wmrt.runtime.build import build_network, to_checkpoint
from wmrt.runtime.native_pages import HUGE, Arena

CPU = torch.device("cpu")
pytestmark = pytest.mark.skipif(not lib.PATH.exists(), reason="the native library is not built")
needs_huge = pytest.mark.skipif(
    machine.huge_pages() not in ("always", "madvise"), reason="no transparent huge pages here"
)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def stored(folder: Path, seed: int, recipe: str, layout: str | None) -> Path:
    checkpoint = tiny(seed)
    if layout is not None:
        built = build_network(checkpoint, recipe, CPU)
        checkpoint = to_checkpoint(built.network, built.recipe, {}, layout)
    save_checkpoint(folder, checkpoint, card="x")
    return folder


def native(folder: Path, **options: Any) -> WorldModel:
    return WorldModel.from_pretrained(folder, executor="native", threads=1, **options)


CASES: list[tuple[str, str | None, str, str]] = [
    ("nvfp4", "cpu_interleaved", "mapped", "read in place: no copy, shared by processes"),
    ("nvfp4", "canonical", "private", "weights are stored in layout canonical and were rearranged"),
    ("bf16", None, "mapped", "read in place"),
    ("nvfp4", None, "private", "weights were packed when they were loaded"),
]


@pytest.mark.parametrize(("recipe", "layout", "pages", "why"), CASES)
def test_auto_reads_in_place_what_it_can_and_says_so(
    recipe: str, layout: str | None, pages: str, why: str, tmp_path: Path, seed: int
) -> None:
    folder = stored(tmp_path / "c", seed, recipe, layout)
    report = native(folder, recipe=recipe).report()
    assert report.requested["pages"] == "auto" and report.resolved["pages"] == pages
    assert report.resolved["pages_reason"].startswith(why)
    if pages == "mapped":
        assert native(folder, recipe=recipe, pages="mapped").report().resolved["pages"] == "mapped"
        return
    with pytest.raises(UnsupportedError, match=r"native with pages=mapped cannot be had: weights"):
        native(folder, recipe=recipe, pages="mapped")


def test_a_checkpoint_in_memory_is_in_no_file(seed: int) -> None:
    model = WorldModel.from_checkpoint(tiny(seed), recipe="nvfp4", executor="native")
    resolved = model.report().resolved
    assert resolved["pages"] == "private" and "not in a file" in resolved["pages_reason"]


@needs_huge
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/maps")
@pytest.mark.parametrize(("recipe", "layout"), [case[:2] for case in CASES])
def test_huge_pages_hold_the_same_weights_and_the_file_is_given_up(
    recipe: str, layout: str | None, tmp_path: Path, seed: int
) -> None:
    folder = stored(tmp_path / "c", seed, recipe, layout)
    plain = native(folder, recipe=recipe)
    stream = states(plain.schema, 8, seed)
    expected = drive(plain, stream)
    held = plain.report().bytes
    del plain
    try:
        model = native(folder, recipe=recipe, pages="huge")
    except UnsupportedError as error:
        pytest.skip(str(error))
    resolved = model.report().resolved
    assert resolved["pages"] == "huge" and resolved["pages_reason"].startswith("asked for, ")
    gc.collect()
    file = folder / "model.safetensors"
    assert str(file.resolve()) not in Path("/proc/self/maps").read_text("utf-8")
    for mine, theirs in zip(drive(model, stream), expected, strict=True):
        assert same(mine, theirs)
    assert model.report().bytes == held
    if layout is not None:
        model.save_pretrained(tmp_path / "again", card="x")
        assert (tmp_path / "again" / file.name).read_bytes() == file.read_bytes()


def test_what_cannot_be_asked_for(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = tiny(seed)
    with pytest.raises(UsageError, match="pages 'small' is unknown; allowed: auto, mapped, huge"):
        WorldModel.from_checkpoint(checkpoint, pages="small")
    with pytest.raises(UsageError, match="pages=huge says where the native executor's weights"):
        WorldModel.from_checkpoint(checkpoint, executor="eager", pages="huge")
    monkeypatch.setattr(machine, "huge_pages", lambda: "never")
    with pytest.raises(UnsupportedError, match="transparent huge pages are never on this system"):
        WorldModel.from_checkpoint(checkpoint, pages="huge")
    with pytest.raises(UnsupportedError, match=r"executor=auto with pages=mapped cannot be had: "):
        WorldModel.from_checkpoint(checkpoint, pages="mapped")


@needs_huge
def test_the_arena_hands_out_copies_and_tells_what_it_got(tmp_path: Path, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    given = [
        torch.randn(3, 5, generator=generator).t(),
        torch.randint(255, (HUGE + 7,), dtype=torch.uint8, generator=generator),
        torch.tensor(1.5),
        torch.zeros(0, 4, dtype=torch.bfloat16),
    ]
    arena = Arena(HUGE + 1024)
    got = [arena.take(tensor) for tensor in given]
    for mine, theirs in zip(got, given, strict=True):
        assert torch.equal(mine, theirs) and (mine.shape, mine.dtype) == (
            theirs.shape,
            theirs.dtype,
        )
        assert mine.data_ptr() % 64 == 0
        assert not mine.numel() or mine.data_ptr() != theirs.data_ptr()
    told = arena.huge_bytes()
    assert told.bytes is None or told.bytes % HUGE == 0
    assert arena.huge_bytes(tmp_path / "absent").bytes is None
    (tmp_path / "other").write_text("0-1 r--p 00000000 00:00 0\nAnonHugePages: 4 kB\n")
    assert arena.huge_bytes(tmp_path / "other").bytes is None


_FILLED = """
import ctypes, sys, torch
from wmrt.runtime.native_pages import HUGE, Arena
if sys.argv[1] == "locked" and ctypes.CDLL(None).mlockall(2):
    raise SystemExit(3)
given = torch.arange(4 * HUGE, dtype=torch.int32).to(torch.uint8)
arena = Arena(given.nbytes)
got = arena.take(given)
arena.collapse()
assert torch.equal(got, given)
print(arena.huge_bytes().bytes)
"""


def _filled(how: str) -> int:
    """Bytes in huge pages of an arena that a fresh process fills."""
    run = subprocess.run(
        [sys.executable, "-c", _FILLED, how], capture_output=True, text=True, check=False
    )
    if run.returncode == 3:
        pytest.skip("this process may not lock its memory (ulimit -l)")
    assert run.returncode == 0, run.stderr
    return int(run.stdout)


@needs_huge
@pytest.mark.skipif(
    [int(n) for n in re.findall(r"\d+", platform.release())[:2]] < [6, 1],
    reason="small pages are joined by Linux 6.1 and newer",
)
def test_memory_locked_from_the_start_gets_huge_pages_too() -> None:
    if _filled("free") == 0:
        pytest.skip("the system has no huge page to give")
    assert _filled("locked") > 0
