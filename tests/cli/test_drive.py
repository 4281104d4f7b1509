"""``wmrt drive`` on the real environment: control arms, a model, and what can be wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

pytest.importorskip("highway_env", reason="pip install 'wmrt[drive]'")

from PIL import Image

from wmrt.cli.driving.arms import RandomPolicy, make_arm
from wmrt.cli.driving.environment import open_environment
from wmrt.cli.driving.episode import Outcome
from wmrt.cli.driving.fleet import drive_here, drive_in_processes
from wmrt.cli.driving.plan import Plan
from wmrt.cli.driving.reel import Reel
from wmrt.cli.driving.stand import Account, Stand, set_up
from wmrt.cli.main import main
from wmrt.control import default_limits, load_limits, save_limits
from wmrt.core.seeds import HELD_OUT
from wmrt.envs.state import ACTIONS, highway_schema
from wmrt.model.checkpoint import Checkpoint, save_checkpoint
from wmrt.model.config import PRESETS
from wmrt.model.network import Network
from wmrt.model.random_init import LABEL
from wmrt.model.schema import StateSchema, category, numeric
from wmrt.runtime import WorldModel
from wmrt.runtime.build import to_checkpoint

FIRST = HELD_OUT.start


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """A network that has learned nothing: enough to drive with."""
    torch.manual_seed(1)
    return to_checkpoint(Network(highway_schema(), PRESETS["tiny"], ACTIONS), None, {})


@pytest.fixture
def folder(trained: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    save_checkpoint(tmp_path / "model", trained, card="# untrained")
    return tmp_path / "model"


def drive(*arguments: str, out: Path) -> dict[str, Any]:
    assert main(["drive", *arguments, "--json", str(out)]) == 0
    document: dict[str, Any] = json.loads(out.read_text())
    return document


def error_line(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line of a refused request."""
    assert main(["drive", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and error.startswith("wmrt") and "Traceback" not in error
    return error


# ---- what it writes ----


def test_random_arm_writes_result_report_and_film(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--model", "random", "--episodes", "2", "--seed", str(FIRST + 2)]
    found = drive(*options, "--out", str(tmp_path / "out"), out=tmp_path / "r.json")
    assert found["command"][:2] == ["wmrt", "drive"] and found["identity"]["model"] == "random"
    results = found["results"]
    assert (results["env"], results["arm"]) == ("wmrt/Highway-v0", "random")
    assert [row["seed"] for row in results["episodes"]] == [FIRST + 2, FIRST + 3]
    assert results["summary"]["trips"] is None and results["summary"]["resident_bytes"] is None
    assert 0 < results["summary"]["return_mean"] < 30
    assert set(results["summary"]["step_ms"]) >= {"p50", "p90", "p99", "p999", "max"}
    page = (tmp_path / "out" / "report.html").read_text()
    assert "random: uniformly random actions, without breakers" in page
    assert (tmp_path / "out" / "episode.gif").stat().st_size < 3_000_000
    with Image.open(tmp_path / "out" / "episode.gif") as gif:  # one frame for each step scored
        assert gif.n_frames == results["episodes"][0]["steps"]  # type: ignore[attr-defined]
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["episode.gif", "report.html"]
    shown = capsys.readouterr().out
    assert "driven by random" in shown and "collisions" in shown and "report.html" in shown


def test_the_film_shows_the_drive_that_was_scored_and_nothing_drives_again() -> None:
    live, camera = (open_environment("wmrt/Highway-v0", film=True) for _ in range(2))
    stand = Stand(live, make_arm(RandomPolicy(live), live, None), Account(()))
    seen: list[Any] = []
    take = Reel.shoot

    def shoot(reel: Reel, env: Any, step: int, outcome: Outcome) -> None:
        take(reel, env, step, outcome)
        seen.append(env.render().copy())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Reel, "shoot", shoot)
        seeds = range(FIRST + 2, FIRST + 4)
        first, second = drive_here(stand, seeds, lambda done: None, film=FIRST + 2)
    assert second.reel is None and first.reel is not None
    assert len(first.reel.poses) == len(first.reel.captions) == len(seen) == first.row["steps"]
    camera.reset(seed=first.reel.seed)
    for poses, frame in zip(first.reel.poses, seen, strict=True):
        assert np.array_equal(camera.frame(poses), frame)


def test_a_world_that_cannot_be_filmed_is_told_before_the_drive(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("wmrt.envs.highway.HighwayEnv.frame")
    text = error_line(capsys, "--model", "rule", "--out", str(tmp_path / "out"))
    assert "it has no frame" in text and not (tmp_path / "out").exists()


def test_rule_drives_behind_breakers_and_a_seed_is_repeatable() -> None:
    plan = Plan("wmrt/Highway-v0", "rule", deadline=False)
    stand = set_up(plan)
    assert stand.account.levels == (0, 1, 2) and stand.arm.controlled
    seeds = range(FIRST, FIRST + 1)
    row, again = (next(drive_here(stand, seeds, lambda done: None)).row for _ in range(2))
    assert {**row, "step_ms": 0} == {**again, "step_ms": 0}
    assert row["trips"]["3"] == 0 and row["deadline_misses"] is None
    # 1% of the steps: what clean driving may trip at most.
    assert sum(row["trips"].values()) <= 0.01 * row["steps"]


def test_limits_of_a_file_bind_the_drive_and_are_named(tmp_path: Path) -> None:
    env = open_environment("wmrt/Highway-v0")
    path = tmp_path / "limits.json"
    own = default_limits(env.state_schema, env.action_spec, env.period)
    save_limits(path, own)
    document = json.loads(path.read_text())
    document["actions"]["acceleration"] |= {"high": 0.5, "rate_up": 1.0}
    path.write_text(json.dumps(document))
    stand = set_up(Plan("wmrt/Highway-v0", "rule", deadline=False, limits=path))
    limits = load_limits(path, env.state_schema, env.action_spec, env.period)
    assert f"limits of {path}, hash {limits.hash}" in stand.account.notes
    info, sent, bound = stand.env.reset(seed=FIRST)[1], [0.0], 0
    stand.arm.reset(FIRST)
    for _ in range(40):
        outcome = stand.arm.act(info["state"])
        sent.append(float(outcome.action[1]))
        bound += outcome.source != "policy"
        info = stand.env.step(outcome.action)[-1]
    assert bound > 0 and 0 < max(sent) <= limits.boxes(1.0)[1].high
    assert max(np.diff(sent)) <= limits.deltas(env.period)[1][0]


def test_limits_that_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "limits.json"
    path.write_text('{"wmrt_limits": 1, "actions": {}}')
    said = error_line(capsys, "--model", "rule", "--limits", str(path))
    assert f"{path}: actions lacks 'steering'" in said
    none = str(tmp_path / "none.json")
    assert "cannot be read" in error_line(capsys, "--model", "expert", "--limits", none)
    assert "random has none" in error_line(capsys, "--model", "random", "--limits", str(path))
    bare = ["--model", "rule", "--no-breakers", "--limits", str(path)]
    assert "--no-breakers takes them away" in error_line(capsys, *bare)


def test_several_processes_drive_the_same_episodes() -> None:
    plan = Plan("wmrt/Highway-v0", "random")
    seeds, done = range(FIRST + 2, FIRST + 6), []
    there = list(drive_in_processes(plan, seeds, 2, done.append, film=FIRST + 3))
    assert [e.row["seed"] for e in there if e.reel is not None] == [FIRST + 3]
    rows = sorted((e.row for e in there), key=_seed)
    here = [e.row for e in drive_here(set_up(plan), seeds, lambda done: None)]
    assert [{**row, "step_ms": 0} for row in rows] == [{**row, "step_ms": 0} for row in here]
    assert done == [1, 2, 3, 4]


def _seed(row: dict[str, Any]) -> int:
    return int(row["seed"])


def test_model_drives_with_three_channels(folder: Path, tmp_path: Path) -> None:
    options = ["--model", str(folder), "--seed", "500123", "--episodes", "1", "--no-deadline"]
    found = drive(*options, out=tmp_path / "m.json")
    identity, results = found["identity"], found["results"]
    assert identity["recipe"] == "nvfp4" and identity["resolved"]["recipe"] == "nvfp4"
    assert len(identity["model_sha256"]) == 64
    run = results["run"]
    assert run["planner"] is None and "planner" not in results
    assert run["levels"] == [0, 1, 2, 3]
    assert run["channels"] == ["model nvfp4", "model bf16", "rule"]
    assert set(run["consensus"]["kernels"]) == {"linear_bf16.native"}
    assert results["summary"]["resident_bytes"] == sum(run["report"]["bytes"].values()) > 0
    assert results["summary"]["step_ms"]["p50"] < results["summary"]["act_ms"]["p50"]
    (row,) = results["episodes"]
    assert set(row["trips"]) == {"0", "1", "2", "3"} and row["deadline_misses"] is None
    told = results["summary"]["channels"]
    assert {name: one["votes"] for name, one in told.items()} == dict.fromkeys(
        ("model bf16", "rule"), results["summary"]["steps"]
    )
    assert told["model bf16"]["resident_bytes"] == sum(run["consensus"]["bytes"].values())
    assert told["rule"]["ms"]["p50"] < told["model bf16"]["ms"]["p50"]


def test_the_second_opinion_is_what_was_asked_for(folder: Path, tmp_path: Path) -> None:
    def account(**changes: Any) -> Any:
        return set_up(Plan("wmrt/Highway-v0", str(folder), **changes)).account

    assert account(consensus="w4a8").channels == ("model nvfp4", "model w4a8", "rule")
    off = account(consensus="off")
    assert (off.levels, off.channels) == ((0, 1, 2), ())
    assert "breakers at levels 0 to 2: as asked for" in off.notes
    torch.manual_seed(2)
    network = Network(highway_schema(), PRESETS["tiny"], ACTIONS)
    save_checkpoint(tmp_path / "earlier", to_checkpoint(network, None, {}), card="# earlier")
    channels = account(consensus=str(tmp_path / "earlier")).channels
    assert channels == ("model nvfp4", "earlier model bf16", "rule")


def test_a_monitor_is_there_when_it_is_asked_for(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = error_line(capsys, "--model", str(folder), "--monitor")
    assert "no monitor.json; run: wmrt calibrate" in line
    assert "no model that expects" in error_line(capsys, "--model", "rule", "--monitor")
    record = tmp_path / "drive.mcap"
    options = ["--monitor", "--seed", "500321", "--episodes", "1", "--no-deadline"]
    found = drive(*options, "--consensus", "off", "--record", str(record), out=tmp_path / "m.json")
    (row,) = found["results"]["episodes"]
    told = row["monitor"]
    assert told["compared"] == row["steps"] - 1 and told["failures"] == 0
    assert found["results"]["summary"]["monitor"]["alarms"] == told["alarms"]
    assert main(["replay", str(record)]) == 0


def test_a_second_opinion_that_cannot_differ_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = error_line(capsys, "--model", str(folder), "--consensus", "nvfp4")
    assert "'model nvfp4' and 'the running model' are both" in line and "another recipe" in line
    line = error_line(capsys, "--model", str(folder), "--consensus", "nowhere")
    assert "no checkpoint 'nowhere'" in line


# ---- what is set up ----


@pytest.mark.parametrize(("recipe", "other"), [("bf16", "nvfp4"), ("w4a8", "bf16")])
def test_second_opinion_is_never_the_same_graph(folder: Path, recipe: str, other: str) -> None:
    account = set_up(Plan("wmrt/Highway-v0", str(folder), recipe)).account
    assert account.channels == (f"model {recipe}", f"model {other}", "rule")


def test_packed_checkpoint_drives_as_it_is_packed(
    trained: Checkpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = WorldModel.from_checkpoint(trained, recipe="mxfp4")
    save_checkpoint(tmp_path / "packed", to_checkpoint(model.network, model.recipe, {}), card="x")
    account = set_up(Plan("wmrt/Highway-v0", str(tmp_path / "packed"))).account
    assert account.recipe == "mxfp4" and account.levels == (0, 1, 2) and account.channels == ()
    assert "no bf16 form" in account.notes[0]
    text = error_line(capsys, "--model", str(tmp_path / "packed"), "--recipe", "nvfp4")
    assert "packed as mxfp4" in text


def test_random_weights_are_said_to_be(trained: Checkpoint, tmp_path: Path) -> None:
    made = replace(trained, provenance={"weights": LABEL})
    save_checkpoint(tmp_path / "random", made, card="x")
    account = set_up(Plan("wmrt/Highway-v0", str(tmp_path / "random"))).account
    assert account.notes[0] == "random weights, for speed only: what it does means nothing"


def test_a_planner_around_the_model_drives_and_is_replayed(folder: Path, tmp_path: Path) -> None:
    options = ["--model", str(folder), "--seed", "500123", "--episodes", "1", "--no-deadline"]
    record = tmp_path / "p.mcap"
    plan = ["--planner", "mppi", "--planner-budget", "30", "--record", str(record)]
    results = drive(*options, *plan, out=tmp_path / "p.json")["results"]
    facts = results["run"]["planner"]
    assert facts["name"] == "mppi" and facts["budget"] == 30 and facts["horizon"] == 8
    assert (facts["samples"], facts["steps"], facts["timing"]) == (2, 24, None)
    assert results["run"]["channels"] == ["model nvfp4", "model bf16", "rule"]
    (row,), found = results["episodes"], results["planner"]
    # Whether two samples around an untrained model's actions promise more, its weights decide.
    asked = sum(found["taken"].values())
    assert row["steps"] >= asked > 0 == found["taken"]["malformed"]
    assert found["imagined_steps"] == 24 * asked
    assert main(["replay", str(record), "--threads", "2", "--json", str(tmp_path / "r.json")]) == 0
    (drive_again,) = json.loads((tmp_path / "r.json").read_text())["results"]["drives"]
    assert drive_again["identical"] and drive_again["steps"] == row["steps"]


def test_no_breakers_means_none(folder: Path) -> None:
    stand = set_up(Plan("wmrt/Highway-v0", str(folder), breakers=False))
    assert stand.account.levels == () and not stand.arm.controlled
    _, info = stand.env.reset(seed=0)
    stand.arm.reset(0)
    found = stand.arm.act(info["state"])
    assert found.state is None and found.step_ns == found.act_ns and found.late is None


# ---- what is wrong ----


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--planner-budget", "100"], "add --planner mppi"),
        (["--planner", "mppi", "--planner-budget", "23"], "at least 24, got 23"),
        (["--planner", "mppi", "--model", "rule"], "rule has no model to plan with"),
        (["--planner", "mppi", "--no-breakers"], "without breakers"),
        (["--planner", "mppi", "--planner-budget", "4000"], "deadline of 100 ms allows 80.0"),
    ],
)
def test_planners_that_cannot_be_had(
    options: list[str], said: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in error_line(capsys, "--model", str(folder), *options)


def test_unknown_names(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = error_line(capsys, "--model", str(folder), "--recipe", "bogus")
    assert "'bogus'" in text and "nvfp4" in text
    text = error_line(capsys, "--model", "bogus")
    assert "'bogus'" in text and "packaged" in text
    for env in ("wmrt/Bogus-v0", "Bogus-v0", "no.such.module:x-v0", "CartPole-v1", "a b c"):
        text = error_line(capsys, "--env", env, "--model", "rule")
        assert env in text and "wmrt/Highway-v0" in text
    text = error_line(capsys, "--model", str(folder), "--device", "bogus")
    assert "device" in text and "'bogus'" in text
    assert "episodes" in error_line(capsys, "--episodes", "0")


def cut(folder: Path) -> None:
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])


def add_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, "extra": torch.zeros(3)}, folder / "model.safetensors")


@pytest.mark.parametrize(("damage", "said"), [(cut, "truncated"), (add_tensor, "extra")])
def test_damaged_checkpoint(
    folder: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], None], said: str
) -> None:
    damage(folder)
    text = error_line(capsys, "--model", str(folder))
    assert said in text and str(folder) in text


def test_checkpoint_for_other_states(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fields = {"speed": numeric("m/s", 0.0, 40.0), "lane": category(["left", "right"])}
    schema = StateSchema(fields, neutral=[0.0, 0.0])
    other = to_checkpoint(Network(schema, PRESETS["tiny"], ACTIONS), None, {})
    save_checkpoint(tmp_path / "other", other, card="x")
    text = error_line(capsys, "--model", str(tmp_path / "other"))
    assert "cannot drive wmrt/Highway-v0" in text and "'ego_speed'" in text


def test_an_error_ends_the_process_with_status_2(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut(folder)
    # Not an empty one: matplotlib, which highway-env imports, would build its font cache in it.
    monkeypatch.delenv("XDG_CACHE_HOME")
    done = subprocess.run(
        [sys.executable, "-m", "wmrt", "drive", "--model", str(folder)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and "truncated" in done.stderr
