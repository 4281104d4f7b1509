"""``wmrt drive --record`` and ``wmrt replay`` on a real model and the real environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("highway_env", reason="pip install 'wmrt[drive]'")

from tests.cli.calls import line, run
from tests.control.recording.test_replay import rewrite
from tests.house.tree import ROOT
from wmrt.cli.main import main
from wmrt.control import Controller, StepClock
from wmrt.control.recording import FileRecorder, messages
from wmrt.control.recording.reader import Recording
from wmrt.control.recording.topics import STEPS
from wmrt.core import machine
from wmrt.core.seeds import HELD_OUT
from wmrt.envs.state import ACTIONS, highway_schema
from wmrt.model.checkpoint import save_checkpoint
from wmrt.model.config import PRESETS
from wmrt.model.network import Network
from wmrt.runtime import WorldModel
from wmrt.runtime.build import to_checkpoint

SEED = HELD_OUT.start


def save(folder: Path, seed: int) -> Path:
    """A checkpoint that has learned nothing: enough to drive with."""
    torch.manual_seed(seed)
    network = Network(highway_schema(), PRESETS["tiny"], ACTIONS)
    save_checkpoint(folder, to_checkpoint(network, None, {}), card="# untrained")
    return folder


@pytest.fixture(scope="module")
def drive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a ``model`` and two recorded drives of it in ``rec``, one thread."""
    folder = tmp_path_factory.mktemp("drive")
    save(folder / "model", 1)
    command = ["drive", "--model", str(folder / "model"), "--episodes", "2", "--threads", "1"]
    options = ["--executor", "native", "--no-deadline", "--record", str(folder / "rec")]
    found = run(folder / "drive.json", *command, *options)
    for episode in found["results"]["episodes"]:
        record = episode["record"]
        assert record["file"] == str(folder / "rec" / f"drive-{episode['seed']}.mcap")
        assert record["steps"] == episode["steps"] and record["stopped"] is None
    return folder


def first(drive: Path) -> Path:
    return drive / "rec" / f"drive-{SEED}.mcap"


def test_every_recording_in_a_folder_is_replayed(
    drive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = run(tmp_path / "r.json", "replay", str(drive / "rec"))
    assert capsys.readouterr().out.count("are identical, bit for bit") == 2
    assert document["identity"]["resolved"]["executor"] == "native"
    results = document["results"]
    assert results["identical"] is True
    for drove in results["drives"]:
        assert drove["identical"] and drove["complete"] and drove["difference"] is None
        assert drove["steps"] > 0 and drove["recipe"] == "nvfp4"
        assert drove["recorded"]["threads"] == drove["ran"]["threads"] == 1


def altered(drive: Path, target: Path, at: int, alter: Callable[[dict[str, Any]], Any]) -> Path:
    def change(topic: str, message: dict[str, Any]) -> dict[str, Any]:
        if topic == STEPS and message["step"] == at:
            alter(message["observation"])
            message["digest"] = messages.digest(message)
        return message

    rewrite(first(drive), target, change)
    return target


#: What the model reads; a schema's range and resolution are kept.
ALTERATIONS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "number": lambda obs: obs.update(ego_speed=obs["ego_speed"] * 0.5),
    "not finite": lambda obs: obs.update(ego_speed={"$": "float", "value": "nan"}),
    "gone": lambda obs: obs.pop("ego_speed"),
    "undeclared": lambda obs: obs.update(weather="rain"),
}


@pytest.mark.parametrize("kind", ALTERATIONS)
def test_an_altered_observation_is_found_at_its_step(
    kind: str, seed: int, drive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at = 2 + seed % 6
    path = altered(drive, tmp_path / "a.mcap", at, ALTERATIONS[kind])
    assert main(["replay", str(path), "--json", str(tmp_path / "r.json")]) == 1
    (found,) = json.loads((tmp_path / "r.json").read_text())["results"]["drives"]
    assert found["difference"]["step"] == at and not found["identical"]
    shown = capsys.readouterr()
    assert f"{path}: step {at}: {found['difference']['field']}: recorded " in shown.out
    assert shown.err.count("falls short: ") == 1


def test_another_model_is_refused_unless_it_is_asked_for(
    drive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recording = Recording(first(drive))
    save(tmp_path / "other", 2)
    moved = rewrite(first(drive), tmp_path / "moved.mcap", lambda topic, message: message)
    assert moved.head["model_name"] == recording.head["model_name"]
    path = tmp_path / "named.mcap"
    with_name(first(drive), path, str(tmp_path / "other"))
    said = line(capsys, "replay", str(path))
    assert "is of another model: weights_sha256" in said
    assert main(["replay", str(path), "--model", str(tmp_path / "other")]) == 1
    assert "falls short" in capsys.readouterr().err
    assert main(["replay", str(path), "--model", str(drive / "model")]) == 0
    assert main(["replay", str(path), "--model", str(drive / "model"), "--recipe", "bf16"]) == 1
    with_name(first(drive), tmp_path / "lost.mcap", str(tmp_path / "nowhere"))
    assert "nowhere" in line(capsys, "replay", str(tmp_path / "lost.mcap"))
    with_name(first(drive), tmp_path / "nameless.mcap", None)
    said = line(capsys, "replay", str(tmp_path / "nameless.mcap"))
    assert "does not name the model" in said and "--model" in said


def with_name(source: Path, target: Path, name: str | None) -> None:
    """A copy of a recording that names another checkpoint."""
    from wmrt.control.recording.parts import PartWriter

    recording = Recording(source)
    head = {key: value for key, value in recording.head.items() if key != "part"}
    head.pop("model_name")
    writer = PartWriter(target)
    writer.start(head if name is None else {**head, "model_name": name})
    for topic, message in recording.items():
        writer.write(topic, messages.text(message), 0, 0)
    writer.end(recording.end or {})


def test_requests_that_are_wrong(
    drive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "does not exist" in line(capsys, "replay", str(tmp_path / "none.mcap"))
    (tmp_path / "a.mcap").write_text("text")
    assert "is no recording of wmrt" in line(capsys, "replay", str(tmp_path / "a.mcap"))
    (tmp_path / "empty").mkdir()
    assert "no recording in it" in line(capsys, "replay", str(tmp_path / "empty"))
    assert "threads=4096" in line(capsys, "replay", str(first(drive)), "--threads", "4096")
    said = line(capsys, "replay", str(first(drive)), "--recipe", "w9")
    assert "unknown recipe 'w9'" in said


def test_places_where_a_drive_cannot_be_recorded(
    drive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    started = ["drive", "--model", str(drive / "model"), "--episodes", "2"]
    said = line(capsys, *started, "--record", str(tmp_path / "a.mcap"))
    assert "holds one drive and 2 are to be driven; give a folder" in said
    said = line(capsys, *started, "--record", str(drive / "rec"))
    assert f"drive-{SEED}.mcap is there already" in said
    assert "cannot be written" in line(capsys, *started, "--record", "/proc/self/rec")
    said = line(capsys, *started, "--no-breakers", "--record", str(tmp_path / "rec"))
    assert "--record records a controller, and here is none" in said
    assert not list(tmp_path.iterdir())


def test_a_control_arm_is_recorded_and_cannot_be_replayed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rule.mcap"
    assert main(["drive", "--model", "rule", "--episodes", "1", "--record", str(path)]) == 0
    said = line(capsys, "replay", str(path))
    assert "is of a RulePolicy, which is no world model" in said


def test_what_a_disk_did_not_take_is_told(
    drive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    from wmrt.control.recording.parts import PartWriter

    def full(self: Any) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(PartWriter, "_push", full)
    command = ["drive", "--model", str(drive / "model"), "--episodes", "1", "--no-deadline"]
    assert main([*command, "--record", str(tmp_path / "a.mcap")]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "a.mcap: No space left on device" in said and "are missing" in said


def long_drive(path: Path, steps: int, threads: int) -> None:
    """The shipped model under nvfp4, in as many episodes as it takes; one controller."""
    from wmrt.cli.driving.environment import open_environment
    from wmrt.control import Channel

    env = open_environment("wmrt/Highway-v0")
    options: dict[str, Any] = {"executor": "native", "threads": threads}
    model = WorldModel.from_pretrained("highway", recipe="nvfp4", **options)
    twin = WorldModel.from_pretrained("highway", recipe="bf16", **options)
    channels = (Channel.from_policy("model bf16", twin), Channel("rule", env.rule_action))
    facts = {"model_name": "highway"}
    with FileRecorder(path, facts=facts) as recorder:
        controller = Controller(
            model, env.period, recorder=recorder, channels=channels, clock=StepClock(env.period),
            fallback=lambda state, last: last,
        )  # fmt: skip
        done, info, seed = True, {}, SEED
        for _ in range(steps):
            if done:
                _, info = env.reset(seed=seed)
                controller.reset()
                seed += 1
            _, _, crashed, timeout, info = env.step(controller.act(info["state"]))
            done = crashed or timeout
    assert recorder.stats()["steps"] == steps and recorder.stats()["dropped"] == 0


@pytest.mark.parametrize("steps", [100, pytest.param(1_000, marks=pytest.mark.full, id="1000")])
def test_the_shipped_model_in_fresh_processes_with_one_and_two_threads(
    steps: int, tmp_path: Path
) -> None:
    path = tmp_path / "drive.mcap"
    long_drive(path, steps, threads=1)
    for threads in range(1, min(2, machine.usable_cpus()) + 1):
        command = [sys.executable, "-m", "wmrt", "replay", str(path), "--threads", str(threads)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"{path}: {steps} steps, " in done.stdout
        assert f"native, {threads} threads (recorded: 1)" in done.stdout
