"""`wmrt fleet` without Ray: deployments that fail, signals, what is told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.proxy import free_port
from tests.house.tree import ROOT
from wmrt.cli import fleet as cli
from wmrt.cli.main import main
from wmrt.core.errors import UsageError, WmrtError
from wmrt.service import fleet, fleet_ray
from wmrt.service.settings import ServeSettings

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = [signal.getsignal(number) for number in SIGNALS]
    yield
    for number, handler in zip(SIGNALS, before, strict=True):
        signal.signal(number, handler)


class Cluster:
    """Ray's part: ``steps`` are done one a deployment, then SIGTERM comes."""

    def __init__(self, *steps: Callable[[], object]) -> None:
        self.steps, self.deployed, self.stops = list(steps), 0, 0

    def deploy(self, application: Any, name: str) -> None:
        assert application["generation"] == self.deployed and self.stops == 0
        self.deployed += 1
        step = self.steps.pop(0)
        if not self.steps:
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
        step()

    def stop(self) -> None:
        self.stops += 1


def send(number: int) -> Callable[[], object]:
    return lambda: os.kill(os.getpid(), number)


def fail(kind: type[WmrtError] = WmrtError) -> Callable[[], object]:
    def step() -> None:
        os.kill(os.getpid(), signal.SIGHUP)  # somebody tries again meanwhile
        raise kind("no such file: model.safetensors")

    return step


def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster: Any, **given: Any
) -> dict[str, Any]:
    """What the command writes at its end."""
    monkeypatch.setattr(fleet_ray, "Cluster", lambda *_: cluster)
    monkeypatch.setattr(fleet, "application", lambda values: values)
    settings = ServeSettings(snapshots=tmp_path / "kept", cpu=-1, **given)
    cli._run({}, fleet.Fleet(seats="a:b"), settings, tmp_path / "told.json")
    told: dict[str, Any] = json.loads((tmp_path / "told.json").read_text())
    return told


def test_a_deployment_that_fails_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = Cluster(send(signal.SIGHUP), fail(), fail(UsageError), lambda: None)
    told = run(tmp_path, monkeypatch, cluster)
    assert (cluster.deployed, cluster.stops) == (4, 1)
    assert told["results"]["generations"] == 2
    said = capsys.readouterr().err
    assert said.count("serving on") == 2
    assert said.count("the new deployment failed: no such file: model.safetensors; the old") == 2
    assert "the old replicas that are left go on; SIGHUP tries again" in said


def test_a_first_deployment_that_fails_is_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(fail(), lambda: None)
    with pytest.raises(WmrtError, match="no such file"):
        run(tmp_path, monkeypatch, cluster)
    assert (cluster.deployed, cluster.stops) == (1, 1)


def hang() -> None:
    """A model that loads for ever, in Ray, which takes what it can for a failure."""
    try:
        time.sleep(20.0)
    except Exception as error:
        raise WmrtError("it does not become ready") from error
    raise AssertionError("the signal did not interrupt it")


@pytest.mark.parametrize("first", [True, False])
def test_the_end_does_not_wait_for_a_deployment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    cluster = Cluster(*([] if first else [send(signal.SIGHUP)]), hang)
    told = run(tmp_path, monkeypatch, cluster)
    assert cluster.stops == 1
    assert told["results"] == {"replicas": 2, "generations": 1 - first, "robots": []}


def test_ctrl_c_ends_a_deployment_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(send(signal.SIGINT), hang)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, monkeypatch, cluster)
    assert (cluster.deployed, cluster.stops) == (1, 1)


def test_a_signal_just_before_a_deployment_ends_it() -> None:
    signals = cli._Signals()
    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(cli._Stopped), signals.interrupting():
        hang()


def test_an_address_is_told_as_a_client_takes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path, monkeypatch, Cluster(lambda: None), host="::1", port=8421)
    assert "serving on ws://[::1]:8421, 2 replicas" in capsys.readouterr().err


def test_a_misspelled_setting_is_told_and_the_folder_may_be_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: list[Any] = []
    monkeypatch.setitem(sys.modules, "ray", sys)  # found, and not looked at
    monkeypatch.setattr(cli, "_run", lambda *arguments: given.extend(arguments))
    monkeypatch.setattr(os, "environ", {**os.environ, "WMRT_SERVE_SNAPSHOT": "x"})
    command = ["fleet", "--proxy", "ray", "--port", str(free_port())]
    assert main(command) == 2 and not given
    said = capsys.readouterr().err
    assert "WMRT_SERVE_SNAPSHOT is no setting; it is ignored" in said
    assert "snapshots: a fleet's robots go" in said
    monkeypatch.setenv("WMRT_SERVE_SNAPSHOTS", str(tmp_path))
    assert main(command) == 0 and given[2].snapshots == tmp_path
    assert main(["fleet", "--status"]) == 0
    monkeypatch.delenv("WMRT_SERVE_SNAPSHOTS")
    assert main(["fleet", "--status"]) == 2
    assert "--snapshots, or WMRT_SERVE_SNAPSHOTS, says which" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["serve", "fleet"])
def test_a_hang_up_before_it_serves_ends_nothing(tmp_path: Path, verb: str) -> None:
    """As of a terminal that is closed while the model loads."""
    code = (
        "import os, signal, sys\n"
        "from wmrt.core import extras\n"
        "def require(*_):\n"
        "    os.kill(os.getpid(), signal.SIGHUP)\n"
        "    sys.exit(7)\n"
        "extras.require = require\n"
        "from wmrt.cli.main import main\n"
        f"sys.exit(main([{verb!r}, '--snapshots', 'x']))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True)
    assert done.returncode == 7, done.stderr.decode()
