"""Imports of libraries that the default test environment does not hold."""

from __future__ import annotations

import importlib.metadata
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@contextmanager
def _elsewhere() -> Iterator[None]:
    """Without the repository on sys.path: its folder kernels/ would pass for a package that
    transformers looks for."""
    kept = list(sys.path)
    sys.path[:] = [entry for entry in kept if Path(entry or ".").resolve() != ROOT]
    try:
        yield
    finally:
        sys.path[:] = kept


def oracle(module: str, package: str) -> tuple[Any, str]:
    """An imported module and its name with version; skips the test module where it is absent."""
    with _elsewhere(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # theirs are not ours to fix
        loaded = pytest.importorskip(
            module, reason=f"{package} is a live oracle; run it with: make test-oracles"
        )
    return loaded, f"{package} {importlib.metadata.version(package)}"
