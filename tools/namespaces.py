"""Two hosts and a router between them, of Linux's network namespaces: a wire that can be cut.

Needs no privilege where Linux lets anyone have namespaces of users, and touches no network of the
machine: `inside` runs a command in namespaces of its own, and there `routed` makes the hosts. All
of it is gone with the processes that hold it.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.service_rig import until
from wmrt.core.errors import WmrtError

_INSIDE = ("unshare", "--user", "--map-root-user", "--net")
_PROGRAMS = ("unshare", "nsenter", "ip")  # Debian's util-linux has the first two
NEAR, FAR = "10.77.1.1", "10.77.2.1"


def absent() -> str | None:
    """Why there are no such hosts here: the program that is not installed, or the call that is
    refused. None if there can be."""
    for program in _PROGRAMS:
        if shutil.which(program) is None:
            return f"there is no program {program}: make setup-system installs it"
    make = "ip link add near type veth peer name far && test -w /proc/sys/net/ipv4/ip_forward"
    tried = [*_INSIDE, "sh", "-c", make]
    done = subprocess.run(tried, capture_output=True, text=True)
    if done.returncode == 0:
        return None
    said = done.stderr.strip() or "/proc/sys/net/ipv4/ip_forward is not writable there"
    return f"no network of one's own here: {' '.join(_INSIDE)} sh -c '{make}': {said}"


def inside(command: Sequence[str]) -> list[str]:
    """The command as one that runs in namespaces of its own, as root of them."""
    return [*_INSIDE, *command]


@dataclass
class Routed:
    """This process's host at `NEAR`, another one at `FAR`, and a router between them.

    Neither host is told of a cut: what is sent then is dropped on the way, as when a radio is out
    of reach. No connection ends by it.
    """

    router: int
    far: int

    def at_far(self, command: Sequence[str]) -> list[str]:
        """The command as one that runs at the other host."""
        return _within(self.far, command)

    def forward(self, on: bool) -> None:
        """Cut the way between the hosts, or mend it."""
        line = f"echo {int(on)} > /proc/sys/net/ipv4/ip_forward"
        _run(_within(self.router, ["sh", "-c", line]))


def established(pid: int, address: str) -> int:
    """TCP connections with ``address`` that the host of process ``pid`` takes for open."""
    backwards = "".join(f"{int(part):02X}" for part in reversed(address.split(".")))
    lines = Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]
    return sum(row[2].startswith(backwards) and row[3] == "01" for row in map(str.split, lines))


@contextlib.contextmanager
def routed() -> Iterator[Routed]:
    """Make the hosts; for a process that runs `inside`."""
    with _holder() as router, _holder() as far:
        _run(["ip", "link", "set", "lo", "up"])
        _wire(router, "near", "10.77.1", None)
        _wire(router, "far", "10.77.2", far)
        _run(["ip", "route", "add", "10.77.2.0/24", "via", "10.77.1.2"])
        _run(_within(far, ["ip", "route", "add", "10.77.1.0/24", "via", "10.77.2.2"]))
        made = Routed(router, far)
        made.forward(True)
        yield made


def _wire(router: int, name: str, net: str, host: int | None) -> None:
    """A cable of both ends' ``name`` from the router, ``net``.2, to a host, ``net``.1."""
    ends = ["name", name, *([] if host is None else ["netns", str(host)])]
    ends += ["type", "veth", "peer", "name", name, "netns", str(router)]
    _run(["ip", "link", "add", *ends])
    for end, number in ((host, 1), (router, 2)):
        for line in (f"addr add {net}.{number}/24 dev {name}", f"link set {name} up"):
            command = ["ip", *line.split()]
            _run(command if end is None else _within(end, command))


def _within(pid: int, command: Sequence[str]) -> list[str]:
    return ["nsenter", f"--net=/proc/{pid}/ns/net", *command]


@contextlib.contextmanager
def _holder() -> Iterator[int]:
    """A process in a network of its own, which ends with this one; its id."""
    with subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE) as held:
        own = Path("/proc/self/ns/net").readlink()
        theirs = Path(f"/proc/{held.pid}/ns/net")
        until(lambda: theirs.readlink() != own, 30.0)
        yield held.pid  # the end of its input ends it


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise WmrtError(f"{' '.join(command)}: {done.stderr.strip()}")
