"""What `make test-full` keeps: tried on a small repository with a few tests of its own."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import full_run
from tests.full_run import absence, problems, selection
from tests.house.tree import ROOT

INI = "[pytest]\ntestpaths = checks\naddopts = -p no:cacheprovider\n"
CONFTEST = """
from tests.full_run import FullRun

def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(FullRun(config))
"""
CHECKS = """
import time
import pytest

def test_passes(record_property): record_property("isa", "abacus")
def test_is_slow(): time.sleep(0.05)
def test_skips(): pytest.skip("there is no abacus: make setup-system installs it")
@pytest.mark.skip(reason="never here")
def test_is_left_out(): pass
@pytest.mark.xfail(strict=True)
def test_is_known_to_fail(): assert False
"""
ABSENT = "import pytest\npytest.importorskip('no_such_module', reason='no such extra')\n"
BROKEN = """
import pytest

def test_fails(): assert False

@pytest.fixture
def falls(): yield; assert False

def test_ends_badly(falls): pass
"""


def git(root: Path, *arguments: str) -> str:
    given = ["-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(root), *given, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def commit(root: Path) -> None:
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "next")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    (root / "checks").mkdir(parents=True)
    git(root, "init", "-q")
    (root / ".gitignore").write_text("__pycache__/\n")
    (root / "pytest.ini").write_text(INI)
    (root / "checks/conftest.py").write_text(CONFTEST)
    (root / "checks/test_absent.py").write_text(ABSENT)
    (root / "checks/test_some.py").write_text(CHECKS)
    commit(root)
    return root


def run(root: Path, *arguments: str, status: int = 0) -> str:
    """pytest there, with the plugin; what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "xdist", *arguments],
        cwd=root,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # half of the time it takes
            "WMRT_TEST_SEED": "7",
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


def written(root: Path) -> dict[str, Any]:
    text = (root / full_run.FOLDER / f"{platform.machine()}.json").read_text()
    document: dict[str, Any] = json.loads(text)
    return document


@pytest.mark.parametrize("processes", ["0", "2"])
def test_it_keeps_everything_there_is_to_know(repository: Path, processes: str) -> None:
    head = git(repository, "rev-parse", "HEAD")
    said = run(repository, "-n", processes)
    name = f"benchmarks/full/{platform.machine()}.json"
    assert f"wmrt: the result goes to {name}\n" in said and f"wmrt: kept in {name}\n" in said
    document = written(repository)
    assert document["command"] == ["make", "test-full"]
    assert document["identity"]["cpu"] and "commit" in document["identity"]
    results = document["results"]
    assert (results["commit"], results["changed"], results["exit_status"]) == (head, [], 0)
    assert results["counts"] == {"passed": 2, "failed": 0, "skipped": 3, "xfailed": 1}
    assert [(row["reason"], row["tests"]) for row in results["skipped"]] == [
        ("never here", 1),
        ("no such extra", 1),
        ("there is no abacus: make setup-system installs it", 1),
    ]
    assert results["isas"] == ["abacus"]
    slow = results["slowest"][0]
    assert slow["test"] == "checks/test_some.py::test_is_slow" and slow["seconds"] >= 0.05
    assert results["seed"] == "7" and results["duration_s"] >= results["slowest"][0]["seconds"]
    assert results["processes"] == max(1, int(processes))
    # Another run finds the kept result there, not committed, and is still one of that commit.
    run(repository)
    assert written(repository)["results"]["changed"] == [] == problems(repository)
    commit(repository)
    assert absence(repository) is None and problems(repository) == []


def test_failures_are_kept_and_told(repository: Path) -> None:
    (repository / "checks/test_broken.py").write_text(BROKEN)
    commit(repository)
    run(repository, status=1)
    results = written(repository)["results"]
    broken = [f"checks/test_broken.py::test_{name}" for name in ("ends_badly", "fails")]
    assert results["failed"] == broken and results["counts"]["failed"] == 2
    assert problems(repository) == [
        f"{platform.machine()}.json: 2 failed (exit 1): {', '.join(broken)}"
    ]


def test_a_changed_checkout_is_told_before_and_after(repository: Path) -> None:
    (repository / "checks/test_new.py").write_text("def test_new(): pass\n")
    assert "as one of a changed checkout (checks/test_new.py" in run(repository)
    assert written(repository)["results"]["changed"] == ["checks/test_new.py"]
    (told,) = problems(repository)
    assert told.endswith("it ran in a changed checkout: checks/test_new.py")


def test_a_checkout_that_changes_meanwhile_is_a_changed_one(repository: Path) -> None:
    change = "def test_it():\n    open('new.txt', 'w').close()\n"
    (repository / "checks/test_some.py").write_text(change)
    commit(repository)
    run(repository)
    assert written(repository)["results"]["changed"] == ["new.txt"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [(["-k", "passes"], "-k was given"), (["checks/test_some.py"], "paths were named")],
)
def test_a_run_of_some_tests_is_not_kept(arguments: list[str], why: str, repository: Path) -> None:
    said = run(repository, *arguments)
    assert f"wmrt: {why}, so the result of this run is not kept" in said
    assert f"wmrt: not kept: {why}" in said
    assert not (repository / "benchmarks").exists()


@pytest.mark.parametrize("name", full_run.SELECT)
def test_every_option_that_leaves_tests_out_is_known(
    name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = request.config
    monkeypatch.setattr(config, "args_source", pytest.Config.ArgsSource.TESTPATHS)
    for option in full_run.SELECT:
        # Raises for one that pytest lacks; the last two come with its cache, which may be off.
        monkeypatch.setattr(config.option, option, None, raising=option not in ("lf", "stepwise"))
    assert selection(config) is None
    monkeypatch.setattr(config.option, name, "something")
    assert selection(config) == f"{full_run.SELECT[name]} was given"


def test_a_run_that_does_not_end_is_not_kept(repository: Path) -> None:
    (repository / "checks/test_broken.py").write_text("import no_such_module\n")
    commit(repository)
    assert "not kept: the run did not end (status 2)" in run(repository, status=2)
    assert not (repository / "benchmarks").exists()


def test_without_git_nothing_is_kept(repository: Path, tmp_path: Path) -> None:
    (repository / ".git").rename(tmp_path / "aside")
    assert "there is no git checkout here, so the result" in run(repository)
    assert "no git checkout" in str(absence(repository))


def test_no_result_and_one_of_another_history_are_problems(repository: Path) -> None:
    (told,) = problems(repository)
    assert told.startswith("benchmarks/full holds no result: run make test-full")
    first = git(repository, "rev-parse", "HEAD")
    run(repository)
    commit(repository)
    assert problems(repository) == []
    git(repository, "checkout", "-q", "--orphan", "other")
    commit(repository)
    (told,) = problems(repository)
    assert f"its commit {first[:12]} is no ancestor of HEAD" in told
    assert absence(repository) is None


def test_a_shallow_clone_cannot_tell(repository: Path, tmp_path: Path) -> None:
    run(repository)
    commit(repository)
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{repository}", str(clone))
    assert "shallow clone" in str(absence(clone))
    git(clone, "fetch", "-q", "--unshallow")
    assert absence(clone) is None and problems(clone) == []
