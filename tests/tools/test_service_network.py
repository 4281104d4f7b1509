"""A service and a robot on two hosts, and the network between them cut; where Linux allows it."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tools import namespaces, service_network
from tools.service_rig import ROOT


def require_namespaces() -> None:
    reason = namespaces.absent()
    if reason is not None:
        pytest.skip(reason)


@pytest.mark.full
def test_a_network_that_goes_away_without_a_word(tmp_path: Path) -> None:
    require_namespaces()
    path = tmp_path / "network.json"
    done = subprocess.run(
        [sys.executable, "-m", "tools.service_network", "--json", str(path)],
        cwd=ROOT, capture_output=True, text=True, timeout=300.0,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(path.read_text())["results"]
    assert found["wrong"] == [] and found["near"]["cut_off_s"] >= service_network.CUT


CUT = """
import socket, sys, time
from tools.namespaces import FAR, NEAR, established, routed
import os, subprocess
with routed() as network:
    door = socket.create_server((NEAR, 0))
    client = (
        "import socket, sys, time; own = socket.create_connection((sys.argv[1], int(sys.argv[2])));"
        "own.sendall(b'a'); time.sleep(1.0); own.sendall(b'b'); sys.stdin.read()"
    )
    command = [sys.executable, "-c", client, NEAR, str(door.getsockname()[1])]
    with subprocess.Popen(network.at_far(command), stdin=subprocess.PIPE) as far:
        own, (address, _) = door.accept()
        assert address == FAR and own.recv(1) == b"a"
        network.forward(False)
        own.settimeout(3.0)
        try:
            raise SystemExit(f"heard {own.recv(1)!r} over a cut")
        except TimeoutError:
            assert established(os.getpid(), FAR) == 1
        network.forward(True)
        own.settimeout(60.0)
        assert own.recv(1) == b"b"  # sent again by its kernel
        own.close()
print("fine")
"""


def test_a_cut_drops_what_is_sent_and_ends_nothing() -> None:
    require_namespaces()
    command = namespaces.inside([sys.executable, "-c", CUT])
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120.0)
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr


def test_what_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "ip" else name)
    assert namespaces.absent() == "there is no program ip: make setup-system installs it"
    done = CliRunner().invoke(service_network.main, [])
    assert done.exit_code == 2 and "make setup-system" in done.output
    monkeypatch.setattr(shutil, "which", lambda name: name)
    monkeypatch.setattr(namespaces, "_INSIDE", ("sh", "-c", "echo not allowed >&2; exit 1"))
    assert "not allowed" in (namespaces.absent() or "")


FINE: dict[str, Any] = {
    "near": {
        "established_after_the_cut": 2, "noticed_s": 1.8, "refused_while_held": "held",
        "freed_s": 5.0, "files": [11, 9], "steps": [21, 32],
    },
    "returns": {
        "counts": {"answers": 60, "missed": 12}, "mixed": 0, "unsafe": 0,
        "counters": {"attempts": 6, "connected": 2, "resumed": 1, "lost": 1},
    },
    "taken": {
        "counts": {"answers": 21, "missed": 12, "unknown_session": 30}, "mixed": 0, "unsafe": 0,
        "counters": {"attempts": 40, "connected": 1, "lost": 1},
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (("near", "established_after_the_cut"), 0, "ended by the cut"),
        (("near", "noticed_s"), 0.01, "too early"),
        (("near", "refused_while_held"), None, "free at once"),
        (("near", "freed_s"), 1.9, "before its time"),
        (("near", "files"), [11, 11], "descriptors"),
        (("near", "steps"), [21, 1], "where it was"),
        (("returns", "counters", "resumed"), 0, "not resumed"),
        (("returns", "counters", "lost"), 0, "not told"),
        (("returns", "counters", "attempts"), 2, "did not try"),
        (("returns", "counts", "missed"), 0, "missed its deadline"),
        (("returns", "counts", "steps_apart"), 1, "do not follow"),
        (("returns", "mixed"), 1, "mixed"),
        (("taken", "unsafe"), 1, "unsafe"),
        (("taken", "counts", "unknown_session"), 0, "too late was not told"),
        (("taken", "counters", "connected"), 2, "too late was served"),
    ],
)
def test_what_is_wrong_is_seen(place: tuple[str, ...], value: Any, said: str) -> None:
    assert service_network.wrong(FINE) == []
    changed = copy.deepcopy(FINE)
    inner: Any = changed
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    (told,) = service_network.wrong(changed)
    assert said in told
