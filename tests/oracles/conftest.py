"""Writes the counts of a run where WMRT_ORACLES_JSON names a file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.oracles import agreement


def pytest_sessionfinish(session: pytest.Session) -> None:
    path = os.environ.get("WMRT_ORACLES_JSON")
    if path and not session.testsfailed:
        agreement.write(Path(path), os.environ["WMRT_TEST_SEED"])
