"""What the files under deploy/ may set."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from wmrt.cli.serve import command
from wmrt.service.settings import ServeSettings, read_settings

PREFIX = "WMRT_SERVE_"
NAMES = {PREFIX + name.upper() for name in ServeSettings.model_fields}


def options(arguments: Sequence[str]) -> dict[str, Any]:
    """What `wmrt serve` makes of its arguments; fails for an option that it has not."""
    verb, *rest = arguments
    assert verb == "serve"
    with command.make_context("serve", list(rest)) as context:
        return dict(context.params)


def settings(
    environment: Mapping[str, str], monkeypatch: pytest.MonkeyPatch, **given: Any
) -> ServeSettings:
    """What a service would run under; fails for a name or value that it does not take."""
    for name in list(os.environ):
        if name.startswith(PREFIX):
            monkeypatch.delenv(name)
    own = {name: value for name, value in environment.items() if name.startswith(PREFIX)}
    assert set(own) <= NAMES, set(own) - NAMES
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    return read_settings(**given)
