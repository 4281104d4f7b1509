"""A killed parent takes its workers with it."""

from __future__ import annotations

import os
import subprocess
import sys
import time

PARENT = """
import subprocess, sys, time
worker = subprocess.Popen([sys.executable, "-c", '''
import time
from wmrt.core.parent import exit_with_parent
exit_with_parent()
print("watching", flush=True)
time.sleep(600)
'''], stdout=subprocess.PIPE)
worker.stdout.readline()
print(worker.pid, flush=True)
time.sleep(600)
"""


def alive(pid: int) -> bool:
    """Whether the process runs; one that only waits to be reaped does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_worker_ends_after_its_parent_was_killed() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    try:
        assert alive(worker)
        parent.kill()
        parent.wait()
        parent.stdout.close()
        until = time.monotonic() + 60
        while alive(worker) and time.monotonic() < until:
            time.sleep(0.1)
        assert not alive(worker)
    finally:
        if alive(worker):
            os.kill(worker, 9)
