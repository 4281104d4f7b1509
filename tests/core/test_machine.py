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
