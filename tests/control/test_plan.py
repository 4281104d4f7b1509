"""The last chunk: which of its actions is due."""

from __future__ import annotations

from wmrt.control.plan import Plan

CHUNK = tuple((0.1 * n,) for n in range(8))
MS = 1_000_000


def rows(plan: Plan, *times_ms: float) -> list[int | None]:
    found = []
    for at in times_ms:
        plan.tick(round(at * MS))
        action = plan.action()
        found.append(None if action is None else CHUNK.index(action))
    return found


def made(max_age: int = 3, every: int = 1) -> Plan:
    plan = Plan(max_age, 100 * MS, every)
    plan.tick(0)
    plan.store(CHUNK)
    return plan


def test_a_row_a_period_until_it_is_too_old() -> None:
    assert rows(made(), 100, 200, 300, 400, 500) == [1, 2, 3, None, None]
    assert rows(made(max_age=0), 100) == [None]


def test_cycles_that_were_skipped_count() -> None:
    assert rows(made(), 200, 300, 400) == [2, 3, None]
    assert rows(made(), 130, 215, 300) == [1, 2, 3]  # jitter does not
    assert rows(made(), 10**9) == [None]


def test_every_step_counts_at_least_once() -> None:
    assert rows(made(), 1, 2, 2, 3) == [1, 2, 3, None]
    assert rows(made(), -(10**9), 100 - 10**9) == [1, 2]  # a clock that jumped


def test_a_policy_of_a_lower_rate() -> None:
    assert rows(made(max_age=1, every=3), 100, 200, 300, 400, 500, 600) == [0, 0, 1, 1, 1, None]


def test_clear() -> None:
    plan = made()
    plan.clear()
    assert rows(plan, 100) == [None]
