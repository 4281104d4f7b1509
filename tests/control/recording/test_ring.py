"""The ring between the loop and the writing thread: full, it drops and counts and never waits."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.control.recording.drives import Habit, controller, items
from tests.control.stalls import until
from tests.control.support import STATE
from wmrt.control.recording import FileRecorder
from wmrt.control.recording.log import Log
from wmrt.control.recording.reader import Recording
from wmrt.control.recording.replay import replay
from wmrt.control.recording.topics import GAPS, STEPS
from wmrt.core import machine


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A disk that takes nothing until the event is set."""
    go, write = threading.Event(), Log.write

    def waits(self: Log, entry: Any) -> None:
        go.wait(30)
        write(self, entry)

    monkeypatch.setattr(Log, "write", waits)
    yield go
    go.set()


@pytest.mark.parametrize("later", [2, 0])
def test_a_ring_that_is_full_drops_and_counts_and_never_waits(
    stuck: threading.Event, tmp_path: Path, later: int
) -> None:
    """What is dropped is told before the ``later`` steps, or at the very end."""
    recorder = FileRecorder(tmp_path / "a.mcap", capacity=8)
    made = controller(recorder)
    for _ in range(3):
        made.act(STATE)
    until(lambda: recorder.stats()["waiting"] == 2)  # the writing thread holds the first
    for _ in range(20):
        made.act(STATE)
    assert recorder.stats()["dropped"] == 14 and recorder.stats()["waiting"] == 8
    stuck.set()
    if later:
        until(lambda: recorder.stats()["waiting"] == 0)
    for _ in range(later):
        made.act(STATE)
    recorder.close()
    told = [(topic, m.get("step")) for topic, m in items(tmp_path / "a.mcap")]
    kept = [(STEPS, n) for n in range(1, 10)]
    assert told == [*kept, (GAPS, None), *((STEPS, n) for n in range(24, 24 + later))]
    gap = items(tmp_path / "a.mcap", GAPS)[0].message
    assert gap == {"after_step": 9, "missing": 14, "reason": "the ring was full"}
    report = replay(Recording(tmp_path / "a.mcap"), Habit(0.0))
    assert (report.steps, report.identical) == (9, False)
    assert report.gap == "14 missing after step 9: the ring was full"
    recording = Recording(tmp_path / "a.mcap")
    list(recording.items())
    assert recording.end is not None and int(recording.end["dropped"]) == 14
    assert made.stats()["record_failures"] == 0


@pytest.mark.skipif(machine.realtime_refusal() is not None, reason="no real-time threads here")
def test_the_writing_thread_is_no_real_time_thread(tmp_path: Path) -> None:
    """Though the one that started it is."""
    seen = []

    def start() -> None:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        with FileRecorder(tmp_path / "a.mcap") as recorder:
            controller(recorder)
            thread = recorder._thread
            assert thread is not None and thread.daemon and thread.native_id is not None
            own = thread.native_id
            until(lambda: os.sched_getscheduler(own) == os.SCHED_OTHER)
            seen.append(os.sched_getscheduler(0))

    loop = threading.Thread(target=start)
    loop.start()
    loop.join()
    assert seen == [os.SCHED_FIFO]


@pytest.mark.parametrize("before", [False, True])
def test_a_stop_pressed_in_another_thread_while_a_step_runs(before: bool, tmp_path: Path) -> None:
    """Or pressed once more then."""
    pressed = threading.Event()

    class Slow(Habit):
        def step(self, state: Any, previous: Any) -> Any:
            if not pressed.is_set():
                thread = threading.Thread(target=lambda: (made.estop(), pressed.set()))
                thread.start()
                thread.join()
            return super().step(state, previous)

    with FileRecorder(tmp_path / "a.mcap") as recorder:
        made = controller(recorder, Slow(0.0))
        if before:
            made.estop()
        made.act(STATE)
        made.act(STATE)
    steps = [message for _, message in items(tmp_path / "a.mcap", STEPS)]
    assert [step["inputs"]["estop"] for step in steps] == ["both" if before else "decide", ""]
    assert steps[0]["after"] == "latched"
    assert replay(Recording(tmp_path / "a.mcap"), Habit(0.0)).identical
