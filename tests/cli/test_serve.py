"""`wmrt serve` as a process of its own, and a car in another one that it drives."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.house.tree import ROOT
from tests.service.doubles import until
from tools.service_latency import whole_state
from wmrt.cli.main import main
from wmrt.cli.serve import _serve
from wmrt.client import connect
from wmrt.core.errors import DeadlineError, WmrtError
from wmrt.service.settings import ServeSettings


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "error", "-m", "wmrt", "serve", "--threads", "1", *arguments]
    return subprocess.Popen(
        command, cwd=ROOT, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": ""}
    )


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[str, list[str], list[Any]]]:
    """Address of a service of the packaged model by steps, its arguments, and its processes."""
    arguments = [
        "--robots",
        "2",
        "--socket",
        f"{tmp_path}/s",
        "--clock",
        "step",
        "--snapshots",
        f"{tmp_path}/kept",
    ]
    arguments += [
        "--snapshot-every",
        "0.2",
        "--json",
        f"{tmp_path}/result.json",
        "--recipe",
        "nvfp4",
        "--log-format",
        "json",
    ]
    processes = [start(*arguments)]
    try:
        yield f"unix:{tmp_path}/s", arguments, processes
    finally:
        for process in processes:
            process.kill()
            process.wait()
            process.stderr.close()


def test_a_car_is_driven_by_a_service_that_is_killed_and_started_again(
    served: tuple[str, list[str], list[Any]], tmp_path: Path
) -> None:
    address, arguments, processes = served
    until((tmp_path / "s").exists, 300.0)  # it imports torch; a machine may be busy
    out = tmp_path / "drive.json"
    drive = ["drive", "--model", address, "--episodes", "1", "--json", str(out)]
    assert main([*drive, "--seed", "500003"]) == 0
    results = json.loads(out.read_text())["results"]
    assert results["summary"]["trips"]["0"] == 0 and results["episodes"][0]["steps"] > 20
    assert "a service drives" in results["notes"][0]

    robot = connect(address, "car", deadline=300.0, opening=60.0, on_lost="raise")
    state = whole_state(robot.schema)
    steps = [robot.act(state).step for _ in range(3)]
    time.sleep(0.6)  # a snapshot is written
    processes[0].send_signal(signal.SIGKILL)
    processes[0].wait()
    processes.append(start(*arguments))
    again = robot.act(state)
    assert again.step == 1 and robot.counters["resumed"] == 1  # a new controller, the old session
    assert robot.counters["steps_lost"] == 0 and steps[2] == steps[0] + 2
    robot.close()

    processes[1].send_signal(signal.SIGTERM)
    assert processes[1].wait(300.0) == 0
    said = processes[1].stderr.read()
    assert said.startswith(f"serving on {address}\n")
    logged = [json.loads(line) for line in said.splitlines()[1:]]
    events = [line["event"] for line in logged if line["logger"] == "wmrt.service"]
    assert events[:2] == ["started", "opened"] and events[-1] == "stopped"
    assert any(line["logger"] == "uvicorn.error" for line in logged)
    document = json.loads((tmp_path / "result.json").read_text())
    assert document["identity"]["recipe"] == "nvfp4"
    assert document["results"]["robots"]["car"]["observations"]["answered"] == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--host", "0.0.0.0"], "host 0.0.0.0 is reached by other machines; pass --open"),
        (["--robots", "17"], "robots: Input should be less than or equal to 16, got '17'"),
        (["--model", "no-such-model", "--port", "0"], "no-such-model"),
        (["--token-file", "no-such-file"], "--token-file no-such-file: No such file or directory"),
        (["--cpu", "99999"], "cpu 99999: this process may use 0"),
        (["--open", "--port", "0", "--model", "no-such-model"], "and needs a token: --token-file"),
        (
            ["--audit", "/proc/nothing/a", "--port", "0", "--model", "no-such-model"],
            "audit: /proc/nothing/a cannot be written: No such file or directory",
        ),
        (
            ["--socket", "/proc/nothing/s"],
            "socket /proc/nothing/s: there is no folder /proc/nothing; make it",
        ),
    ],
)
def test_a_configuration_that_is_wrong_is_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", *arguments]) == 2
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1 and "Traceback" not in err


def test_what_a_service_has_of_its_own_is_not_given_to_a_drive(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["drive", "--model", "unix:/nowhere", "--recipe", "nvfp4", "--no-breakers"]) == 2
    assert "--recipe, --no-breakers: unix:/nowhere is a service" in capsys.readouterr().err


def test_several_processes_are_not_one_car_of_a_service(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["drive", "--model", "unix:/nowhere", "--jobs", "2"]) == 2
    assert "--jobs 2: unix:/nowhere is a service" in capsys.readouterr().err
    assert main(["drive", "--model", "unix:/nowhere", "--executor", "native"]) == 2
    assert "--executor: unix:/nowhere is a service" in capsys.readouterr().err


@pytest.mark.parametrize("own", [["--threads", "1"], ["--no-deadline"], ["--consensus-every", "2"]])
def test_what_only_a_model_in_this_process_has_is_not_ignored(
    own: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["drive", "--model", "unix:/nowhere", *own]) == 2
    assert f"{own[0]}: unix:/nowhere is a service, which has its own" in capsys.readouterr().err


def test_a_drive_says_what_it_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("wmrt.cli.driving.remote.OPENING", 0.3)
    assert main(["drive", "--model", f"unix:{tmp_path}/s"]) == 2
    err = capsys.readouterr().err
    assert err.count(f"waiting up to 0.3 s for unix:{tmp_path}/s: ") == 1
    assert "No such file" in err


def test_a_service_that_is_not_there_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(*_: Any, **__: Any) -> None:
        raise DeadlineError("opening a session: not connected: Connection refused")

    monkeypatch.setattr("wmrt.client.connect", missing)
    assert main(["drive", "--model", f"unix:{tmp_path}/s"]) == 2
    assert "Connection refused" in capsys.readouterr().err


def test_the_heap_is_settled_before_anything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def listening(settings: Any) -> Any:
        done.append("listening")
        raise WmrtError("enough")

    monkeypatch.setattr("wmrt.core.memory.steady_heap", lambda: done.append("steady"))
    monkeypatch.setattr("wmrt.service.server.listening", listening)
    with pytest.raises(WmrtError, match="enough"):
        _serve(ServeSettings(port=0), None)
    assert done == ["steady", "listening"]
