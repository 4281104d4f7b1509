from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from wmrt.core import machine


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=t", "-c", "user.email=t@example.invalid")
    command = ["git", *who, "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one commit, which `machine` takes for its own."""
    source = tmp_path / "repository" / "wmrt" / "core" / "machine.py"
    source.parent.mkdir(parents=True)
    source.write_text("first\n")
    root = tmp_path / "repository"
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "first")
    monkeypatch.setattr(machine, "__file__", str(source))
    return root


def test_commit_of_a_clean_checkout(checkout: Path) -> None:
    assert machine.source_commit() == git(checkout, "rev-parse", "HEAD")


def test_an_untracked_file_leaves_the_source_as_it_is(checkout: Path) -> None:
    (checkout / "out.json").write_text("{}")
    assert machine.source_commit() == git(checkout, "rev-parse", "HEAD")


def test_a_changed_file_makes_it_dirty(checkout: Path) -> None:
    (checkout / "wmrt/core/machine.py").write_text("second\n")
    assert machine.source_commit() == git(checkout, "rev-parse", "HEAD") + "-dirty"


def test_an_installed_wheel_does_not_take_the_commit_around_it(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = checkout / "env" / "site-packages" / "wmrt" / "core" / "machine.py"
    monkeypatch.setattr(machine, "__file__", str(inner))
    inner.parent.mkdir(parents=True)
    assert machine.source_commit() is None


def test_no_repository_and_no_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "__file__", str(tmp_path / "wmrt" / "core" / "machine.py"))
    assert machine.source_commit() is None
    monkeypatch.setenv("PATH", "")
    assert machine.source_commit() is None


def test_cpu_facts() -> None:
    assert machine.cpu_name()
    assert 1 <= machine.usable_cpus() <= (os.cpu_count() or 1)
    assert machine.usable_cpus() == len(os.sched_getaffinity(0))


def test_cpu_facts_come_from_cpuinfo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: Chip 9\nflags\t\t: fpu avx2 fma\n\n")
    monkeypatch.setattr(machine, "_CPUINFO", cpuinfo)
    assert machine.cpu_name() == "Chip 9"
    assert machine.cpu_features() == ("avx2", "fma")
    cpuinfo.write_text("processor\t: 0\nFeatures\t: fp asimd asimddp\n")
    assert machine.cpu_features() == ("asimd", "asimddp")
    cpuinfo.unlink()
    assert machine.cpu_features() == ()
    assert machine.cpu_name()


def test_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       2048 kB\nMemFree: 1 kB\n")
    monkeypatch.setattr(machine, "_MEMINFO", meminfo)
    assert machine.memory_bytes() == 2 * 1024 * 1024
    meminfo.write_text("nothing\n")
    assert machine.memory_bytes() is None


def test_versions_without_an_import() -> None:
    assert machine.installed_version("pytest") == pytest.__version__
    assert machine.installed_version("no-such-distribution-at-all") is None


def test_physical_cpus_are_one_of_every_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = sorted(os.sched_getaffinity(0))
    found = machine.physical_cpus()
    assert set(found) <= set(mine) and 1 <= len(found) <= machine.usable_cpus()
    monkeypatch.setattr(machine, "_CPUS", tmp_path)
    assert machine.physical_cpus() == tuple(mine)  # unknown
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 2, 3, 5})
    for cpu, siblings in {1: "1,5", 2: "2-3", 3: "2-3", 5: "1,5"}.items():
        (tmp_path / f"cpu{cpu}" / "topology").mkdir(parents=True)
        (tmp_path / f"cpu{cpu}" / "topology" / "thread_siblings_list").write_text(f"{siblings}\n")
    assert machine.physical_cpus() == (1, 2)


def test_huge_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_HUGE_PAGES", tmp_path / "enabled")
    assert machine.huge_pages() is None
    (tmp_path / "enabled").write_text("always [madvise] never\n")
    assert machine.huge_pages() == "madvise"


def test_real_time_is_found_out_by_trying(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = os.sched_getscheduler(0)
    machine.realtime_refusal()
    assert os.sched_getscheduler(0) == policy  # tried elsewhere

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    assert machine.realtime_refusal() == "Operation not permitted"
    monkeypatch.delattr(os, "sched_setscheduler")
    assert "no sched_setscheduler" in str(machine.realtime_refusal())


def test_lockable_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    monkeypatch.setattr(machine, "_STATUS", tmp_path / "status")
    monkeypatch.setattr(resource, "getrlimit", lambda which: (65_536, 65_536))
    assert machine.lockable_bytes() == 65_536
    (tmp_path / "status").write_text("Name:\tx\nCapEff:\t0000000000000000\n")
    assert machine.lockable_bytes() == 65_536
    (tmp_path / "status").write_text("Name:\tx\nCapEff:\t0000000000004000\n")
    assert machine.lockable_bytes() is None
    (tmp_path / "status").write_text("CapEff:\t0\n")
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda which: unlimited)
    assert machine.lockable_bytes() is None


def test_memory_cache_and_governor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "MemTotal:  100 kB\nMemFree: 1 kB\nMemAvailable:   50 kB\n"
    (tmp_path / "meminfo").write_text(lines)
    monkeypatch.setattr(machine, "_MEMINFO", tmp_path / "meminfo")
    assert machine.available_bytes() == 50 * 1024
    for index, size in enumerate(("32K", "1M", "odd", "512K")):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(size + "\n")
    monkeypatch.setattr(machine, "_CACHES", tmp_path)
    assert machine.last_level_cache_bytes() == 2**20
    (tmp_path / "governor").write_text("performance\n")
    monkeypatch.setattr(machine, "_GOVERNOR", tmp_path / "governor")
    assert machine.frequency_governor() == "performance"
    for name in ("_MEMINFO", "_CACHES", "_GOVERNOR"):
        monkeypatch.setattr(machine, name, tmp_path / "nowhere")
    assert machine.available_bytes() is None
    assert machine.last_level_cache_bytes() is None
    assert machine.frequency_governor() is None
