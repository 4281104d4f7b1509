"""The recorder: what stands in the file, what may fail, and that the loop notices none of it."""

from __future__ import annotations

import json
import os
import random
import resource
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mcap.reader import make_reader

from tests.control.recording.drives import Habit, items, plain_drive, storm
from tests.control.stalls import until
from tests.control.support import PERIOD, STATE, FakePolicy, FakeTimer, answer, constant
from wmrt.control import Controller, StepClock
from wmrt.control.recording import FileRecorder
from wmrt.control.recording.log import Log
from wmrt.control.recording.reader import Recording
from wmrt.control.recording.replay import replay
from wmrt.control.recording.topics import COMMANDS, END, EVENTS, GAPS, HEAD, SCHEMAS, STEPS
from wmrt.core import extras, machine
from wmrt.core.errors import MissingExtraError, UsageError
from wmrt.runtime.bench.flat import flatness


def controller(recorder: FileRecorder | None, policy: Any = None) -> Controller:
    """In good weather, on simulated time."""
    clock = StepClock(PERIOD)
    policy = policy or Habit(0.0)
    return Controller(policy, PERIOD, recorder=recorder, clock=clock, timer=FakeTimer())


KINDS: dict[str, Any] = {
    "object": dict, "array": list, "string": str, "boolean": bool, "null": type(None),
    "integer": int, "number": (int, float),
}  # fmt: skip


def conforms(value: Any, schema: dict[str, Any]) -> bool:
    """The part of JSON Schema that ours use."""
    types = schema.get("type", list(KINDS))
    types = [types] if isinstance(types, str) else types
    if isinstance(value, bool):
        types = [name for name in types if name == "boolean"]
    if not any(isinstance(value, KINDS[name]) for name in types):
        return False
    if value not in schema.get("enum", [value]):
        return False
    if "minimum" in schema and value < schema["minimum"]:
        return False
    if isinstance(value, list):
        return all(conforms(part, schema.get("items", {})) for part in value)
    if isinstance(value, dict):
        parts = schema.get("properties", {}).items()
        present = all(key in value for key in schema.get("required", ()))
        return present and all(conforms(value[key], part) for key, part in parts if key in value)
    return True


def test_the_package_s_own_reader_reads_it(seed: int, tmp_path: Path) -> None:
    counts = storm(tmp_path / "a.mcap", seed, 300)
    with open(tmp_path / "a.mcap", "rb") as file:
        reader = make_reader(file, validate_crcs=True)
        summary = reader.get_summary()
        assert summary is not None and summary.statistics is not None
        assert {c.topic: c.message_encoding for c in summary.channels.values()} == dict.fromkeys(
            (STEPS, EVENTS, COMMANDS, GAPS), "json"
        )
        for schema in summary.schemas.values():
            assert schema.encoding == "jsonschema"
            assert json.loads(schema.data)["type"] == "object"
        assert summary.statistics.message_count == sum(
            counts[kind] for kind in ("steps", "events", "commands", "gaps")
        )
        times = []
        for schema, channel, message in reader.iter_messages():
            data = json.loads(message.data, parse_constant=pytest.fail)  # no NaN, no Infinity
            assert schema is not None and schema.name == SCHEMAS[channel.topic]["title"]
            assert conforms(data, SCHEMAS[channel.topic]), (channel.topic, data)
            times.append(message.log_time)
        assert times == sorted(times)
        names = [metadata.name for metadata in reader.iter_metadata()]
        assert names == [HEAD, END]
    tail = Recording(tmp_path / "a.mcap")
    assert len(list(tail.items())) == len(times) and tail.end is not None
    assert tail.end["steps"] == "300" and tail.end["dropped"] == "0"


def test_a_schema_is_not_met_by_anything() -> None:
    good = items_of_one_step()
    assert conforms(good, SCHEMAS[STEPS])
    for key, wrong in [("step", -1), ("after", "fine"), ("late", 0), ("action", [None])]:
        assert not conforms({**good, key: wrong}, SCHEMAS[STEPS])
    assert not conforms({k: v for k, v in good.items() if k != "digest"}, SCHEMAS[STEPS])


def items_of_one_step() -> dict[str, Any]:
    return {
        "step": 1, "now_ns": 5, "action": [0.5], "source": "policy", "before": "closed",
        "after": "closed", "tripped": [], "late": False, "policy_ns": 3, "act_ns": 4,
        "observation": {}, "captured_ns": None, "inputs": {}, "digest": "0",
    }  # fmt: skip


def test_every_step_event_and_command_is_in_it(tmp_path: Path) -> None:
    with FileRecorder(tmp_path / "a.mcap", facts={"seed": "7"}) as recorder:
        made = controller(recorder, constant(0.25, -0.125))
        made.act(STATE)
        made.act({"state": {**STATE, "gap": float("nan")}})
        made.disengage()
        made.act(None, "yesterday")
        made.engage("Ada", [0.1, 0.0])
        made.reset()
        made.estop()
        made.act(STATE)
    held = made.breakers.events.snapshot()
    steps = [message for _, message in items(tmp_path / "a.mcap", STEPS)]
    assert [step["step"] for step in steps] == [1, 2, 3, 4]
    assert steps[0]["action"] == [0.25, -0.125] and steps[0]["source"] == "policy"
    assert steps[0]["observation"] == STATE
    assert steps[1]["observation"] == {"state": {**STATE, "gap": {"$": "float", "value": "nan"}}}
    assert (steps[2]["observation"], steps[2]["captured_ns"]) == (None, "yesterday")
    assert steps[3]["inputs"]["estop"] == "begin" and steps[3]["after"] == "latched"
    events = [message for _, message in items(tmp_path / "a.mcap", EVENTS)]
    assert [event["cause"] for event in events] == [event.cause.value for event in held]
    assert len(held) == recorder.stats()["events"] > 5
    commands = [message for _, message in items(tmp_path / "a.mcap", COMMANDS)]
    told = {command["name"]: command for command in commands}
    assert told["engage"]["arguments"]["operator"] == "Ada"
    assert told["engage"]["arguments"]["measured"] == [0.1, 0.0]
    assert told["estop"]["arguments"] == {"pressed": True} and told["estop"]["after_step"] == 3
    assert {"disengage", "engage", "reset", "estop"} == told.keys()
    head = Recording(tmp_path / "a.mcap").head
    assert head["seed"] == "7" and head["limits_hash"] == made.breakers.limits.hash
    assert json.loads(head["limits"]) == json.loads(json.dumps(made.breakers.limits.to_json()))
    assert json.loads(head["controller"])["max_chunk_age"] == 3
    assert json.loads(head["versions"])["wmrt"]


def test_a_recorder_changes_nothing_that_is_sent(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    observations = [{**STATE, "speed": 20 + rng.random()} for _ in range(50)]
    with FileRecorder(tmp_path / "a.mcap") as recorder:
        recorded, alone = controller(recorder), controller(None)
        for obs in observations:
            assert recorded.act(obs).tobytes() == alone.act(obs).tobytes()


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


def test_a_ring_that_is_full_drops_and_counts_and_never_waits(
    stuck: threading.Event, tmp_path: Path
) -> None:
    recorder = FileRecorder(tmp_path / "a.mcap", capacity=8)
    made = controller(recorder)
    for _ in range(3):
        made.act(STATE)
    until(lambda: recorder.stats()["waiting"] == 2)  # the writing thread holds the first
    for _ in range(20):
        made.act(STATE)
    assert recorder.stats()["dropped"] == 14 and recorder.stats()["waiting"] == 8
    stuck.set()
    until(lambda: recorder.stats()["waiting"] == 0)
    made.act(STATE)
    made.act(STATE)
    recorder.close()
    told = [(topic, m.get("step")) for topic, m in items(tmp_path / "a.mcap")]
    assert told == [*[(STEPS, n) for n in range(1, 10)], (GAPS, None), (STEPS, 24), (STEPS, 25)]
    gap = items(tmp_path / "a.mcap", GAPS)[0].message
    assert gap == {"after_step": 9, "missing": 14, "reason": "the ring was full"}
    report = replay(Recording(tmp_path / "a.mcap"), Habit(0.0))
    assert (report.steps, report.identical) == (9, False)
    assert report.gap == "14 missing after step 9: the ring was full"
    assert made.stats()["record_failures"] == 0


def test_what_is_dropped_at_the_very_end_is_told_too(
    stuck: threading.Event, tmp_path: Path
) -> None:
    recorder = FileRecorder(tmp_path / "a.mcap", capacity=4)
    made = controller(recorder)
    for _ in range(10):
        made.act(STATE)
    stuck.set()
    recorder.close()
    assert items(tmp_path / "a.mcap")[-1].topic == GAPS
    recording = Recording(tmp_path / "a.mcap")
    list(recording.items())
    assert recording.end is not None
    assert int(recording.end["dropped"]) == recorder.stats()["dropped"] > 0


@pytest.fixture
def small_disk() -> Iterator[None]:
    """No file of this process may grow beyond 60 000 bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def noise(rng: random.Random) -> dict[str, Any]:
    """An observation that does not compress."""
    return {**STATE, "pose": [rng.uniform(-9, 9) for _ in range(3)], "speed": 40 * rng.random()}


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
    assert 0 < report.steps < steps


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


# ---- files ----


def test_a_recording_goes_on_in_further_files(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    recorder = FileRecorder(tmp_path / "a.mcap", part_bytes=20_000, flush=0.02)
    made = controller(recorder)
    until(lambda: made.act(noise(rng)) is not None and recorder.stats()["files"] > 3)
    recorder.close()
    assert made.last is not None
    paths = sorted(tmp_path.iterdir(), key=lambda path: (len(path.name), path.name))
    assert paths[0].name == "a.mcap" and paths[1].name == "a.2.mcap" and len(paths) > 3
    assert recorder.stats()["files"] == len(paths)
    assert recorder.stats()["bytes"] == sum(path.stat().st_size for path in paths)
    for number, path in enumerate(paths, start=1):  # each by itself
        with open(path, "rb") as file:
            reader = make_reader(file, validate_crcs=True)
            heads = {m.name: m.metadata for m in reader.iter_metadata()}
            assert heads[HEAD]["part"] == str(number) and (END in heads) is (path == paths[-1])
            assert path == paths[-1] or next(reader.iter_messages(STEPS))
    recording = Recording(tmp_path / "a.mcap")
    assert [m["step"] for topic, m in recording.items()] == list(range(1, made.last.step + 1))
    assert recording.parts == paths
    assert replay(Recording(tmp_path / "a.mcap"), Habit(0.0)).identical


def test_a_file_ends_after_so_many_chunks(tmp_path: Path) -> None:
    recorder = FileRecorder(tmp_path / "a.mcap", part_chunks=2, flush=0.02)
    made = controller(recorder)
    until(lambda: made.act(STATE) is not None and recorder.stats()["files"] >= 3)
    recorder.close()
    assert replay(Recording(tmp_path / "a.mcap"), Habit(0.0)).identical


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "a.mcap").write_bytes(b"old")
    with pytest.raises(UsageError, match=r"a\.mcap is there already"):
        FileRecorder(tmp_path / "a.mcap")
    (tmp_path / "b.2.mcap").write_bytes(b"old")
    with pytest.raises(UsageError, match=r"b\.2\.mcap is there already"):
        FileRecorder(tmp_path / "b.mcap")
    with pytest.raises(UsageError, match=r"ends in \.mcap"):
        FileRecorder(tmp_path / "a.bag")
    with pytest.raises(UsageError, match="cannot be written: No such file"):
        FileRecorder(tmp_path / "none" / "a.mcap")
    assert (tmp_path / "a.mcap").read_bytes() == b"old"


def test_a_part_that_is_in_the_way_stops_recording(tmp_path: Path) -> None:
    recorder = FileRecorder(tmp_path / "a.mcap", part_chunks=1, flush=0.02)
    (tmp_path / "a.2.mcap").write_bytes(b"old")
    made = controller(recorder)
    until(lambda: made.act(STATE) is not None and recorder.stats()["stopped"] is not None)
    recorder.close()
    assert "File exists" in recorder.stats()["stopped"]
    assert (tmp_path / "a.2.mcap").read_bytes() == b"old"


def test_without_mcap_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcap.writer", None)
    with pytest.raises(MissingExtraError, match=r"wmrt\[record\]"):
        FileRecorder(tmp_path / "a.mcap")
    assert not list(tmp_path.iterdir())
    assert extras.require("mcap", "record")


# ---- its life ----


def test_it_records_one_controller_from_its_beginning(tmp_path: Path) -> None:
    with FileRecorder(tmp_path / "a.mcap") as recorder:
        controller(recorder)
        with pytest.raises(UsageError, match="records another controller"):
            controller(recorder)
    with pytest.raises(UsageError, match="or is closed"):
        controller(recorder)
    old = controller(None)
    old.act(STATE)
    with (
        FileRecorder(tmp_path / "b.mcap") as recorder,
        pytest.raises(UsageError, match="have made 1 steps already"),
    ):
        Controller(Habit(), PERIOD, breakers=old.breakers, recorder=recorder)
    with (
        FileRecorder(tmp_path / "c.mcap", facts={"limits": "none"}) as recorder,
        pytest.raises(UsageError, match="facts: 'limits' must be text and none of"),
    ):
        controller(recorder)


def test_closing_again_and_without_a_controller(tmp_path: Path) -> None:
    recorder = FileRecorder(tmp_path / "a.mcap")
    recorder.close()
    recorder.close()
    assert not (tmp_path / "a.mcap").exists()
    with FileRecorder(tmp_path / "b.mcap") as recorder:
        made = controller(recorder)
        made.act(STATE)
    recorder.close()
    made.act(STATE)  # goes on, unrecorded
    assert recorder.stats()["steps"] == 1 and made.stats()["record_failures"] == 0
    assert recorder.stats()["dropped"] + recorder.stats()["waiting"] == 1


def test_a_process_that_ends_without_closing_leaves_a_whole_file(tmp_path: Path) -> None:
    import subprocess

    code = f"""
from tests.control.recording.test_recorder import controller, STATE
from wmrt.control.recording import FileRecorder
made = controller(FileRecorder({str(tmp_path / "a.mcap")!r}))
for _ in range(20):
    made.act(STATE)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    assert replay(Recording(tmp_path / "a.mcap"), Habit(0.0)).identical


def test_a_process_that_is_killed_leaves_what_was_flushed(tmp_path: Path) -> None:
    import subprocess

    code = f"""
import os, signal
from tests.control.recording.test_recorder import controller, STATE, until
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


def test_a_stop_pressed_in_another_thread_while_a_step_runs(tmp_path: Path) -> None:
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
        made.act(STATE)
        made.act(STATE)
    steps = [message for _, message in items(tmp_path / "a.mcap", STEPS)]
    assert [step["inputs"]["estop"] for step in steps] == ["decide", ""]
    assert steps[0]["after"] == "latched"
    assert replay(Recording(tmp_path / "a.mcap"), Habit(0.0)).identical


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
