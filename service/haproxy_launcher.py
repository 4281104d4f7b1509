"""Run in HAProxy's place: changes the configuration that Ray has written, and becomes HAProxy.

Every start and every reload goes through it, so it imports next to nothing (`python -I -S`).
What it changes, and why, is in `wmrt.service.fleet_haproxy`.
"""

from __future__ import annotations

import os
import sys
import zlib
from pathlib import Path

#: Ids that a server can have: HAProxy puts a server's points on its ring by the id's lowest 20 bits
#: and an id that differs only above them has the very same points.
IDS = (1 << 20) - 1
#: Sections of Ray's own, for this machine alone.
_PRIVATE = ("frontend prometheus", "listen stats")


def configured(text: str, bind: str, header: str) -> str:
    """Ray's configuration as a fleet needs it.

    Args:
        text: what Ray has written. bind: ``address:port`` and what else HAProxy's ``bind`` takes,
            for the robots' frontend. header: of the robot's name.

    Raises:
        ValueError: it is not as Ray 2.60 writes it.
    """
    lines, section, found = [], "", set()
    ids: dict[str, int] = {}
    for line in text.splitlines():
        words = line.split()
        if words and line[0] != "#" and not line[0].isspace():
            section, ids = " ".join(words), {}
        found.add((section, *words[:1]))
        if words[:1] == ["bind"] and section in _PRIVATE:
            line = f"    bind 127.0.0.1:{words[1].rpartition(':')[2]}"
        elif words[:1] == ["bind"] and section == "frontend http_frontend":
            line = "\n".join(f"    {one}" for one in (f"bind {bind}", *_ADDRESS))
        elif words[:1] == ["balance"]:
            line = f"    balance hdr({header})\n    hash-type consistent sdbm avalanche"
        elif words[:1] == ["server"]:
            ids[words[1]] = number(words[1], ids)
            more = f"id {ids[words[1]]} weight 100"
            line = " ".join(("   ", *words[:3], more, *words[3:]))
        lines.append(line)
    for wanted in ((name, "bind") for name in (*_PRIVATE, "frontend http_frontend")):
        if wanted not in found:
            raise ValueError(f"no bind in {wanted[0]}: is this Ray 2.60's configuration?")
    if ("defaults", "balance") not in found:
        raise ValueError("no balance in defaults: is this Ray 2.60's configuration?")
    return "\n".join(lines) + "\n"


#: A client's own address, for the audit log and the limits by address; not what it says of itself.
_ADDRESS = (
    "http-request set-header X-Forwarded-For %[src]",
    "http-request del-header X-Forwarded-Proto",
)


def number(name: str, taken: dict[str, int]) -> int:
    """The id of a server: of its name alone, unless one of those before it in the list has it."""
    found = zlib.crc32(name.encode()) % IDS
    while found + 1 in taken.values():
        found = (found + 1) % IDS
    return found + 1


def main(binary: str, bind: str, header: str, *arguments: str) -> None:
    """Become ``binary``; the file after ``-f`` is changed first."""
    path = Path(arguments[arguments.index("-f") + 1])
    made = path.with_name(f"{path.name}.new")
    made.write_text(configured(path.read_text("utf-8"), bind, header), "utf-8")
    made.replace(path)
    os.execv(binary, [binary, *arguments])


if __name__ == "__main__":
    main(*sys.argv[1:])
