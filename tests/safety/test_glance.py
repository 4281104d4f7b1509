"""The quick look decides what the whole way decides, bit for bit, and leaves the same behind."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

from tests.safety.support import DRIVING, ODD, PERIOD_NS, limits
from tests.safety.test_streams import BAD, MADE, Run, calm, calm_action, operate, storm
from wmrt.safety import Breakers, Cause, Level, Limits, Proposal, State
from wmrt.safety.float32 import to_float32
from wmrt.safety.glance import Glance

#: What no step changes; the events, which are shown as far as they are new.
FIXED = {"_limits", "_floats", "_rows", "_certain", "_step_deltas", "full", "half", "events"}
REPORTED = (Cause.NOTE, Cause.CHANNEL, Cause.DEADLINE, Cause.STARVED, Cause.SURPRISE)


def left_behind(breakers: Breakers) -> str:
    """All that a step can have changed; ``repr`` tells -0.0 from 0.0, and NaN equals itself."""
    parts = [vars(part) for part in (breakers._envelope, breakers._machine)]
    kept = [[part[name] for name in part if name not in FIXED] for part in parts]
    return repr((kept, breakers.events.total, breakers.events.latest(3)))


class Both:
    """Breakers that glance, and breakers that do not, told the same; they have to say the same."""

    def __init__(self, made: Limits) -> None:
        self.quick, self.whole = Breakers(made), Breakers(made, glance=False)

    def __getattr__(self, name: str) -> Any:
        mine, other = getattr(self.quick, name), getattr(self.whole, name)
        if not callable(mine):
            return mine

        def call(*arguments: Any, **options: Any) -> Any:
            said = outcome(mine, *arguments, **options)
            assert repr(said) == repr(outcome(other, *arguments, **options))
            assert left_behind(self.quick) == left_behind(self.whole)
            if isinstance(said, Exception):
                raise said
            return said

        return call


def outcome(do: Any, *arguments: Any, **options: Any) -> Any:
    try:
        return do(*arguments, **options)
    except Exception as error:
        return error


class Twins(Run):
    """A run in which each call goes to both."""

    def __init__(self, made: Limits) -> None:
        super().__init__(made)
        self.breakers = Both(made)  # type: ignore[assignment]


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[bool]]:
    """How many glances were enough, and how many were not."""
    seen: Counter[bool] = Counter()
    decide = Glance.decide

    def watched(self: Glance, *arguments: Any) -> Any:
        decision = decide(self, *arguments)
        seen[decision is not None] += 1
        return decision

    monkeypatch.setattr(Glance, "decide", watched)
    yield seen


def near(rng: random.Random, value: float) -> float:
    """A float32 at ``value``, or beside it; now and then no float32."""
    exact = to_float32(value)
    kind = rng.random()
    if kind < 0.5:
        return exact
    if kind < 0.7:
        return math.nextafter(exact, rng.choice((-2.0, 2.0)))
    return to_float32(exact + rng.choice((-1, 1)) * 2.0**-23)


def edge_action(rng: random.Random, run: Run) -> tuple[float, ...]:
    """As far as the rates allow, or to the end of the box, give or take one bit."""
    deltas = run.limits.deltas(rng.choice((0.5, 1.0, 1.0, 1.05, 2.0)) * run.limits.period)
    action = []
    for last, (up, down), box in zip(run.watch.last, deltas, run.limits.boxes(1.0), strict=True):
        reach = rng.choice((last, last + up, last - down))
        action.append(near(rng, min(max(reach, box.low), box.high)))
    return tuple(action)


def plain(rng: random.Random, run: Run) -> None:
    """One step of a good policy, as one answers: float32 values; at times reported on, or late."""
    run.now_ns += rng.choice((PERIOD_NS, PERIOD_NS, rng.randrange(2 * PERIOD_NS)))
    action = tuple(map(to_float32, calm_action(rng, run)))
    if rng.random() < 0.3:
        action = edge_action(rng, run)
    run.breakers.begin(run.now_ns)
    run.breakers.admit([], [BAD] if rng.random() < 0.02 else [])
    if rng.random() < 0.05:
        run.breakers.report(rng.choice(REPORTED), BAD)
    speed = rng.choice((None, 20.0, 0.0, 40.0, -2.0, 41.9, 42.0, 7))
    if rng.random() < 0.03:
        speed = rng.choice((-2.1, 44.1, math.nan, 45))
    predicted: Any = rng.choice(({}, {"speed": speed}, {"speed": speed}, {"speed": (3.0,)}))
    late, fault = rng.random() < 0.02, BAD if rng.random() < 0.02 else None
    decision = run.breakers.decide(Proposal(action, predicted, fault, late))
    run.keep(decision.action, decision.after)


def test_random_streams(seed: int, looks: Counter[bool]) -> None:
    rng = random.Random(seed)
    reached: set[str] = set()
    for made in MADE.values():
        run = Twins(made)
        for _ in range(24):
            for _ in range(rng.randrange(12)):
                storm(rng, run)
            operate(rng, run, rng.randrange(7))
            run.breakers.estop(False)
            voters = rng.randrange(3)
            for n in range(rng.choice((10, 10, 60))):
                calm(rng, run, voters)
                if n == 8:
                    operate(rng, run, 4)
                    operate(rng, run, 5)
            for n in range(rng.randrange(50)):
                if n % 16 == 0:
                    operate(rng, run, 0)
                plain(rng, run)
        counts = run.breakers.stats()["counts"]
        reached |= {cause for cause, count in counts.items() if count}
    missing = {cause.value for cause in Cause} - reached
    assert not missing
    assert looks[True] > 0.1 * looks.total() and looks[False] > 0.1 * looks.total()


def test_a_clean_step_needs_one_glance(looks: Counter[bool]) -> None:
    both = Both(limits())
    for n in range(1, 30):
        both.begin(n * PERIOD_NS)
        assert both.admit([])
        decision = both.decide(Proposal((n / 128, -n / 128), {}))
        assert decision == ((n / 128, -n / 128), "policy", State.CLOSED, State.CLOSED, frozenset())
    assert looks == {True: 29}


@pytest.mark.parametrize("speed", [None, 20.0, -2.0, 42.0])
def test_a_predicted_value_within_its_bounds_needs_no_more(
    speed: float | None, looks: Counter[bool]
) -> None:
    both = Both(MADE["driving"])
    both.begin(PERIOD_NS)
    both.decide(Proposal((0.0, 0.0), {"speed": speed, "lane": "left"}))  # type: ignore[dict-item]
    assert looks == {True: 1}


@pytest.mark.parametrize(
    "proposal",
    [
        Proposal(None),
        Proposal((0.0,)),
        Proposal((0.0, 0.0, 0.0)),
        Proposal([0.0, 0.0]),  # type: ignore[arg-type]
        Proposal((0.0, 0)),
        Proposal((0.0, 0.1)),  # no float32
        Proposal((0.0, math.nan)),
        Proposal((0.0, 0.0), fault=BAD),
        Proposal((0.0, 0.0), late=True),
        Proposal((0.0, 0.0), {"speed": 43.0}),
        Proposal((0.0, 0.0), {"speed": (20.0,)}),
        Proposal((0.0, 0.0), MappingProxyType({})),
    ],
    ids=str,
)
def test_what_takes_the_whole_way(proposal: Proposal, looks: Counter[bool]) -> None:
    both = Both(MADE["driving"])
    both.begin(PERIOD_NS)
    both.decide(proposal)
    assert looks == {False: 1}


def test_anything_that_happened_in_the_step_takes_the_whole_way(looks: Counter[bool]) -> None:
    both = Both(limits())
    happenings = [
        lambda: both.report(Cause.NOTE, BAD),
        lambda: both.admit([], [BAD]),
        both.disengage,
        both.estop,
    ]
    for n, happens in enumerate(happenings, 1):
        both.begin(n * PERIOD_NS)
        happens()
        both.decide(Proposal((0.0, 0.0)))
    assert looks == {False: len(happenings)}


def test_a_trip_of_the_step_is_told_even_after_a_reset(looks: Counter[bool]) -> None:
    """`reset` in the middle of a step writes the record, and the step is still no good one."""
    both = Both(limits())
    both.begin(PERIOD_NS)
    both.report(Cause.INPUT, BAD)
    both.reset()
    decision = both.decide(Proposal((0.0, 0.0)))
    assert decision.tripped == {Level.VALIDITY} and decision.after is State.CLOSED
    assert looks == {False: 1}


def test_as_far_as_is_allowed_on_any_clock(seed: int, looks: Counter[bool]) -> None:
    """No rate fault forbids what the limits allow, and with a tolerance none is looked for."""
    rng = random.Random(seed)
    for _ in range(60):
        both = Both(
            limits(
                rng.choice((DRIVING, ODD)), period=rng.choice((0.1, 0.02, rng.uniform(1e-3, 1.0))),
                wall_tolerance=rng.choice((1e-12, 0.05)), rate_tolerance=rng.choice((0.0, 0.1)),
                step_periods=rng.choice((1.0, 2.0, rng.uniform(0.1, 2.0))),
            )
        )  # fmt: skip
        now_ns, period_ns = 0, both.limits.period_ns
        for _ in range(20):
            now_ns += rng.choice((period_ns, rng.randrange(3 * period_ns), 1, 0))
            both.begin(now_ns)
            far = [rng.choice((-2.0, 0.0, 2.0)) for _ in both.reference]
            both.decide(Proposal(both.quick._envelope.move(far, False)))
    assert set(looks) == {True}


def test_without_a_tolerance_rounding_takes_the_whole_way(looks: Counter[bool]) -> None:
    both = Both(MADE["strict"])
    both.begin(PERIOD_NS)
    both.decide(Proposal((0.0, 0.0)))
    assert looks == {False: 1}


def test_votes_are_counted(looks: Counter[bool]) -> None:
    both = Both(limits())
    both.begin(PERIOD_NS)
    zero = (0.0, 0.0)
    assert both.decide(Proposal(zero), None, [zero, zero]).source == "policy"
    assert not looks


def test_a_box_whose_rounding_exceeds_its_tolerance(seed: int) -> None:
    """Around some neutral values low and high come out of the arithmetic an ulp off: without a
    tolerance such a value is a fault, although it is in the box."""
    rng = random.Random(seed)
    odd = 0
    for _ in range(300):
        low, high = rng.uniform(-0.06, -0.01), rng.uniform(0.01, 0.06)
        base = limits(range_tolerance=0.0, neutral=(rng.uniform(-0.1, 0.1), 0.0))
        steering = replace(base.dims[0], low=low, high=high)
        made = replace(base, dims=(steering, base.dims[1]))
        for way in ("low", "high"):
            end = tuple(float(getattr(box, way)) for box in made.boxes(1.0))
            stated = tuple(float(getattr(box, f"tolerated_{way}")) for box in made.boxes(1.0))
            odd += end != stated
            both = Both(made)
            both.reset(end)
            both.begin(PERIOD_NS)
            both.decide(Proposal(tuple(map(to_float32, end))))
    assert odd > 0
