"""HAProxy with the repository's own file, in front of whatever a test has."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.house.tree import ROOT
from tests.service.doubles import until

CONFIG = ROOT / "deploy/haproxy/haproxy.cfg"
_SKIP = "there is no haproxy: make setup-system installs it"


def program() -> str:
    """Debian's, which an ordinary user's PATH does not reach."""
    found = shutil.which("haproxy", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if found is None:
        pytest.skip(_SKIP)
    return found


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as own:
        port: int = own.getsockname()[1]
    return port


def variables(tmp_path: Path, servers: Sequence[str]) -> dict[str, str]:
    """The environment that puts the file's proxy in front of ``servers``, three addresses."""
    return {
        "PATH": os.environ.get("PATH", ""),
        "WMRT_BIND": f"127.0.0.1:{free_port()}",
        "WMRT_ADMIN": f"{tmp_path}/haproxy.sock",
        "WMRT_PATIENCE": "20s",  # what it does must not depend on how busy the machine is
        **{f"WMRT_{number}": server for number, server in enumerate(servers, 1)},
    }


@dataclass
class Proxy:
    """One that runs.

    Attributes:
        address: ``host:port``. admin: its socket.
    """

    address: str
    admin: Path

    @property
    def http(self) -> str:
        return f"http://{self.address}"

    @property
    def ws(self) -> str:
        return f"ws://{self.address}"

    def up(self) -> set[str]:
        """Names of the servers that get robots."""
        with socket.socket(socket.AF_UNIX) as own:
            own.settimeout(10.0)
            own.connect(str(self.admin))
            own.sendall(b"show stat\n")
            told = b"".join(iter(lambda: own.recv(65536), b"")).decode()
        rows = [line.split(",") for line in told.splitlines() if line.startswith("wmrt,wmrt")]
        return {row[1] for row in rows if row[17].startswith("UP")}


@contextlib.contextmanager
def proxy(tmp_path: Path, servers: Sequence[str], **further: str) -> Iterator[Proxy]:
    """HAProxy in front of three servers, all of which it finds up."""
    own = variables(tmp_path, servers) | further
    with open(tmp_path / "haproxy.log", "wb") as log:
        process = subprocess.Popen([program(), "-f", CONFIG], env=own, stdout=log, stderr=log)
        try:
            made = Proxy(own["WMRT_BIND"], Path(own["WMRT_ADMIN"]))
            until(made.admin.exists, 30.0)
            until(lambda: len(made.up()) == 3, 60.0)
            yield made
        finally:
            process.terminate()
            process.wait(30.0)


def client(proxy: Proxy, robot: str | None = None) -> httpx.Client:
    headers = {} if robot is None else {"x-session-id": robot}
    return httpx.Client(base_url=proxy.http, headers=headers, trust_env=False, timeout=30.0)
