"""What the writing thread writes, and how it stops: disks, files and processes that end."""

from __future__ import annotations

import random
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.control.recording.drives import Habit, controller, items, noise, plain_drive
from tests.control.stalls import until
from tests.control.support import STATE, FakePolicy, answer
from wmrt.control.recording import FileRecorder
from wmrt.control.recording.reader import Recording
from wmrt.control.recording.replay import replay
from wmrt.control.recording.topics import GAPS, STEPS
from wmrt.core.errors import UsageError
from wmrt.runtime.bench.flat import flatness


@pytest.fixture
def small_disk() -> Iterator[None]:
    """No file of this process may grow beyond 60 000 bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_is_full_stops_recording_and_not_the_loop(
    small_disk: None, seed: int, tmp_path: Path
) -> None:
    rng = random.Random(seed)
    recorder = FileRecorder(tmp_path / "a.mcap", flush=0.05)
    made = controller(recorder)
    made.act(STATE)
    until(lambda: recorder.stats()["bytes"] > 0)  # on a busy machine all of it came as one chunk
    steps = 1
    while recorder.stats()["stopped"] is None:
        made.act(noise(rng))
        steps += 1
        time.sleep(0.0005)  # as any loop does: the writing thread is to keep up
        assert steps < 20_000
    for _ in range(50):
        made.act(STATE)
    recorder.close()
    stats = recorder.stats()
    assert "File too large" in stats["stopped"] and str(tmp_path / "a.mcap") in stats["stopped"]
    assert stats["dropped"] == 0 and stats["steps"] + stats["lost"] == steps + 50
    assert made.stats()["record_failures"] == 0 and made.last is not None
    assert (tmp_path / "a.mcap").stat().st_size <= 60_000
    report = replay(Recording(tmp_path / "a.mcap"), Habit(0.0))
    assert report.difference is None and not report.identical and "it has no end" in report.said()
    # What is counted as written is in it. So may be all of the chunk that met the end of the disk:
    # after its messages comes an index, and that alone may be what did not fit.
    assert 0 < stats["steps"] <= report.steps <= steps


@pytest.mark.parametrize("what", ["gone", "replaced", "folder"])
def test_a_file_that_vanishes_stops_recording(what: str, tmp_path: Path) -> None:
    path = tmp_path / "rec" / "a.mcap"
    path.parent.mkdir()
    recorder = FileRecorder(path, flush=0.05)
    made = controller(recorder)
    made.act(STATE)
    until(lambda: recorder.stats()["bytes"] > 0)
    path.unlink()
    if what == "replaced":
        path.write_bytes(b"something else")
    if what == "folder":
        path.parent.rmdir()
    until(lambda: made.act(STATE) is not None and recorder.stats()["stopped"] is not None)
    made.act(STATE)
    recorder.close()
    said = "another file has taken its place" if what == "replaced" else "No such file"
    assert said in recorder.stats()["stopped"]
    assert recorder.stats()["lost"] >= 1 and made.stats()["record_failures"] == 0
    if what == "replaced":
        assert path.read_bytes() == b"something else"


def test_an_entry_that_cannot_be_encoded_leaves_a_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from wmrt.control.recording import messages

    made_of = messages.step_message

    def fails(outcome: Any, inputs: Any) -> Any:
        if outcome.step == 3:
            raise RecursionError
        return made_of(outcome, inputs)

    monkeypatch.setattr(messages, "step_message", fails)
    plain_drive(tmp_path / "a.mcap", [STATE] * 5)
    topics = [item.topic for item in items(tmp_path / "a.mcap")]
    assert topics == [STEPS, STEPS, GAPS, STEPS, STEPS]
    gap = items(tmp_path / "a.mcap", GAPS)[0].message
    assert gap["reason"] == "step 3 could not be encoded: RecursionError"


def test_a_part_that_is_in_the_way_stops_recording(tmp_path: Path) -> None:
    recorder = FileRecorder(tmp_path / "a.mcap", part_chunks=1, flush=0.02)
    (tmp_path / "a.2.mcap").write_bytes(b"old")
    made = controller(recorder)
    until(lambda: made.act(STATE) is not None and recorder.stats()["stopped"] is not None)
    recorder.close()
    assert "File exists" in recorder.stats()["stopped"]
    assert (tmp_path / "a.2.mcap").read_bytes() == b"old"


def test_a_process_that_ends_without_closing_leaves_a_whole_file(tmp_path: Path) -> None:
    code = f"""
from tests.control.recording.drives import noise, controller
from tests.control.support import STATE
from wmrt.control.recording import FileRecorder
made = controller(FileRecorder({str(tmp_path / "a.mcap")!r}))
for _ in range(20):
    made.act(STATE)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    assert replay(Recording(tmp_path / "a.mcap"), Habit(0.0)).identical


def test_a_process_that_is_killed_leaves_what_was_flushed(tmp_path: Path) -> None:
    code = f"""
import os, signal
from tests.control.recording.drives import noise, controller
from tests.control.stalls import until
from tests.control.support import STATE
from wmrt.control.recording import FileRecorder
recorder = FileRecorder({str(tmp_path / "a.mcap")!r}, flush=0.05)
made = controller(recorder)
for _ in range(20):
    made.act(STATE)
until(lambda: recorder.stats()["bytes"] > 0)
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", code], check=False, timeout=120)
    report = replay(Recording(tmp_path / "a.mcap"), Habit(0.0))
    assert 0 < report.steps <= 20 and report.difference is None
    assert not report.complete and "it has no end" in report.said()


class Forgetful:
    """A policy that keeps nothing."""

    schema, actions = FakePolicy.schema, FakePolicy.actions

    def reset(self) -> None:
        """Nothing to forget."""

    def step(self, state: Any, previous: Any) -> Any:
        return answer([0.1, 0.1])


@pytest.mark.full
def test_memory_is_flat_over_100_000_steps(tmp_path: Path) -> None:
    """By the process's own resident bytes, as `wmrt bench` judges it; the ring is never full."""
    page = resource.getpagesize()
    recorder = FileRecorder(tmp_path / "a.mcap", part_chunks=16)
    made, rng = controller(recorder, Forgetful()), random.Random(1)

    def step() -> None:
        made.act(noise(rng))
        while len(recorder._ring) > 200:
            time.sleep(0.001)

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * page

    found = flatness(step, resident, 100_000)
    recorder.close()
    assert found["verdict"] == "flat", found
    assert recorder.stats()["steps"] == 200_000 and recorder.stats()["dropped"] == 0
    assert recorder.stats()["files"] > 5


def test_a_disk_that_is_full_from_the_start_is_an_error_when_it_is_attached(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    recorder = FileRecorder(tmp_path / "a.mcap")
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, hard))
    try:
        with pytest.raises(UsageError, match=r"a\.mcap cannot be written: File too large"):
            controller(recorder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        recorder.close()
