"""Workers end with what they work for: a parent that is killed, an error, Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from wmrt.core.errors import WmrtError
from wmrt.core.workers import worker_pool

PARENT = """
import subprocess, sys, time
worker = subprocess.Popen([sys.executable, "-c", '''
import time
from wmrt.core.workers import exit_with_parent
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


def test_a_pool_prepares_its_workers_and_gives_results() -> None:
    with worker_pool(2, os.putenv, "WMRT_WORKER", "prepared") as pool:
        found = [pool.submit(os.path.join, "a", str(n)) for n in range(5)]
        assert [future.result() for future in found] == [f"a/{n}" for n in range(5)]


def test_an_error_ends_workers_in_the_middle_of_what_they_do() -> None:
    begin = time.monotonic()
    with pytest.raises(ValueError, match="enough"), worker_pool(1) as pool:
        pid = pool.submit(os.getpid).result()
        for _ in range(4):
            pool.submit(time.sleep, 600)
        assert alive(pid)
        raise ValueError("enough")
    assert not alive(pid) and time.monotonic() - begin < 300


INTERRUPTED = """
import multiprocessing, signal, time
from wmrt.core.errors import WmrtError
from wmrt.core.workers import worker_pool
if __name__ == "__main__":
    # A shell that starts its jobs in the background has them ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with worker_pool(2) as pool:
            tasks = [pool.submit(time.sleep, 600) for _ in range(5)]
            print(*(worker.pid for worker in multiprocessing.active_children()), flush=True)
            tasks[0].result()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


def test_ctrl_c_is_for_the_process_that_started_them(tmp_path: Path) -> None:
    """As a terminal does it: to every process of the group, at any moment of their start."""
    (tmp_path / "main.py").write_text(INTERRUPTED)
    parent = subprocess.Popen(
        [sys.executable, str(tmp_path / "main.py")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert parent.stdout is not None
    try:
        workers = [int(pid) for pid in parent.stdout.readline().split()]
        os.killpg(parent.pid, signal.SIGINT)
        out, said = parent.communicate(timeout=120)
    finally:
        parent.kill()  # the workers follow
    assert (out, said, parent.returncode) == ("interrupted\n", "", 0)
    assert len(workers) == 2 and not any(alive(pid) for pid in workers)


def test_a_worker_that_is_killed_is_one_error_and_the_others_end() -> None:
    with pytest.raises(WmrtError, match=r"one of 2 worker processes died: it was killed, ran out"):
        with worker_pool(2) as pool:
            # Both workers are there first: a pool does not see the end of one that it just started.
            for future in [pool.submit(time.sleep, 0.5) for _ in range(2)]:
                future.result()
            waiting = pool.submit(time.sleep, 600)
            pool.submit(os._exit, 9).result(timeout=60)
    assert waiting.done()
