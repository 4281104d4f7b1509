"""deploy/systemd: the unit is one that systemd and `wmrt serve` take, and it grants little."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.settings import options, settings
from tests.house.tree import ROOT

FOLDER = ROOT / "deploy/systemd"
UNIT = FOLDER / "wmrt@.service"
README = (ROOT / "deploy/README.md").read_text()
DROP_INS = ("realtime.conf", "gpu.conf")
PROGRAM = "/opt/wmrt/bin/wmrt"


def entries(path: Path) -> dict[str, list[str]]:
    """Key to values, in order; keys may come several times."""
    found: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        if line and not line.startswith(("#", "[")):
            key, mark, value = line.partition("=")
            assert mark, line
            found.setdefault(key, []).append(value)
    return found


def environment(path: Path) -> dict[str, str]:
    pairs = [word for value in entries(path)["Environment"] for word in shlex.split(value)]
    return dict(pair.split("=", 1) for pair in pairs)


def lines(path: Path) -> dict[str, str]:
    """Of an environment file."""
    return {key: values[-1] for key, values in entries(path).items()}


def start_command() -> list[str]:
    (text,) = entries(UNIT)["ExecStart"]
    for mark, path in {"%t": "/run", "%S": "/var/lib", "%L": "/var/log", "%i": "r2"}.items():
        text = text.replace(mark, path)
    program, *arguments = shlex.split(text)
    assert program == PROGRAM and "%" not in text
    return arguments


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The unit as systemd would find it, with its drop-ins and a program that is there."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("there is no systemd-analyze: make setup-system installs it")
    unit = tmp_path / "wmrt@.service"
    unit.write_text(UNIT.read_text().replace(PROGRAM, sys.executable))
    return unit


def with_drop_ins(unit: Path, *names: str) -> None:
    folder = unit.with_name("wmrt@.service.d")
    folder.mkdir(exist_ok=True)
    for name in names:
        shutil.copy(FOLDER / name, folder / name)


@pytest.mark.parametrize("drop_ins", [(), *((name,) for name in DROP_INS), DROP_INS])
def test_systemd_takes_the_unit(installed: Path, drop_ins: tuple[str, ...]) -> None:
    with_drop_ins(installed, *drop_ins)
    done = analyze("verify", str(installed))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    wrong = installed.read_text().replace("WatchdogSec=10", "WatchdogSecs=10")
    installed.write_text(wrong)
    assert "WatchdogSecs" in analyze("verify", str(installed)).stderr  # it does look


@pytest.mark.parametrize(("drop_ins", "most"), [((), 15), (("gpu.conf",), 20)])
def test_it_grants_little(installed: Path, drop_ins: tuple[str, ...], most: int) -> None:
    """Exposure by systemd's own count, in tenths, of 100; what is not hardened counts 96."""
    with_drop_ins(installed, *drop_ins)
    if "--offline" not in analyze("--help").stdout:
        pytest.skip("systemd-analyze is older than 250: make setup-system installs a newer one")
    given = ("security", "--offline=true", "--no-pager", f"--threshold={most}", str(installed))
    done = analyze(*given)
    assert done.returncode == 0, done.stdout[-300:]


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True)


def test_systemd_makes_the_user() -> None:
    help = ["systemd-sysusers", "--help"]
    if shutil.which(help[0]) is None or b"--dry-run" not in subprocess.check_output(help):
        pytest.skip("there is no systemd-sysusers of 250 or later: make setup-system installs it")
    path = FOLDER / "wmrt-sysusers.conf"
    done = subprocess.run(["systemd-sysusers", "--dry-run", path], capture_output=True, text=True)
    assert done.returncode == 0 and "Creating user 'wmrt'" in done.stdout + done.stderr
    (user,) = (line.split()[1] for line in path.read_text().splitlines() if line[0] != "#")
    assert [user] == entries(UNIT)["User"] == entries(UNIT)["Group"]


def test_serve_takes_the_command() -> None:
    given = options(start_command())
    unit = entries(UNIT)
    assert str(given["socket"]) == f"/run/{unit['RuntimeDirectory'][0]}/wmrt.sock".replace(
        "%i", "r2"
    )
    assert str(given["snapshots"]) == f"/var/lib/{unit['StateDirectory'][0]}".replace("%i", "r2")
    assert str(given["audit"].parent) == f"/var/log/{unit['LogsDirectory'][0]}".replace("%i", "r2")
    credentials = {line.split(":")[0] for line in unit["LoadCredential"]}
    for name in ("token", "operator-token"):
        path = given[f"{name.replace('-', '_')}_file"]
        assert str(path) == "${CREDENTIALS_DIRECTORY}/" + name and name in credentials


def test_a_second_robot_is_told_what_it_must_not_share(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (FOLDER / "robot.env").read_text()
    own = dict(line.split("=") for line in re.findall(r"^#(WMRT_\S+)$", text, re.MULTILINE))
    second = settings(environment(UNIT) | own, monkeypatch)
    first = settings(environment(UNIT), monkeypatch)
    assert second.port != first.port and second.cpu is not None and second.cpu >= 0
    (told,) = re.findall(r"A second robot on the machine needs [^.]*\.env", README)
    assert all(f"`{name}`" in told for name in own)


def test_the_robots_program_is_told_how_it_gets_the_token() -> None:
    """/etc/wmrt is root's, mode 700."""
    assert "mkdir -m 700 /etc/wmrt" in README
    assert f"`LoadCredential={entries(UNIT)['LoadCredential'][0]}`" in README


@pytest.mark.parametrize("drop_in", [None, *DROP_INS])
def test_serve_takes_the_settings(drop_in: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    own = environment(UNIT) | lines(FOLDER / "robot.env")
    own |= {} if drop_in is None else environment(FOLDER / drop_in)
    said = options(start_command())
    made = settings(own, monkeypatch, **{name: said[name] for name in ("socket", "snapshots")})
    assert made.port == 8420 and made.host == "127.0.0.1" and str(made.socket).startswith("/run/")
    if drop_in == "realtime.conf":
        limit = int(entries(UNIT)["LimitRTPRIO"][0])
        cpus = {int(cpu) for cpu in entries(FOLDER / drop_in)["CPUAffinity"][0].split()}
        assert 0 < made.priority <= limit and made.cpu in cpus
    if drop_in == "gpu.conf":
        assert (made.device, made.executor) == ("cuda", "triton")
        # All else is read-only, the home that Triton would take by itself too.
        (cache,) = entries(UNIT)["CacheDirectory"]
        assert own["TRITON_CACHE_DIR"].startswith(f"%C/{cache}/")


def test_the_times_fit() -> None:
    """It is told stuck before it is ended, and has time to put memories away."""
    unit = {key: values[-1] for key, values in entries(UNIT).items()}
    own = environment(UNIT)
    assert float(own["WMRT_SERVE_STUCK_AFTER"]) < float(unit["WatchdogSec"])
    assert float(unit["TimeoutStopSec"]) > 2 * 5.0 + 5.0  # drain, close, snapshots
    assert unit["Type"] == "notify" and unit["Restart"] == "on-failure"
    assert unit["RestartForceExitStatus"] == "SIGHUP"  # a clean end, for Restart=on-failure
    assert re.fullmatch(r"\d+", unit["StartLimitBurst"])
    assert float(unit["StartLimitIntervalSec"]) > float(unit["RestartSec"])
