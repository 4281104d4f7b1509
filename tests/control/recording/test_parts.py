"""The files of a recording: chunks, parts, and memory that stays flat however long it goes on."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from wmrt.control.recording.parts import PartWriter, part_path
from wmrt.control.recording.reader import Recording
from wmrt.control.recording.topics import STEPS


def writer(path: Path, **options: int) -> PartWriter:
    made = PartWriter(path, **options)
    made.start({"format": "1", "recording": "r"})
    return made


def growth(path: Path, part_chunks: int) -> float:
    """Bytes that a chunk leaves behind, over the last 600 of 900."""
    made, seen = writer(path, part_chunks=part_chunks), []
    tracemalloc.start()
    try:
        for chunk in range(900):
            made.write(STEPS, '{"step": 1}', chunk, 0)
            made.flush()
            if chunk % 100 == 99:
                seen.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    made.end({})
    return (seen[-1] - seen[2]) / 600


def test_memory_is_flat_because_files_end(tmp_path: Path) -> None:
    """An MCAP writer keeps an index entry for every chunk; this is what would show if ours did."""
    assert growth(tmp_path / "one.mcap", 10**9) > 400
    assert growth(tmp_path / "many.mcap", 10) < 20
    assert part_path(tmp_path / "many.mcap", 90).is_file()
    recording = Recording(tmp_path / "many.mcap")
    assert len(list(recording.items())) == 900 and recording.end == {}


def test_names_of_parts() -> None:
    assert part_path(Path("x/a.mcap"), 1) == Path("x/a.mcap")
    assert part_path(Path("x/a.b.mcap"), 12) == Path("x/a.b.12.mcap")


def test_log_times_never_decrease_and_fit_the_format(tmp_path: Path) -> None:
    from mcap.reader import make_reader

    made = writer(tmp_path / "a.mcap")
    for now in (5, -3, 7, 2, 10**30, 8):
        made.write(STEPS, "{}", now, 2**40 + now)
    made.end({})
    with open(tmp_path / "a.mcap", "rb") as file:
        times = [m.log_time for _, _, m in make_reader(file).iter_messages(log_time_order=False)]
    assert times == [5, 5, 7, 7, 2**63 - 1, 2**63 - 1]


def test_a_chunk_is_full_when_it_has_grown(tmp_path: Path) -> None:
    made = writer(tmp_path / "a.mcap")
    assert not made.full
    made.write(STEPS, " " * PartWriter.CHUNK_BYTES, 0, 0)
    assert made.full
    made.flush()
    assert not made.full and made.bytes == (tmp_path / "a.mcap").stat().st_size
    made.abandon()
    made.abandon()


@pytest.mark.parametrize("count", [0, 1])
def test_a_recording_that_ends_at_once(count: int, tmp_path: Path) -> None:
    made = writer(tmp_path / "a.mcap")
    for _ in range(count):
        made.write(STEPS, "{}", 0, 0)
    made.end({"steps": str(count)})
    recording = Recording(tmp_path / "a.mcap")
    assert len(list(recording.items())) == count
    assert recording.end == {"steps": str(count)}
