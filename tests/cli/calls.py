"""Calls of the command line in this process, as the tests of its verbs make them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from wmrt.cli.main import main


def line(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line of a refused request."""
    capsys.readouterr()
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "Traceback" not in error
    return error


def run(json_path: Path, *arguments: str) -> dict[str, Any]:
    """The result file of a request that succeeds."""
    assert main([*arguments, "--json", str(json_path)]) == 0
    document: dict[str, Any] = json.loads(json_path.read_text())
    return document
