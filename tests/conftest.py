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


#: Modules of few tests that take long, the longest first: begun last, one of them runs on alone
#: while the other process has nothing left to do. They are begun first (`--no-loadscope-reorder`).
LONGEST = (
    "tests/tools/test_service_faults.py",
    "tests/kernels/triton/test_aot.py",
    "tests/tools/test_service_peers.py",
    "tests/house/test_wheel.py",
    "tests/house/test_full_run.py",
    "tests/service/test_notify.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rank = {name: n for n, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.nodeid.split("::")[0], len(LONGEST)))


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
