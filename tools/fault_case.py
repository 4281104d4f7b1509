"""A fault of the service's surroundings: what is done, what is expected, what is seen."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tools.service_rig import SECRETS, Robot, Service, until
from wmrt.client import Client
from wmrt.core.errors import WmrtError
from wmrt.core.wire import FLOATS, Observed, pack_observed, session_number
from wmrt.core.wire_state import StateLayout

#: What a fault may cost the process for good, and while it lasts; bytes.
KEPT, PEAK = 8 << 20, 32 << 20
STATE = {"canary": 0.25, "wait": 0.0, "lane": "left"}


class UnexpectedError(WmrtError):
    """Something else was seen than what is expected."""


@dataclass
class Seen:
    """In words; seconds until all was as before, where it took any; actions that were lost."""

    said: str
    recovery_s: float | None = None
    lost: int = 0


@dataclass
class Scene:
    """A fault, as it happens.

    Attributes:
        service: shared with the faults before. by: a robot that streams, and must not notice.
        patience: seconds that slow peers get. long: the long form.
        replies: what the service said to whoever made the fault.
    """

    service: Service
    by: Robot
    patience: float
    long: bool = False
    replies: list[str] = field(default_factory=list)

    def expect(self, true: object, said: str) -> None:
        if not true:
            raise UnexpectedError(said)

    def status(self, reply: str, allowed: int | None = None) -> None:
        """The reply has this status, or one below 500; or the connection was just closed."""
        self.replies.append(reply)
        found = [int(status) for status in re.findall(r"^HTTP/1\.1 (\d{3})", reply, re.M)]
        wrong = [s for s in found if s >= 500 or (allowed is not None and s != allowed)]
        self.expect(not wrong, f"status {wrong}: {reply[:80]}")

    def raw(self, name: str) -> Raw:
        """A client of robot ``name`` that says what it is told to."""
        return Raw(self.service, name, self.replies)


class Raw:
    """A session with the service, one message at a time."""

    def __init__(self, service: Service, name: str, replies: list[str]) -> None:
        self.client = Client(service.unix, name, opening=20.0)
        self.replies = replies
        self._link = self.client._link
        self._layout = StateLayout(self.client.schema)
        self.channel: Any = self._link._channel

    def packed(self, sequence: int, **changes: Any) -> bytes:
        """A binary observation."""
        own = session_number(self.client.session)
        seen = Observed(self.client.robot, own, self.client.epoch, sequence, STATE)
        seen = seen._replace(**changes)
        return pack_observed(seen, FLOATS, self._layout.pack(seen.state))

    def say(self, message: bytes | str) -> None:
        self.channel.send(message, time.monotonic() + 10.0)

    def hear(self, seconds: float = 10.0) -> Any:
        """An `Acted`, or a JSON object."""
        from wmrt.core.wire import unpack_acted

        message = self.channel.receive(time.monotonic() + seconds)
        if isinstance(message, bytes):
            return unpack_acted(message)
        self.replies.append(message)
        return json.loads(message)

    def name(self, message: bytes | str) -> str:
        """The name of the refusal that a message gets, or ``action``."""
        self.say(message)
        got = self.hear()
        return str(got["error"]["name"]) if isinstance(got, dict) else "action"

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()


@dataclass(frozen=True)
class Case:
    """A fault by its name, what is expected, and what makes it happen."""

    fault: str
    expected: str
    do: Callable[[Scene], Seen]


def case(fault: str, expected: str) -> Callable[[Callable[[Scene], Seen]], Case]:
    """Makes a `Case` of a function."""
    return lambda do: Case(fault, expected, do)


@dataclass
class Row:
    """A line of the matrix. ``wrong``: what is not as it should be; empty if all is."""

    fault: str
    expected: str
    seen: str
    recovery_s: float | None
    actions_lost: int
    mixed: int
    unsafe: int
    bystander_answers: int
    bystander_longest_gap_s: float
    peak_bytes: int
    kept_bytes: int
    seconds: float
    wrong: str


class Watch:
    """The peak of the process's memory during the block."""

    def __init__(self, service: Service) -> None:
        self._service, self.peak, self._ended = service, 0, threading.Event()

    def __enter__(self) -> Watch:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def _run(self) -> None:
        while not self._ended.wait(0.05):
            try:
                self.peak = max(self.peak, self._service.dirty())
            except (OSError, StopIteration):  # it is being killed
                continue

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(10.0)


def run(one: Case, scene: Scene) -> Row:
    """Make a fault happen, and look at what it did to everybody else."""
    service, by = scene.service, scene.by
    files, before, answers = service.files(), service.dirty(), by.counts["answers"]
    by.longest, scene.replies = 0.0, []
    began, wrong, seen = time.monotonic(), [], Seen("")
    with Watch(service) as watch:
        try:
            seen = one.do(scene)
        except (WmrtError, OSError) as error:
            wrong.append(str(error) or type(error).__name__)
    seconds = time.monotonic() - began
    wrong += _after(scene, files)
    ended = service.process.poll() is not None
    peak, kept = watch.peak - before, 0 if ended else service.dirty() - before
    wrong += [f"{peak >> 20} MiB more while it lasted"] * (peak > PEAK)
    wrong += [f"{kept >> 20} MiB more for good"] * (kept > KEPT)
    wrong += ["a path in a reply"] * any(s in reply for reply in scene.replies for s in SECRETS)
    return Row(
        one.fault, one.expected, seen.said, seen.recovery_s, seen.lost, len(by.mixed),
        len(by.unsafe), by.counts["answers"] - answers, by.longest, peak, kept, seconds,
        "; ".join(wrong),
    )  # fmt: skip


def _after(scene: Scene, files: int) -> list[str]:
    """What is not as before."""
    service, by = scene.service, scene.by
    if service.process.poll() is not None:
        return ["the process ended"]
    wrong = [f"{len(by.mixed)} mixed answers"] * bool(by.mixed)
    wrong += [f"{len(by.unsafe)} unsafe actions"] * bool(by.unsafe)
    wrong += [f"steps that do not follow: {by.apart}"] * bool(by.counts["steps_apart"])
    steps = by.counts["answers"]
    for true, said in (
        (lambda: by.counts["answers"] > steps + 3, "the bystander stopped"),
        (lambda: service.status("/healthz") == 200, "not healthy"),
        (lambda: service.files() <= files + 1, "descriptors are not back"),
    ):
        try:
            until(true, 20.0)
        except WmrtError:
            wrong.append(f"{said}: {service.files()} of {files} files")
    return wrong
