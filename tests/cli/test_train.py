"""``wmrt train`` and ``wmrt collect``: what they write, and what they refuse."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest

from tests.train.toys import episodes, folder
from wmrt.cli.main import main
from wmrt.core.seeds import HELD_OUT
from wmrt.runtime import WorldModel
from wmrt.train import pipeline
from wmrt.train.trainer import train_compensation


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    short = functools.partial(train_compensation, steps=20)
    monkeypatch.setattr(pipeline, "train_compensation", short)
    return folder(tmp_path / "data", episodes(8))


def line(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The last line of a refused request; a progress bar may have been drawn before it."""
    capsys.readouterr()
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error
    return error.splitlines()[-1]


def test_train_writes_a_checkpoint_and_its_results(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, result = tmp_path / "out", tmp_path / "result.json"
    arguments = ["train", "--data", str(data), "--out", str(out), "--json", str(result)]
    options = ["--preset", "tiny", "--selector", "recent", "--past", "3", "--steps", "2"]
    assert main([*arguments, *options, "--batch", "3", "--seed", "7", "--occlusion", "0.5"]) == 0
    assert "parameters" in capsys.readouterr().out
    found = json.loads(result.read_text())["results"]
    assert found["train"] | {"steps": 2, "batch": 3, "seed": 7} == found["train"]
    assert found["train"]["occlusion_dwell"] == 5.0  # half a second in steps of 0.1 s
    config = WorldModel.from_pretrained(out).network.config
    assert (config.selector, config.past, config.chunk) == ("recent", 3, 4)
    # the same folder with another network is another run, although every shape is the same
    other = [*arguments, *options[:4], "--past", "2", "--steps", "2", "--batch", "3"]
    text = line(capsys, *other, "--seed", "7", "--occlusion", "0.5")
    assert "belongs to another network" in text


def test_train_refusals(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start = ["train", "--data", str(data), "--out", str(tmp_path / "out")]
    fixed = line(capsys, *start, "--reproduce", "--past", "1", "--steps", "3")
    assert "--reproduce fixes the run; leave out" in fixed
    assert "--past" in fixed and "--steps" in fixed
    cases = {
        ("--preset", "huge"): "preset 'huge' is unknown; allowed: tiny",
        ("--preset", "tiny", "--past", "99"): "past must be 0 to window - 1 = 15",
        ("--preset", "tiny", "--selector", "best"): "selector 'best' is unknown",
        ("--preset", "tiny", "--occlusion", "0.05"): "at least one step",
        ("--steps", "0"): "--steps",
    }
    for options, said in cases.items():
        assert said in line(capsys, *start, *options), options
    absent = line(capsys, "train", "--data", str(tmp_path / "no"), "--out", str(tmp_path / "out"))
    assert "holds no recording" in absent and "wmrt collect" in absent
    assert not (tmp_path / "out").exists()


def test_training_goes_on_from_a_checkpoint_with_a_second_recording(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = folder(tmp_path / "own", episodes(4, 50))
    short = ["--steps", "2", "--batch", "3"]
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    base = ["train", "--data", str(data)]
    assert main([*base, "--out", first, "--preset", "tiny", *short]) == 0
    more = [*base, "--data", str(own), "--start", first, "--out", second]
    assert main([*more, *short, "--lr", "1e-4"]) == 0
    found = WorldModel.from_pretrained(second).provenance
    assert (found["episodes"], found["own_episodes"], found["train"]["lr"]) == (12, 4, 1e-4)
    assert found["start_sha256"] == WorldModel.from_pretrained(first).weights_sha256
    text = line(capsys, *more, "--preset", "tiny", "--past", "2")
    assert text.endswith("brings its own network; leave out --preset, --past")
    assert "--reproduce takes one --data" in line(
        capsys, *base, "--data", str(own), "--out", second, "--reproduce"
    )


def test_occlusion_is_for_a_model_that_drives(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = ("collect", "--out", str(tmp_path / "out"), "--episodes", "1")
    assert "give --model" in line(capsys, *start, "--occlusion", "1")
    short = line(capsys, *start, "--occlusion", "0.05", "--model", "highway")
    assert "steps of 0.1 s; a group stays off for at least one step" in short
    assert not (tmp_path / "out").exists()


def test_ctrl_c_is_status_130_and_leaves_nothing_half_written(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(done: int, total: int, losses: dict[str, float]) -> None:
        if done == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("wmrt.cli.train._Parts.__call__", lambda self, name: interrupt)
    before = sorted(tmp_path.rglob("*"))
    arguments = ["train", "--data", str(data), "--out", str(tmp_path / "out"), "--preset", "tiny"]
    options = ["--steps", "3", "--batch", "3", "--json", str(tmp_path / "r.json")]
    assert main([*arguments, *options]) == 130
    said = capsys.readouterr()
    assert said.err.endswith("wmrt: error: interrupted\n") and "Traceback" not in said.err
    assert sorted(tmp_path.rglob("*")) == before


def test_places_that_cannot_be_written_are_told_before_the_work(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    before = sorted(tmp_path.rglob("*"))
    for verb in (["train", "--data", str(data)], ["collect"], ["drive", "--model", "rule"]):
        for out, said in {
            tmp_path / "file": "is a file",
            tmp_path / "file" / "out": "it is no folder",
            Path("/proc/self/wmrt/out"): "cannot be written in /proc/self: ",
        }.items():
            text = line(capsys, *verb, "--out", str(out))
            assert text.startswith(f"wmrt {verb[0]}: error: ") and "--out" in text
            assert said in text and "Errno" not in text
    assert sorted(tmp_path.rglob("*")) == before


def test_collect_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start = ["collect", "--out", str(tmp_path / "new"), "--episodes", "2", "--jobs", "1"]
    held = line(capsys, *start, "--seed", str(HELD_OUT.start - 1))
    assert f"seed {HELD_OUT.start} is held out for evaluation" in held
    assert "environment 'wmrt/Nowhere-v0'" in line(capsys, *start, "--env", "wmrt/Nowhere-v0")
    assert "cannot be learned from" in line(capsys, *start, "--env", "CartPole-v1")
    assert not (tmp_path / "new").exists()
