"""A browser, and a service of two robots that it looks at."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.service.doubles import OPERATOR, TOKEN, CanarySeat, Running, service
from tests.service.page.browsing import browser
from tests.service.raw import Raw


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as own:
        yield own


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    options: dict[str, Any] = {"tcp": True, "token": TOKEN, "operator_token": OPERATOR}
    options["ping"] = 3600.0  # the robot is idle while the browser works, and answers none
    with service(tmp_path, [CanarySeat(0.004), CanarySeat()], **options) as one:
        yield one


@pytest.fixture
def robot(running: Running) -> Raw:
    own = running.raw(TOKEN)
    own.open("r1")
    return own
