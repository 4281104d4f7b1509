"""deploy/docker: linted, pinned, without root. No image is built here."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.dockerfile import DOCKERFILES, FOLDER, USER, Instruction, instructions, stages
from tests.deploy.settings import settings
from tests.house.tree import LINKED, ROOT
from tests.service.doubles import CanarySeat, service, until
from tools import faults_tls
from wmrt import __version__
from wmrt.core.errors import UsageError
from wmrt.service.crew import Crew
from wmrt.service.server import Server, listening
from wmrt.service.settings import ServeSettings

_TEXT = (ROOT / "pyproject.toml").read_text().split("[project.optional-dependencies]")[1]
EXTRAS = set(re.findall(r"^(\w+) = \[", _TEXT.split("\n[")[0], re.MULTILINE))


@pytest.fixture(params=DOCKERFILES)
def path(request: pytest.FixtureRequest) -> Path:
    return FOLDER / str(request.param)


def last(path: Path, name: str) -> Instruction:
    return [each for each in stages(path)[-1] if each.name == name][-1]


def test_the_linter_finds_nothing(path: Path, tmp_path: Path) -> None:
    linter = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if linter is None:
        pytest.skip("there is no hadolint: make test-deploy installs it")
    done = subprocess.run([linter, path], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
    worse = tmp_path / "Dockerfile"
    worse.write_text(path.read_text().replace(USER, "root"))
    assert "DL3002" in subprocess.run([linter, worse], capture_output=True, text=True).stdout


def test_what_it_is_made_from_is_pinned(path: Path) -> None:
    head, *rest = stages(path)
    bases = {each.pairs() and next(iter(each.pairs().items())) for each in head}
    known = dict(base for base in bases if base)
    used = [stage[0].text.split()[0] for stage in rest]
    assert len(used) == 2 and all(re.fullmatch(r"\$\{\w+\}", each) for each in used)
    for each in used:
        assert re.fullmatch(r"[\w./-]+:[\w.-]*\d[\w.-]*", known[each[2:-1]]), known
    text = path.read_text()
    for line in re.findall(r"pip install .*", text):
        assert "-c constraints.txt" in line or "-c others.txt" in line
    for tag in re.findall(r"-t (wmrt\S*)", text):
        assert tag.split(":")[1] == __version__
    pinned = (ROOT / "constraints.txt").read_text()
    for version in re.findall(r"^ARG TORCH=(\S+)$", text, re.MULTILINE):
        assert version in pinned.splitlines()
    for extras in re.findall(r"EXTRAS=([\w,]+)", text):
        assert set(extras.split(",")) <= EXTRAS


def test_nobody_is_root_and_no_shell_is_in_between(path: Path) -> None:
    assert last(path, "USER").text == USER
    made = " ".join(each.text for each in stages(path)[-1] if each.name == "RUN")
    user, group = USER.split(":")
    assert f"--uid {user} --gid {group}" in made
    assert last(path, "ENTRYPOINT").listed() == ["/usr/bin/tini", "--", "wmrt"]
    assert last(path, "CMD").listed() == ["serve"]
    assert health(path)[0] == "python"


def health(path: Path) -> list[str]:
    text = last(path, "HEALTHCHECK").text
    return Instruction("CMD", text[text.index("CMD ") + 4 :]).listed()


def test_both_run_alike() -> None:
    tails = [
        [each for each in stages(FOLDER / name)[-1] if each.name not in ("FROM", "RUN")]
        for name in DOCKERFILES
    ]
    assert tails[0] == tails[1]


def test_the_service_takes_its_settings(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = last(path, "ENV").pairs()
    with pytest.raises(UsageError, match="needs a token"):
        settings(own, monkeypatch)
    made = settings(own, monkeypatch, token="t" * 32)
    assert str(made.tcp_port) == last(path, "EXPOSE").text
    assert made.cpu == -1  # or every container of a machine would keep its threads on the last one
    assert last(path, "VOLUME").listed() == [str(made.snapshots)]
    folders = next(each.text for each in stages(path)[-1] if "install -d" in each.text)
    assert str(made.snapshots) in folders and f"{own['XDG_CACHE_HOME']}/wmrt" in folders


def well(path: Path, environment: dict[str, str]) -> bool:
    """As Docker asks: ill is who fails so many times in a row. On a machine with twenty times more
    to do than it can, one answer may well take longer than the check waits."""
    (retries,) = re.findall(r"--retries=(\d+)", last(path, "HEALTHCHECK").text)
    command, own = [sys.executable, *health(path)[1:]], last(path, "ENV").pairs() | environment
    own["PATH"] = os.environ["PATH"]
    for _ in range(int(retries)):
        done = subprocess.run(command, env=own, capture_output=True, timeout=300.0)
        if done.returncode == 0:
            return True
    assert done.returncode == 1
    return False


def test_the_health_check_tells(path: Path, tmp_path: Path) -> None:
    """Of the port that the environment sets, and past a proxy that it names for other requests."""
    with service(tmp_path, tcp=True) as running:
        own = {"WMRT_SERVE_PORT": running.tcp.rsplit(":", 1)[1]}
        assert well(path, own)
        assert well(path, own | {"http_proxy": "http://127.0.0.1:1"})
    assert not well(path, own)


def test_the_health_check_speaks_tls_where_the_service_does(path: Path, tmp_path: Path) -> None:
    """Whatever name its certificate is for."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl: make setup-system installs it")
    settings = ServeSettings(port=0, cpu=-1, **certified(tmp_path))
    with listening(settings) as sockets:
        server = Server(Crew([CanarySeat()], settings), settings)
        thread = threading.Thread(target=server.run_on, args=(sockets,))
        thread.start()
        try:
            until(lambda: server.started, 60.0)
            own = {"WMRT_SERVE_PORT": str(sockets[0].getsockname()[1])}
            assert well(path, own | {"WMRT_SERVE_TLS_CERT": str(settings.tls_cert)})
            assert not well(path, own)
        finally:
            server.should_exit = True
            thread.join(60.0)


def certified(folder: Path) -> dict[str, Any]:
    cert, key = faults_tls.authority(folder, "elsewhere.example")
    return {"tls_cert": cert, "tls_key": key}


def test_what_is_sent_to_the_builder_is_what_is_built() -> None:
    """Nothing is missing, and neither history nor data goes along."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]
    assert patterns[0] == "*" and {"**/__pycache__", "**/*.so"} <= set(patterns)
    sent = {pattern[1:] for pattern in patterns if pattern.startswith("!")}
    assert sent >= {"wmrt", *LINKED, "pyproject.toml", "setup.py", "README.md", "LICENSE"}
    assert all((ROOT / name).exists() for name in sent) and not any("/" in name for name in sent)
    for name in DOCKERFILES:
        copied = [each.text.split() for each in instructions(FOLDER / name) if each.name == "COPY"]
        assert copied[0][-1] == "./" and set(copied[0][:-1]) <= sent
