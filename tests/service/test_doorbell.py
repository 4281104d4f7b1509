"""Where a policy's thread waits; what it does with a socket is in `test_owned`."""

from __future__ import annotations

import subprocess
import sys

_LEFT_RUNNING = """
from wmrt.control.worker import Worker
from wmrt.service.doorbell import Doorbell

worker = Worker(lambda question, restart: question + 1, "asked once")
worker.bell = Doorbell()
worker.ask(1)
assert worker.wait(20.0) and worker.take().answer == 2
"""


def test_a_process_ends_with_a_thread_that_waits() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LEFT_RUNNING], capture_output=True, text=True, timeout=60.0
    )
    assert done.returncode == 0 and done.stderr == ""
