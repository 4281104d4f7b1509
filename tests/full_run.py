"""Keeps the result of `make test-full` in benchmarks/full/, and says what is wrong with a kept one.

`FullRun` is a pytest plugin; conftest.py registers it when WMRT_FULL=1. It writes only for all of
the tests: a run of some of them, or one that was interrupted, proves nothing about the rest.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

FOLDER = "benchmarks/full"
SLOWEST = 30
#: Options that leave tests out or end a run early, as the command line spells them.
SELECT = {
    "keyword": "-k",
    "markexpr": "-m",
    "deselect": "--deselect",
    "ignore": "--ignore",
    "ignore_glob": "--ignore-glob",
    "lf": "--last-failed",
    "stepwise": "--stepwise",
    "collectonly": "--collect-only",
    "maxfail": "--maxfail",
}


def git(root: Path, *arguments: str) -> str | None:
    """Output of a git command in ``root``; None if it fails or there is no git."""
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def commit_of(root: Path) -> str | None:
    """The commit checked out in ``root``; None where ``root`` is no checkout of its own."""
    top = git(root, "rev-parse", "--show-toplevel")
    if top is None or Path(top).resolve() != root.resolve():
        return None
    return git(root, "rev-parse", "--verify", "--quiet", "HEAD") or None


def changed_files(root: Path) -> list[str]:
    """Files that differ from the commit, new ones included; the kept results do not count."""
    status = git(root, "status", "--porcelain", "-uall", "--", ".", f":(exclude){FOLDER}") or ""
    return [line.split(maxsplit=1)[-1] for line in status.splitlines()]


def selection(config: pytest.Config) -> str | None:
    """What makes a run one of some tests only; None: it is all of them."""
    if config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return "paths were named"
    used = [said for name, said in SELECT.items() if config.getoption(name, None)]
    return f"{used[0]} was given" if used else None


def recorded(reports: Iterable[Any], name: str) -> list[str]:
    """What tests that passed gave `record_property` under ``name``, each value once."""
    pairs = [pair for report in reports for pair in getattr(report, "user_properties", ())]
    return sorted({str(value) for key, value in pairs if key == name})


class FullRun:
    """Collects every test's outcome in the controlling process and writes them at the end."""

    def __init__(self, config: pytest.Config) -> None:
        self.root, self.config = config.rootpath, config
        self.path = self.root / FOLDER / f"{platform.machine()}.json"
        self.begin = time.monotonic()
        self.commit, self.changed = commit_of(self.root), changed_files(self.root)
        self.refusal = selection(config)
        if self.refusal is None and self.commit is None:
            self.refusal = "there is no git checkout here"
        self.outcomes: dict[str, str] = {}
        self.seconds: Counter[str] = Counter()
        self.reasons: dict[str, str] = {}
        self.isas: set[str] = set()

    def pytest_report_header(self) -> str:
        if self.refusal is not None:
            return f"wmrt: {self.refusal}, so the result of this run is not kept"
        said = f"wmrt: the result goes to {self.path.relative_to(self.root)}"
        if self.changed:
            said += f" as one of a changed checkout ({', '.join(self.changed[:3])}, ...): no proof"
        return said

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if not report.passed:  # a module that is left out, or does not import
            self._take(report.nodeid, report.outcome, report.longrepr)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration
        outcome = "xfailed" if hasattr(report, "wasxfail") and report.skipped else report.outcome
        if report.when == "call" and report.passed:
            self.isas |= set(recorded([report], "isa"))
        if report.when == "call" or outcome != "passed":
            self._take(report.nodeid, outcome, report.longrepr)

    def _take(self, test: str, outcome: str, why: object) -> None:
        if self.outcomes.get(test) == "failed":
            return  # a teardown does not make it better
        self.outcomes[test] = outcome
        if outcome == "skipped":  # (file, line, "Skipped: reason")
            text = why[2] if isinstance(why, tuple) else str(why)
            self.reasons[test] = str(text).removeprefix("Skipped: ")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        if exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            self.refusal = self.refusal or f"the run did not end (status {int(exitstatus)})"
        if self.refusal is None:
            self._write(int(exitstatus))

    def _write(self, exitstatus: int) -> None:
        from wmrt.cli.common import identity, write_document

        if commit_of(self.root) != self.commit:
            self.changed.append("another commit was checked out during the run")
        changed = [*self.changed, *changed_files(self.root)]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        results = {
            "commit": self.commit,
            "changed": sorted(set(changed)),
            "exit_status": exitstatus,
            **self._outcomes(),
            "isas": sorted(self.isas),
            "duration_s": round(time.monotonic() - self.begin, 1),
            "seed": os.environ.get("WMRT_TEST_SEED"),
            "processes": self.config.getoption("numprocesses", None) or 1,
            "python": platform.python_version(),
            "platform": platform.platform(),
        }
        write_document(self.path, ["make", "test-full"], identity(), results)

    def _outcomes(self) -> dict[str, Any]:
        """Counts, failed tests, skipped ones by reason, and where the time went."""
        counts = Counter(self.outcomes.values())
        skipped: dict[str, list[str]] = {}
        for test, reason in self.reasons.items():
            if self.outcomes[test] == "skipped":
                skipped.setdefault(reason, []).append(test)
        slowest = self.seconds.most_common(SLOWEST)
        return {
            "counts": {name: counts[name] for name in ("passed", "failed", "skipped", "xfailed")},
            "failed": sorted(test for test, how in self.outcomes.items() if how == "failed"),
            "skipped": [
                {"reason": reason, "tests": len(tests), "first": min(tests)}
                for reason, tests in sorted(skipped.items())
            ],
            "tests_s": round(sum(self.seconds.values()), 1),
            "slowest": [{"test": test, "seconds": round(s, 2)} for test, s in slowest],
        }

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.refusal is not None:
            terminalreporter.write_line(f"wmrt: not kept: {self.refusal}")
        else:
            terminalreporter.write_line(f"wmrt: kept in {self.path.relative_to(self.root)}")


def absence(root: Path) -> str | None:
    """Why nothing can be said about kept runs here: no checkout, or one without its past."""
    if commit_of(root) is None:
        return "no git checkout: a kept run's commit cannot be compared with anything"
    for _, results in kept(root):
        here = git(root, "cat-file", "-e", f"{results.get('commit')}^{{commit}}") is not None
        if not here and git(root, "rev-parse", "--is-shallow-repository") == "true":
            return "a shallow clone: the commit of a kept run is not in it"
    return None


def kept(root: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Kept runs: file and results."""
    for path in sorted((root / FOLDER).glob("*.json")):
        yield path, json.loads(path.read_text("utf-8"))["results"]


def problems(root: Path) -> list[str]:
    """What is wrong with the kept runs of ``root``, one line each; none: they stand."""
    found = list(kept(root))
    if not found:
        return [f"{FOLDER} holds no result: run make test-full and commit what it writes there"]
    return [f"{path.name}: {what}" for path, results in found for what in _wrong(root, results)]


def _wrong(root: Path, results: dict[str, Any]) -> Iterator[str]:
    commit, counts = str(results["commit"]), results["counts"]
    if git(root, "merge-base", "--is-ancestor", commit, "HEAD") is None:
        yield f"its commit {commit[:12]} is no ancestor of HEAD: run make test-full again"
    if results["changed"]:
        yield f"it ran in a changed checkout: {', '.join(results['changed'][:5])}"
    if counts["failed"] or results["exit_status"]:
        failed = ", ".join(results["failed"][:5])
        yield f"{counts['failed']} failed (exit {results['exit_status']}): {failed}"
    if not counts["passed"]:
        yield "nothing passed"
