"""Shared by every test: one fresh seed per run, printed, and the hypothesis profiles.

Set WMRT_TEST_SEED to the printed number to repeat a run, WMRT_FULL=1 for the long form.
"""

from __future__ import annotations

import hashlib
import os
import secrets

# Two workers on two cores: a thread pool in each would only make them fight. Before torch loads.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import hypothesis
import pytest

from tests.full_run import FullRun, recorded

FULL = os.environ.get("WMRT_FULL") == "1"

hypothesis.settings.register_profile("quick", deadline=None, max_examples=100, print_blob=True)
hypothesis.settings.register_profile("full", deadline=None, max_examples=2_000, print_blob=True)
hypothesis.settings.load_profile("full" if FULL else "quick")


def pytest_configure(config: pytest.Config) -> None:
    # Workers inherit the environment, so all of them derive from the one printed number.
    os.environ.setdefault("WMRT_TEST_SEED", str(secrets.randbelow(2**32)))
    if FULL and not hasattr(config, "workerinput"):
        config.pluginmanager.register(FullRun(config), "wmrt full run")


def pytest_report_header(config: pytest.Config) -> str:
    return f"wmrt: WMRT_TEST_SEED={os.environ['WMRT_TEST_SEED']} full={FULL}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Which instruction sets the whole step was compared with the reference under."""
    ran = recorded(terminalreporter.getreports("passed"), "isa")
    if ran:
        terminalreporter.write_line(f"wmrt: whole steps compared under {', '.join(ran)}")


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """A 32-bit seed of this run and this test; a failing test shows it with its output."""
    base = os.environ["WMRT_TEST_SEED"]
    digest = hashlib.blake2b(f"{base}/{request.node.nodeid}".encode(), digest_size=4).digest()
    value = int.from_bytes(digest, "little")
    print(f"seed {value} (WMRT_TEST_SEED={base})")
    return value
