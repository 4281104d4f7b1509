"""Runs tests against mutants: each in a forked process, with a limit of processor time.

A change inside a function is put into the loaded module (its code object is replaced), and only the
tests that reach its lines run, quickest first, up to the first that fails. A change outside every
function is imported afresh and meets all tests, and so is one that was overlooked this way although
its lines run while the tests are collected.
"""

from __future__ import annotations

import ast
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import coverage
import hypothesis
import pytest
from _pytest.runner import runtestprotocol

from tools.forks import BROKEN, NOTICED, OVERLOOKED, pool
from tools.mutations import Mutant

_QUIET = ["-q", "-s", "-x", "-m", "not full", "-p", "no:cacheprovider"]
#: What is imported ahead, once for all forks, is not rewritten; it asserts nothing of ours.
_QUIET += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]


class Suite:
    """Tests of a package, and where its modules come from.

    Args:
        root: of the repository. tests: folder of the tests, relative to it.
        trees: syntax tree of every file, by path relative to ``root``.
        left_out: ids of tests that are too long for this.
    """

    def __init__(
        self, root: Path, tests: str, trees: Mapping[str, ast.Module], left_out: Sequence[str] = ()
    ) -> None:
        self.root, self.tests, self.trees = root, tests, trees
        self._options = [*_QUIET, *(f"--deselect={test}" for test in left_out)]

    def module(self, file: str) -> str:
        return ".".join(Path(file).with_suffix("").parts)

    def compiled(self, mutant: Mutant) -> CodeType:
        """The module's code with the change in it."""
        old = mutant.apply()
        try:
            return compile(self.trees[mutant.file], str(self.root / mutant.file), "exec")
        finally:
            mutant.undo(old)

    def in_place(
        self, mutants: Sequence[Mutant], workers: int, done: Callable[[], None]
    ) -> dict[str, Any]:
        """One session, mutants in its forks.

        Returns:
            ``verdicts`` by name (``unsure``: survived, to be seen afresh), ``seconds`` of processor
            time of all tests, ``files`` of tests, the quickest first.
        """
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            session = _Session(self, mutants, workers, lambda: _tell(writer))
            code = BROKEN
            try:
                status = pytest.main([*self._options, self.tests], [session])
                os.write(writer, json.dumps({"status": int(status), **session.found}).encode())
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        os.close(writer)
        text = b""
        while part := os.read(reader, 1 << 16):
            for _ in range(part.count(b"\n")):
                done()
            text += part.replace(b"\n", b"")
        os.close(reader)
        os.waitpid(pid, 0)
        found: dict[str, Any] = json.loads(text) if text else {"status": "broke off"}
        if found["status"] != 0:
            raise RuntimeError(f"{self.tests} fails without any mutant: {found['status']}")
        return found

    def afresh(
        self,
        mutants: Sequence[Mutant],
        workers: int,
        done: Callable[[], None],
        files: Sequence[str],
        seconds: float,
    ) -> dict[str, str]:
        """Verdict by name: pytest runs for each, over ``files`` of tests in that order."""

        def run(mutant: Mutant) -> int:
            sys.meta_path.insert(0, _Finder(self, mutant))
            for file in files:  # one by one: most are noticed by the first
                status = pytest.main([*self._options, file], [_Profile()])
                if status != 0:
                    return NOTICED if status in (1, 2) else BROKEN
            return OVERLOOKED

        return pool(mutants, run, lambda mutant: 20 + 2 * seconds, workers, done)


def _tell(pipe: int) -> None:
    """One more is done."""
    os.write(pipe, b"\n")


class _Profile:
    """The same examples every time, and nothing kept of them."""

    def pytest_configure(self, config: pytest.Config) -> None:
        hypothesis.settings.register_profile(
            "mutants",
            deadline=None,
            derandomize=True,
            database=None,
            max_examples=100,
            suppress_health_check=list(hypothesis.HealthCheck),
            phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
        )
        hypothesis.settings.load_profile("mutants")


class _Session(_Profile):
    """Collects the tests once, learns which lines each reaches, then forks for every mutant."""

    def __init__(
        self, suite: Suite, mutants: Sequence[Mutant], workers: int, done: Callable[[], None]
    ) -> None:
        self._suite, self._mutants, self._workers, self._done = suite, mutants, workers, done
        files = [str(suite.root / file) for file in suite.trees]
        self._coverage = coverage.Coverage(data_file=None, include=files, config_file=False)
        self._coverage.start()
        self.found: dict[str, Any] = {}

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        took: dict[str, float] = {}
        files: Counter[str] = Counter()
        for item in session.items:
            begin = time.process_time()
            self._coverage.switch_context(item.nodeid)
            if not _passes(item):
                session.testsfailed += 1
                return True
            took[item.nodeid] = time.process_time() - begin
            files[item.nodeid.split("::")[0]] += took[item.nodeid]  # type: ignore[assignment]
        self._coverage.stop()
        self.found["seconds"] = sum(took.values())
        self.found["files"] = sorted(files, key=lambda file: files[file])
        self.found["verdicts"] = self._judge(
            sorted(session.items, key=lambda i: took[i.nodeid]), took
        )
        return True

    def _judge(self, items: list[pytest.Item], took: Mapping[str, float]) -> dict[str, str]:
        """Each mutant against those of ``items`` that reach its lines."""
        data, root = self._coverage.get_data(), self._suite.root
        reach = {file: data.contexts_by_lineno(str(root / file)) for file in self._suite.trees}

        def tests(mutant: Mutant) -> set[str]:
            lines = range(mutant.line, mutant.last_line + 1)
            return {test for line in lines for test in reach[mutant.file].get(line, ())}

        def chosen(mutant: Mutant) -> list[pytest.Item]:
            ids = tests(mutant) - {""}
            return [item for item in items if not ids or item.nodeid in ids]

        def run(mutant: Mutant) -> int:
            self._replace(mutant)
            return OVERLOOKED if all(map(_passes, chosen(mutant))) else NOTICED

        def limit(mutant: Mutant) -> float:
            # Learning which lines they reach made them slow, four times or so.
            return 2 + 1.5 * sum(took[item.nodeid] for item in chosen(mutant))

        verdicts = pool(self._mutants, run, limit, self._workers, self._done)
        for mutant in self._mutants:  # the empty context is that of importing and collecting
            if verdicts[mutant.name] == "survived" and "" in tests(mutant):
                verdicts[mutant.name] = "unsure"
        return verdicts

    def _replace(self, mutant: Mutant) -> None:
        """Give the live function the changed code."""
        path = _function_path(mutant, self._suite.trees[mutant.file])
        code = self._suite.compiled(mutant)
        live: Any = sys.modules[self._suite.module(mutant.file)]
        for name in path:
            code = next(c for c in code.co_consts if isinstance(c, CodeType) and c.co_name == name)
            live = vars(live)[name]
        _plain(live).__code__ = code


def _function_path(mutant: Mutant, tree: ast.Module) -> list[str]:
    """Names from the module to the outermost function around the change."""
    path, body = [], tree.body
    for name in mutant.scope:
        kinds = (ast.FunctionDef, ast.ClassDef)
        node = next(n for n in body if isinstance(n, kinds) and n.name == name)
        path.append(name)
        if isinstance(node, ast.FunctionDef):
            return path
        body = node.body
    raise LookupError(f"{mutant.name} is in no function")


def _plain(value: Any) -> FunctionType:
    """The function behind a method, a property or a cached one."""
    if isinstance(value, (classmethod, staticmethod)):
        value = value.__func__
    elif isinstance(value, property):
        value = value.fget
    elif isinstance(value, functools.cached_property):
        value = value.func
    assert isinstance(value, FunctionType), value
    return value


def _passes(item: pytest.Item) -> bool:
    reports = runtestprotocol(item, log=False, nextitem=None)
    return not any(report.failed for report in reports)


class _Finder(importlib.abc.MetaPathFinder):
    """Imports one module with a change in it."""

    def __init__(self, suite: Suite, mutant: Mutant) -> None:
        self._name, self._code = suite.module(mutant.file), suite.compiled(mutant)
        self._path = str(suite.root / mutant.file)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self._name:
            return None
        return importlib.util.spec_from_file_location(
            name, self._path, loader=_Loader(name, self._path, self._code)
        )


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, code: CodeType) -> None:
        super().__init__(name, path)
        self._changed = code

    def get_code(self, fullname: str) -> CodeType:
        return self._changed
