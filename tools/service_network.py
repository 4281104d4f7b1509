"""A robot on another host, and the network between it and its service goes away without a word.

    python -m tools.service_network --json benchmarks/service_network.json

`tools.service_faults` cuts a proxy; here two hosts with Linux's own TCP are cut off from each
other, in network namespaces (`tools.namespaces`). Both kernels go on calling the connections open.
Two robots stream from the far host. One is waited for and goes on; the other one's place is given
to a client at the near host, once it is free.
"""

from __future__ import annotations

import contextlib
import json
import logging
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from tools.fault_case import STATE
from tools.namespaces import FAR, NEAR, Routed, absent, established, inside, routed
from tools.service_rig import ROOT, Robot, Service, serving, until
from wmrt.cli.common import console, falls_short, json_option, write_result
from wmrt.client import connect
from wmrt.core.errors import ServiceError, WmrtError

#: Settings of the service: seconds between pings, and for which a robot is held.
PING, HOLD = 1.0, 3.0
#: Seconds of the cut, at least: longer than the client hears nothing before it tries, in vain, to
#: connect anew (`wmrt.client.link.SILENCE`, 5).
CUT = 7.0
#: Seconds that a call at the far host may take, and that a busy machine may add to anything.
CALL, SLACK = 0.5, 20.0
RETURNS, TAKEN = "returns", "taken"


class FarRobot:
    """A `Robot` at the far host, in a process of its own."""

    def __init__(self, network: Routed, service: Service, name: str, token: str) -> None:
        task = {"address": f"ws://{NEAR}:{service.port}", "name": name, "token": token}
        command = [sys.executable, "-m", "tools.service_network", "--robot", json.dumps(task)]
        self._running = subprocess.Popen(
            network.at_far(command),
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def stop(self) -> dict[str, Any]:
        """What it has seen."""
        said, _ = self._running.communicate("stop\n", timeout=60.0)
        found: dict[str, Any] = json.loads(said)
        return found

    def kill(self) -> None:
        self._running.kill()
        self._running.communicate()


def stream(address: str, name: str, token: str) -> dict[str, Any]:
    """What a process at the far host does, until a line comes on stdin."""
    logging.disable(logging.WARNING)  # the client's words are in what is returned
    events: list[tuple[float, str, dict[str, Any]]] = []

    def note(event: str, details: Mapping[str, Any]) -> None:
        if event in ("connected", "lost"):
            events.append((time.monotonic(), event, dict(details)))

    own = Robot(address, name, token=token, deadline=CALL, opening=60.0, on_event=note)
    sys.stdin.readline()
    own.stop()
    return {
        "events": events,
        "counts": dict(own.counts),
        "counters": dict(own.client.counters),
        "mixed": len(own.mixed),
        "unsafe": len(own.unsafe),
        "longest_gap_s": own.longest,
    }


class Look:
    """What the service says of its robots, at the near host."""

    def __init__(self, service: Service, token: str) -> None:
        self.service, self.token = service, token

    def robot(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.service.info(self.token)["robots"].get(name, {})
        return found

    def connected(self, name: str) -> bool:
        return bool(self.robot(name).get("connected"))

    def steps(self, name: str, above: int = 0) -> int:
        """Steps so far; waits for more than ``above``."""
        until(lambda: self.robot(name).get("step", 0) > above, SLACK + 10.0)
        return int(self.robot(name)["step"])

    def refusal(self, name: str) -> str | None:
        """Why another client does not get the robot; None if it does, and has made a step."""
        try:
            with connect(self.service.unix, name, token=self.token, deadline=SLACK) as other:
                other.act(STATE)
        except ServiceError as error:
            return error.name
        return None


def cut(network: Routed, look: Look) -> dict[str, Any]:
    """The network goes, and comes back; seconds after which things were so."""
    names, pid = (RETURNS, TAKEN), look.service.pid
    before = {name: look.steps(name, 20) for name in names}
    files = look.service.files()
    network.forward(False)
    began = time.monotonic()
    time.sleep(0.3)
    open_still = established(pid, FAR)
    until(lambda: not any(look.connected(name) for name in names), 2 * PING + SLACK)
    noticed = time.monotonic() - began
    held = look.refusal(TAKEN)
    until(lambda: look.refusal(TAKEN) is None, HOLD + SLACK)
    freed = time.monotonic() - began
    with contextlib.suppress(WmrtError):  # then `wrong` says so
        until(lambda: look.service.files() <= files - 2, SLACK)  # its looks' own ones close too
    files_without = look.service.files()
    time.sleep(max(0.0, began + CUT - time.monotonic()))
    network.forward(True)
    mended = time.monotonic()
    steps = look.steps(RETURNS, look.robot(RETURNS)["step"])
    back = time.monotonic() - mended
    time.sleep(1.0)  # in which it goes on, and the other one is told
    return {
        "established_after_the_cut": open_still,
        "noticed_s": noticed,
        "refused_while_held": held,
        "freed_s": freed,
        "cut_off_s": mended - began,
        "back_s": back,
        "mended_at": mended,
        "steps": [before[RETURNS], steps],
        "files": [files, files_without],
    }


def wrong(found: dict[str, Any]) -> list[str]:
    """What is not as it should be."""
    near, back, gone = found["near"], found[RETURNS], found[TAKEN]
    mixed = {"mixed", "unsafe"} & {key for one in (back, gone) for key in one if one[key]}
    rules = {
        "a connection ended by the cut itself": near["established_after_the_cut"] >= 2,
        "noticed too early to be a silence": near["noticed_s"] > PING / 2,
        "a robot was free at once": near["refused_while_held"] == "held",
        "a robot was free before its time": near["freed_s"] - near["noticed_s"] > HOLD / 2,
        "descriptors of dead connections are left": near["files"][1] <= near["files"][0] - 2,
        "it does not go on where it was": near["steps"][1] > near["steps"][0],
        "the session was not resumed": back["counters"].get("resumed") == 1,
        "the client was not told": back["counters"].get("lost") == 1,
        "steps that do not follow": not back["counts"].get("steps_apart"),
        "the client did not try to connect during the cut": back["counters"]["attempts"] > 2,
        "no call missed its deadline": back["counts"].get("missed", 0) > 0,
        "who came too late was not told": gone["counts"].get("unknown_session", 0) > 0,
        "who came too late was served": gone["counters"].get("connected") == 1,
        "answers mixed or unsafe": not mixed,
    }
    return [said for said, fine in rules.items() if not fine]


@contextlib.contextmanager
def far_robot(*arguments: Any) -> Iterator[FarRobot]:
    one = FarRobot(*arguments)
    try:
        yield one
    finally:
        one.kill()


def measured() -> dict[str, Any]:
    """Everything, in namespaces that this process is in already."""
    token = secrets.token_urlsafe(24)
    settings: dict[str, Any] = {
        "robots": 2, "ping": PING, "hold": HOLD, "host": "0.0.0.0", "open": True, "token": token,
    }  # fmt: skip
    with routed() as network, serving(**settings) as service:
        look = Look(service, token)
        with (
            far_robot(network, service, RETURNS, token) as one,
            far_robot(network, service, TAKEN, token) as other,
        ):
            near = cut(network, look)
            found = {"near": near, RETURNS: one.stop(), TAKEN: other.stop()}
    mended = near.pop("mended_at")
    for name in (RETURNS, TAKEN):
        events = found[name]["events"]
        found[name]["events"] = [[at - mended, event, more] for at, event, more in events]
    return found


def show(found: dict[str, Any]) -> None:
    table = Table("what", "seconds")
    for key, said in (
        ("noticed_s", "from the cut until the service calls its robots gone"),
        ("freed_s", "until another client has one of them"),
        ("cut_off_s", "until the network is back"),
        ("back_s", "from then until the other one makes its next step"),
    ):
        table.add_row(said, f"{found['near'][key]:.2f}")
    console().print(table)
    counts, late = found[RETURNS]["counts"], found[TAKEN]["counts"]
    console().print(f"the one that goes on: {counts}\nthe one whose place was given away: {late}")


@click.command(epilog="Example: python -m tools.service_network --json network.json")
@click.option("--robot", hidden=True)
@click.option("--inside", "here", is_flag=True, hidden=True)
@json_option
def main(robot: str | None, here: bool, json_path: Path | None) -> None:
    """Cut a robot on another host off from its service, and mend it."""
    if robot is not None:
        print(json.dumps(stream(**json.loads(robot))), flush=True)
        return
    if not here:
        reason = absent()
        if reason is not None:
            raise click.UsageError(reason)
        own = [sys.executable, "-m", "tools.service_network", "--inside"]
        own += [] if json_path is None else ["--json", str(json_path)]
        raise SystemExit(subprocess.run(inside(own)).returncode)
    found = measured()
    show(found)
    found["wrong"] = wrong(found)
    write_result(json_path, found)
    if found["wrong"]:
        falls_short("; ".join(found["wrong"]))


if __name__ == "__main__":
    main()
