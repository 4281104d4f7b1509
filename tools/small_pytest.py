"""Runs test files that use a little of pytest, on a machine that has none.

What it knows: parametrize, skipif, fixtures of functions (``seed``, ``monkeypatch``, ``tmp_path``,
and those of the file, as generators too, autouse too), raises, skip, param. Other marks are passed
over, but for ``full``: those tests are left out. An unknown name is an error of the test.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import inspect
import itertools
import os
import re
import sys
import tempfile
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_MISSING = object()


class Skipped(Exception):
    """A test that says why it does not apply here."""


@dataclass(frozen=True)
class Outcome:
    """Of one test with one set of parameters: passed, failed, skipped; the reason in words."""

    test: str
    result: str
    reason: str = ""


@dataclass(frozen=True)
class _Param:
    values: tuple[Any, ...]


class _Raised:
    """What ``raises`` caught, in ``value``."""

    value: BaseException


@contextlib.contextmanager
def raises(expected: Any, match: str | None = None) -> Iterator[_Raised]:
    found = _Raised()
    try:
        yield found
    except expected as error:
        found.value = error
        if match is not None and not re.search(match, str(error)):
            raise AssertionError(f"{match!r} is not in {str(error)!r}") from error
        return
    raise AssertionError(f"{expected} was not raised")


class MonkeyPatch:
    """Sets things and puts them back."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], Any]] = []

    def setattr(self, target: Any, name: Any, value: Any = _MISSING) -> None:
        if value is _MISSING:
            path, _, attribute = str(target).rpartition(".")
            target, name, value = importlib.import_module(path), attribute, name
        before = inspect.getattr_static(target, name)
        self._undo.append(lambda: setattr(target, name, before))
        setattr(target, name, value)

    def setitem(self, target: Any, key: Any, value: Any) -> None:
        before = target.get(key, _MISSING)
        put = target.__setitem__
        self._undo.append(lambda: target.pop(key) if before is _MISSING else put(key, before))
        put(key, value)

    def setenv(self, name: str, value: str) -> None:
        self.setitem(os.environ, name, value)

    def delenv(self, name: str, raising: bool = True) -> None:
        if name in os.environ or raising:
            self.setenv(name, "")
            del os.environ[name]

    def undo(self) -> None:
        for step in reversed(self._undo):
            step()
        self._undo.clear()


class _Marks:
    def parametrize(self, names: Any, values: Any, **_: Any) -> Callable[[Any], Any]:
        split = names.replace(" ", "").split(",") if isinstance(names, str) else list(names)
        rows = [_row(value, len(split)) for value in values]

        def mark(function: Any) -> Any:
            function.__dict__.setdefault("_sets", []).append(
                [dict(zip(split, r, strict=True)) for r in rows]
            )
            return function

        return mark

    def skipif(self, condition: bool, reason: str = "") -> Callable[[Any], Any]:
        return _skipping(reason or "as its mark says") if condition else lambda function: function

    @property
    def full(self) -> Callable[[Any], Any]:
        return _skipping("long")

    def __getattr__(self, name: str) -> Any:
        def mark(*args: Any, **_: Any) -> Any:
            plain = len(args) == 1 and callable(args[0])
            return args[0] if plain else lambda function: function

        return mark


def _row(value: Any, count: int) -> tuple[Any, ...]:
    if isinstance(value, _Param):
        return value.values
    return (value,) if count == 1 else tuple(value)


def _skipping(reason: str) -> Callable[[Any], Any]:
    def mark(function: Any) -> Any:
        function._skip = reason
        return function

    return mark


def fixture(function: Any = None, *, autouse: bool = False, scope: str = "function") -> Any:
    def mark(function: Any) -> Any:
        function._fixture = "autouse" if autouse else "named"
        return function

    return mark if function is None else mark(function)


def skip(reason: str) -> None:
    raise Skipped(reason)


def module() -> types.ModuleType:
    """What ``import pytest`` gets."""
    made = types.ModuleType("pytest")
    vars(made).update(mark=_Marks(), fixture=fixture, raises=raises, skip=skip)
    vars(made).update(param=lambda *values, **_: _Param(values))
    vars(made).update(MonkeyPatch=MonkeyPatch, FixtureRequest=object)
    return made


def run_module(
    name: str, base: int, more: Callable[[], bool], mine: Callable[[int], bool] = lambda at: True
) -> Iterator[Outcome]:
    """The tests of an importable module, in order, while ``more()`` holds; what comes after is
    ``cut``. ``base``: the run's seed; ``mine``: which of them to run, by their number."""
    try:
        tests = importlib.import_module(name)
    except Exception as error:
        if mine(0):
            yield Outcome(name, "failed", f"import: {type(error).__name__}: {error}")
        return
    number = 0
    for key, function in list(vars(tests).items()):
        if not key.startswith("test_") or not inspect.isfunction(function):
            continue
        for index, parameters in enumerate(_combinations(function)):
            test, number = f"{name.rpartition('.')[2]}.{key}[{index}]", number + 1
            if not mine(number):
                continue
            if not more():
                yield Outcome(test, "cut", "its time was over")
            elif hasattr(function, "_skip"):
                yield Outcome(test, "skipped", function._skip)
            else:
                yield _outcome(test, tests, function, parameters, base)


def _combinations(function: Any) -> list[dict[str, Any]]:
    sets: Sequence[Any] = function.__dict__.get("_sets", [])
    return [{k: v for part in parts for k, v in part.items()} for parts in itertools.product(*sets)]


def _outcome(
    test: str, tests: Any, function: Any, parameters: dict[str, Any], base: int
) -> Outcome:
    try:
        with contextlib.ExitStack() as stack:
            fixtures = _Fixtures(tests, stack, _seed(base, test), parameters)
            for name, candidate in vars(tests).items():
                if getattr(candidate, "_fixture", "") == "autouse":
                    fixtures.get(name)
            function(**{n: fixtures.get(n) for n in inspect.signature(function).parameters})
    except Skipped as reason:
        return Outcome(test, "skipped", str(reason))
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        said = (str(error).strip().splitlines() or [""])[0][:300]
        where = f"{Path(place.filename).name}:{place.lineno}"
        return Outcome(test, "failed", f"{type(error).__name__} at {where}: {said}")
    return Outcome(test, "passed")


def _seed(base: int, test: str) -> int:
    digest = hashlib.blake2b(f"{base}/{test}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little")


class _Fixtures:
    """Values by name, made when first asked for and torn down with ``stack``."""

    def __init__(
        self, tests: Any, stack: contextlib.ExitStack, seed: int, known: dict[str, Any]
    ) -> None:
        self._tests, self._stack = tests, stack
        self._known = {"seed": seed, **known}

    def get(self, name: str) -> Any:
        if name not in self._known:
            self._known[name] = self._make(name)
        return self._known[name]

    def _make(self, name: str) -> Any:
        if name == "monkeypatch":
            patch = MonkeyPatch()
            self._stack.callback(patch.undo)
            return patch
        if name == "tmp_path":
            return Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        function: Any = getattr(self._tests, name, None)
        if not hasattr(function, "_fixture"):
            raise LookupError(f"no fixture {name}")
        arguments = {n: self.get(n) for n in inspect.signature(function).parameters}
        if inspect.isgeneratorfunction(inspect.unwrap(function)):
            return self._stack.enter_context(contextlib.contextmanager(function)(**arguments))
        return function(**arguments)


def install() -> None:
    """Be ``pytest``, and stand for the tests' own conftest, which needs more than there is."""
    sys.modules["pytest"] = module()
    conftest: Any = types.ModuleType("tests.conftest")
    conftest.FULL = False
    sys.modules["tests.conftest"] = conftest
