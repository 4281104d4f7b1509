"""Dockerfiles as lists of instructions."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NamedTuple

from tests.house.tree import ROOT

FOLDER = ROOT / "deploy/docker"
DOCKERFILES = ("Dockerfile", "Dockerfile.jetson")
#: Whom the service runs as.
USER = "10001:10001"


class Instruction(NamedTuple):
    name: str
    text: str

    def listed(self) -> list[str]:
        """Of the exec form: no shell between the signal and the program."""
        found: list[str] = json.loads(self.text)
        return found

    def pairs(self) -> dict[str, str]:
        return dict(re.findall(r"(\w+)=(\S+)", self.text))


def instructions(path: Path) -> list[Instruction]:
    kept = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(kept).replace("\\\n", " ")
    return [
        Instruction(*re.split(r"\s+", re.sub(r"\s+", " ", line).strip(), maxsplit=1))
        for line in joined.splitlines()
        if line.strip()
    ]


def stages(path: Path) -> list[list[Instruction]]:
    """By FROM; what stands before the first one comes first."""
    found: list[list[Instruction]] = [[]]
    for instruction in instructions(path):
        if instruction.name == "FROM":
            found.append([])
        found[-1].append(instruction)
    return found
