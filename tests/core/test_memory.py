"""What memory there is, and errors of every kind that mean there is none."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.core.heaps import heaps
from wmrt.core import machine, memory
from wmrt.core.errors import CheckpointError, OutOfMemoryError, UsageError
from wmrt.core.memory import Room

GIB = 1 << 30
OF_MACHINE, OF_SPACE = "of the machine", "of its address space (ulimit -v)"


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Control groups of our own, a machine with 8 GiB to have, and no limits."""
    monkeypatch.setattr(machine, "available_bytes", lambda: 8 * GIB)
    monkeypatch.setattr(memory, "_CGROUP", tmp_path / "own")
    monkeypatch.setattr(memory, "_CGROUPS", tmp_path)
    monkeypatch.setattr(memory, "_STATUS", tmp_path / "status")
    none = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda limit: none)
    return tmp_path


def group(folder: Path, most: str, used: int, cached: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{most}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 5\ninactive_file {cached}\n")


def test_this_machine_tells() -> None:
    there = memory.available()
    assert there is not None and 1 << 20 < there.bytes < 1 << 50


def test_the_machine_is_what_there_is(system: Path) -> None:
    assert memory.physical() == memory.available() == Room(8 * GIB, OF_MACHINE)


def test_a_control_group_and_those_above_it_limit(system: Path) -> None:
    (system / "own").write_text("12:devices:/x\n0::/pod/box\n")
    group(system / "pod/box", "max", 0)
    group(system / "pod", str(3 * GIB), 2 * GIB, cached=100)
    assert memory.physical() == Room(GIB + 100, "of its control group")
    group(system / "pod/box", str(GIB), 2 * GIB)
    assert memory.physical() == Room(0, "of its control group")
    (system / "pod/box/memory.stat").unlink()
    group(system / "pod", "max", 0)
    assert memory.physical() == Room(8 * GIB, OF_MACHINE)


def test_a_limit_of_the_process_limits(system: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (system / "status").write_text("Name:\tx\nVmSize:\t  1024 kB\nVmData:\t 512 kB\n")
    limits = {resource.RLIMIT_AS: 3 << 20, resource.RLIMIT_DATA: 2 << 20}
    monkeypatch.setattr(resource, "getrlimit", lambda limit: (limits[limit],) * 2)
    assert memory.available() == Room((2 << 20) - (512 << 10), "of its data (ulimit -d)")
    limits[resource.RLIMIT_AS] = 1 << 19
    assert memory.available() == Room(0, OF_SPACE)
    assert memory.physical() == Room(8 * GIB, OF_MACHINE)


def test_what_is_not_told_limits_nothing(system: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "available_bytes", lambda: None)
    assert memory.available() is None
    memory.require(1 << 60, "it")


def test_more_than_there_is_is_refused_before(system: Path) -> None:
    memory.require(8 * GIB, "the model")
    said = "the model needs 8,589,934,593 bytes of memory, 8,589,934,592 are available of the m"
    with pytest.raises(OutOfMemoryError, match=said):
        memory.require(8 * GIB + 1, "the model")


def run_out(kind: str) -> None:
    if kind == "torch":
        torch.empty(1 << 55, dtype=torch.uint8)
    elif kind == "numpy":
        np.empty(1 << 55, np.uint8)
    elif kind == "python":
        raise MemoryError
    elif kind == "system":
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
    elif kind == "loader":
        raise ImportError("libx.so: failed to map segment from shared object")
    else:
        raise CheckpointError(f"cannot be read: {os.strerror(errno.ENOMEM)}")


@pytest.mark.parametrize("kind", ["torch", "numpy", "python", "system", "loader", "own"])
def test_every_way_to_run_out_is_one_error(kind: str, system: Path) -> None:
    with pytest.raises(OutOfMemoryError) as caught, memory.told("building", lambda: 700):
        run_out(kind)
    more = "36,028,797,018,963,968 bytes" if kind == "torch" else "memory"
    assert str(caught.value) == (
        f"building: {more} could not be had, for weights of 700 bytes; 8,589,934,592 bytes are "
        "available of the machine"
    )
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize(
    "error",
    [RuntimeError("shape mismatch"), OSError(errno.ENOENT, "gone"), UsageError("no"), KeyError(1)],
)
def test_other_errors_stay_what_they_are(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, memory.told("building"):
        raise error
    assert caught.value is error


def test_an_error_that_is_told_is_not_told_again(system: Path) -> None:
    with pytest.raises(OutOfMemoryError, match=r"^inner: memory could not be had; 8,589"):
        with memory.told("outer"), memory.told("inner"):
            raise MemoryError


_HEAPS = """
import threading
from tests.core.heaps import heaps
from wmrt.core import memory

before = heaps()
{first}
threads = [threading.Thread(target=threading.Event().wait, args=(1.0,)) for _ in range(5)]
for thread in threads:
    thread.start()
print(heaps() - before)
"""


_BLOCKS = """
import ctypes
from tests.core.heaps import mapped
from wmrt.core import memory

{first}
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
libc.free(libc.malloc(8 << 20))  # a large block
before = mapped()
kept = libc.malloc(256 << 10)
print(mapped() - before)
"""


@pytest.mark.skipif(heaps() is None, reason="not glibc")
@pytest.mark.parametrize(
    ("program", "steady", "else_"), [(_HEAPS, 0, 5), (_BLOCKS, 1, 0)], ids=["threads", "blocks"]
)
@pytest.mark.parametrize("told", [True, False])
def test_a_thread_has_a_heap_of_its_own_and_a_block_has_none_unless_told(
    program: str, steady: int, else_: int, told: bool
) -> None:
    code = program.format(first="assert memory.steady_heap()" if told else "")
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == f"{steady if told else else_}\n"


@pytest.mark.parametrize("error", [AttributeError, OSError, TypeError])
def test_another_c_library_has_heaps_as_it_likes(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: None) -> None:
        raise error

    monkeypatch.setattr(memory.ctypes, "CDLL", refuse)
    assert not memory.steady_heap()
