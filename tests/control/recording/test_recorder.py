"""The recorder: what stands in the file, what may fail, and that the loop notices none of it."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from mcap.reader import make_reader

from tests.control.recording.drives import Habit, controller, items, noise, storm
from tests.control.stalls import until
from tests.control.support import PERIOD, STATE, constant
from wmrt.control import Controller
from wmrt.control.recording import FileRecorder
from wmrt.control.recording.reader import Recording
from wmrt.control.recording.replay import replay
from wmrt.control.recording.topics import COMMANDS, END, EVENTS, GAPS, HEAD, SCHEMAS, STEPS
from wmrt.core import extras
from wmrt.core.errors import MissingExtraError, UsageError

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
