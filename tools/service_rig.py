"""A service in a process of its own, a robot that must not notice, and what the process weighs."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import resource
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tools.canary import TURN, counted
from tools.in_use import USED, bound
from wmrt.client import Backoff, Client, connect
from wmrt.core.errors import WmrtError

ROOT = Path(__file__).resolve().parents[1]
#: What no reply may hold.
SECRETS = ("Traceback", 'File "', ".py", "site-packages", str(ROOT))


class Service:
    """The process, on a TCP port and, without TLS, on a Unix socket; snapshots beside it.

    Args:
        arguments: of `tools.canary`. settings: of `wmrt serve`.

    Attributes:
        port, socket, folder. said: its last lines on stderr.
    """

    def __init__(self, folder: Path, *arguments: str, **settings: Any) -> None:
        self.folder, self.port = folder, free_port()
        self.socket = None if "tls_cert" in settings else folder / "wmrt.sock"
        self.said: deque[str] = deque(maxlen=200)
        self._arguments = arguments
        own = {"port": self.port, "period": 0.02, "deadline": 5.0, "cpu": -1, "rate": 1e6}
        if self.socket is not None:
            own["socket"] = self.socket
        self._environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        for name, value in (own | settings).items():
            given = folder / value if name in ("snapshots", "audit") else value
            self._environment[f"WMRT_SERVE_{name.upper()}"] = str(given)
        self.scheme = "https" if "tls_cert" in settings else "http"
        self.start()

    def start(self) -> None:
        """Start it, and wait until it is ready."""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tools.canary", *self._arguments],
            cwd=ROOT, env=self._environment, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        until(lambda: self.process.poll() is not None or self.status("/readyz") == 200, 120.0)
        if self.process.poll() is not None:
            self._listener.join(10.0)
            raise WmrtError(f"the service ended: {' '.join(self.said)[-500:]}")

    def _listen(self) -> None:
        assert self.process.stderr is not None  # a pipe was asked for
        with self.process.stderr as stream:
            self.said.extend(stream)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def unix(self) -> str:
        return f"unix:{self.socket}"

    @property
    def tcp(self) -> str:
        return f"ws://127.0.0.1:{self.port}"

    def status(self, path: str) -> int:
        """Status of a probe; 0 if nobody answers."""
        try:
            return int(fetch(self.port, path, scheme=self.scheme)[0])
        except (OSError, http.client.HTTPException):
            return 0

    def info(self, token: str | None = None) -> dict[str, Any]:
        """What `/v1/info` says."""
        data: dict[str, Any] = json.loads(fetch(self.port, "/v1/info", token)[1])
        return data

    def kill(self) -> None:
        """As a power cut would."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(30.0)
        self._listener.join(10.0)

    def stop(self) -> int:
        """SIGTERM; its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60.0)

    def dirty(self) -> int:
        """Private dirty bytes."""
        text = Path(f"/proc/{self.pid}/smaps_rollup").read_text()
        return 1024 * next(int(x.split()[1]) for x in text.splitlines() if "Private_Dirty" in x)

    def in_use(self) -> int:
        """Bytes, at most, that it has in use; of one started with ``--in-use``."""
        assert self.socket is not None, "told beside the socket"
        return bound(self.socket.with_suffix(USED))

    def files(self) -> int:
        """Open descriptors."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def threads(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/task"))

    @contextlib.contextmanager
    def full_disk(self) -> Iterator[None]:
        """No file of it can grow beyond 512 bytes."""
        before = resource.prlimit(self.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (512, before[1]))
        try:
            yield
        finally:
            resource.prlimit(self.pid, resource.RLIMIT_FSIZE, before)


@contextlib.contextmanager
def serving(*arguments: str, **settings: Any) -> Iterator[Service]:
    """A service in a folder of its own; both are gone at the end."""
    with tempfile.TemporaryDirectory(prefix="wmrt-") as name:
        service = Service(Path(name), *arguments, **settings)
        try:
            yield service
        finally:
            service.kill()


class Robot:
    """A robot that streams canaries in a thread, and keeps count of what it gets.

    Attributes:
        counts: answers, late, missed (deadlines), refused_NAME. mixed: answers that are not its
            own. unsafe: actions that are not finite or not in [-1, 1].
        took: seconds of each answer. longest: between two answers.
        apart: the last count of steps that does not follow the one before, and what came with it.
    """

    def __init__(self, address: str, name: str, hz: float = 25.0, **options: Any) -> None:
        self.counts: Counter[str] = Counter()
        self.mixed: list[Any] = []
        self.unsafe: list[Any] = []
        self.took: list[float] = []
        self.longest, self.apart = 0.0, ""
        self._hz, self._stop = hz, threading.Event()
        self._rng = random.Random(f"{name} {secrets_seed()}")
        options = {"deadline": 20.0, "backoff": Backoff(0.02, 0.2)} | options
        self.client: Client = connect(address, name, **options)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        steps, due = 0, time.monotonic()
        answered = due
        while not self._stop.is_set():
            canary = round(self._rng.uniform(-1, 1), 6)
            lost = self.client.counters["steps_lost"]
            try:
                answer = self.client.act({"canary": canary, "wait": 0.0, "lane": "left"})
            except WmrtError as error:
                name = getattr(error, "name", "missed")
                self.counts[name] += 1
                steps += name == "answer_lost"  # it was stepped
            else:
                now = time.monotonic()
                self.longest, answered = max(self.longest, now - answered), now
                self.took.append(answer.round_trip_ns * 1e-9)
                self.counts["answers"] += 1
                self._look(answer, canary)
                steps = counted(float(answer.action[1])) if steps == 0 else steps + 1
                steps -= self.client.counters["steps_lost"] - lost
                found = counted(float(answer.action[1]))
                if found % TURN != steps % TURN:
                    self.counts["steps_apart"] += 1
                    self.apart = f"{found} after {steps - 1}, {answer.source}, late {answer.late}"
                    self.apart += f", {dict(self.counts)}"
                    steps = found
            due = max(due + 1 / self._hz, time.monotonic() - 1 / self._hz)
            self._stop.wait(max(0.0, due - time.monotonic()))

    def _look(self, answer: Any, canary: float) -> None:
        if not all(-1.0 <= value <= 1.0 for value in answer.action):
            self.unsafe.append(answer)
        if answer.source == "policy" and abs(float(answer.action[0]) - canary) > 1e-6:
            self.mixed.append((canary, answer))
        self.counts[answer.source] += 1
        self.counts["late"] += answer.late

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60.0)
        self.client.close()


@contextlib.contextmanager
def robot(address: str, name: str, **options: Any) -> Iterator[Robot]:
    """A `Robot` that streams during the block."""
    one = Robot(address, name, **options)
    try:
        yield one
    finally:
        one.stop()


def secrets_seed() -> int:
    """Fresh canaries in every run; WMRT_TEST_SEED repeats them."""
    return int(os.environ.get("WMRT_TEST_SEED", random.SystemRandom().getrandbits(32)))


def fetch(port: int, path: str, token: str | None = None, scheme: str = "http") -> tuple[int, str]:
    """GET on this host, whatever proxy the environment names. OSError if nobody answers."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    asked = urllib.request.Request(f"{scheme}://127.0.0.1:{port}{path}", headers=headers)
    context = ssl._create_unverified_context() if scheme == "https" else None
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    )
    try:
        with opener.open(asked, timeout=10.0) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def post(port: int, path: str, body: dict[str, Any]) -> int:
    """POST a JSON object on this host; the status."""
    own = http.client.HTTPConnection("127.0.0.1", port, timeout=10.0)
    with contextlib.closing(own):
        own.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        return own.getresponse().status


def free_port() -> int:
    """A port that nobody listens on now."""
    import socket

    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        return int(own.getsockname()[1])


def until(true: Callable[[], Any], seconds: float) -> float:
    """Wait until something is so; the seconds that it took. `WmrtError` if it does not come."""
    began = time.monotonic()
    while not true():
        if time.monotonic() - began > seconds:
            raise WmrtError(f"it did not come to be within {seconds:g} s")
        time.sleep(0.01)
    return time.monotonic() - began
