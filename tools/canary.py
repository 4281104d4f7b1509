"""A service whose answers are known, in a process of its own: for tools that look for mixed ones.

    WMRT_SERVE_PORT=8420 WMRT_SERVE_ROBOTS=16 python -m tools.canary

Settings come from the environment, as of `wmrt serve`. Each robot's answer is its own observation's
canary, and how many steps it has made since its reset. With ``--model`` the seats are those of
`wmrt serve`, in the same process as the rest.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import numpy as np
import torch

from tools.in_use import USED, keep_telling
from wmrt.core import memory
from wmrt.core.types import ActionDim, ActionSpec
from wmrt.model.schema import StateSchema, category, numeric
from wmrt.runtime.snapshot import Origin, Snapshot
from wmrt.service import peer, protocols, security
from wmrt.service.crew import Crew, load_crew
from wmrt.service.server import Server, addresses, listening
from wmrt.service.settings import read_settings

SCHEMA = StateSchema(
    {
        "canary": numeric("m", -1.0, 1.0, decimals=6, required=True),
        "wait": numeric("s", 0.0, 10.0, decimals=3),
        "lane": category(["left", "right"]),
    },
    neutral=(0.0, 0.0),
)
#: So quick that no rate limit gets between a robot and its canary.
ACTIONS = ActionSpec(
    (ActionDim("a", "m", -1.0, 1.0, 1e6, 1e6), ActionDim("b", "m", -1.0, 1.0, 1e6, 1e6))
)
#: Steps until the second actuator counts from 0 again.
TURN = 10_000


class CanarySeat:
    """Answers (canary, steps since the reset modulo `TURN`), after ``wait`` seconds."""

    schema: Any = SCHEMA
    actions = ACTIONS

    def __init__(self) -> None:
        self.steps = 0

    def reset(self) -> None:
        self.steps = 0

    def step(self, state: Mapping[str, Any], previous_action: Any) -> Any:
        if state.get("wait"):
            time.sleep(state["wait"])
        self.steps += 1
        action = [state["canary"] or 0.0, self.steps % TURN / TURN]
        return SimpleNamespace(action=np.array(action, np.float32))

    def snapshot(self) -> Snapshot:
        origin = Origin("canary", {}, "canary", {"name": "canary"})
        return Snapshot(origin, {"steps": torch.tensor([self.steps])}, torch.zeros(1), (0.0, 0.0))

    def restore(self, snapshot: Snapshot) -> None:
        self.steps = int(snapshot.tensors["steps"])

    def enter(self) -> None:
        """Nobody waits for it."""

    def leave(self) -> None:
        """Nobody waits for it."""


def counted(action: float) -> int:
    """Steps since the reset, modulo `TURN`, from the second actuator."""
    return round(action * TURN)


@click.command()
@click.option("--model", is_flag=True, help="The model that the settings name, not canaries.")
@click.option("--leak", default=0, type=click.IntRange(0), help="Bytes to keep of every step.")
@click.option("--patience", type=float, help="Seconds for what slow peers get; default as served.")
@click.option("--in-use", "told", is_flag=True, help="Tell what is in use, beside the socket.")
def main(model: bool, leak: int, patience: float | None, told: bool) -> None:
    """Serve until SIGTERM."""
    memory.steady_heap()  # as `wmrt serve`
    settings = read_settings()
    if told:
        assert settings.socket is not None, "--in-use is told beside the socket"
        keep_telling(Path(settings.socket).with_suffix(USED))
    if patience is not None:
        protocols.HEAD = peer.STALL = security.BODY_SECONDS = patience
    with listening(settings) as sockets:
        seats = [CanarySeat() for _ in range(settings.robots)]
        crew = load_crew(settings) if model else Crew(seats, settings)
        server = Server(crew, settings)
        kept = deque[bytes]()  # which grows evenly
        if leak:
            head = b"".__sizeof__()
            server.host.acted.append(
                lambda _: kept.append(len(kept).to_bytes(max(leak - head, 8), "little"))
            )
        for address in addresses(sockets, settings):
            click.echo(f"serving on {address}", err=True)
        server.run_on(sockets)


if __name__ == "__main__":
    main()
