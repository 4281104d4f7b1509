"""Memory a process really holds, read from the kernel's account of it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from wmrt.quant.ledger import MISSING, Figure

_HEADER = re.compile(r"^[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \S+\s*(.*)$")
SMAPS = Path("/proc/self/smaps")


@dataclass(frozen=True)
class Resident:
    """One reading.

    * `private_dirty`: pages only this process holds and has written, those of weight files aside
    * `mapped_weights`: resident pages of the weight files named
    * `resident`: their sum, the figure a model is held to
    * `rss`, `pss`: the process's totals, for comparison; they include shared libraries
    """

    private_dirty: Figure
    mapped_weights: Figure
    rss: Figure
    pss: Figure

    @property
    def resident(self) -> Figure:
        return self.private_dirty + self.mapped_weights

    def since(self, baseline: Resident) -> Figure:
        """Growth of `resident` since `baseline`, a reading taken after the imports.

        Not below 0: pages given back since count as nothing.
        """
        now, then = self.resident, baseline.resident
        if now.bytes is None or then.bytes is None:
            return MISSING
        return Figure(max(0, now.bytes - then.bytes), "measured")


def measure_resident(weights: Iterable[Path] = (), smaps: Path = SMAPS) -> Resident:
    """Read this process's memory; every figure is missing where the system has no such account.

    `weights` are the files whose mapped pages count. A file written a moment ago has dirty pages
    although nobody wrote them through the mapping, so each page of a weight file counts there.
    """
    try:
        lines = smaps.read_text("utf-8", "replace").splitlines()
    except OSError:
        return Resident(MISSING, MISSING, MISSING, MISSING)
    wanted = {os.path.realpath(path) for path in weights}
    sums = {"Private_Dirty": 0, "Rss": 0, "Pss": 0}
    mapped, counted = 0, False
    for line in lines:
        header = _HEADER.match(line)
        if header is not None:
            counted = header.group(1).removesuffix(" (deleted)") in wanted
            continue
        name, _, rest = line.partition(":")
        if name not in sums:
            continue
        size = int(rest.split()[0]) * 1024
        if counted and name == "Rss":
            mapped += size
        if not (counted and name == "Private_Dirty"):
            sums[name] += size
    return Resident(
        Figure(sums["Private_Dirty"], "measured"),
        Figure(mapped, "measured"),
        Figure(sums["Rss"], "measured"),
        Figure(sums["Pss"], "measured"),
    )


def peak_resident(status: Path = Path("/proc/self/status")) -> Figure:
    """The most memory this process ever had resident (VmHWM); missing where it is not told."""
    try:
        found = re.search(r"^VmHWM:\s*(\d+) kB$", status.read_text("ascii"), re.MULTILINE)
    except OSError:
        return MISSING
    return MISSING if found is None else Figure(int(found.group(1)) * 1024, "measured")
