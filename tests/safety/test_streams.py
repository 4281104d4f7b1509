"""The contract on any stream: finite, in the box, within the rates, the same again bit for bit."""

from __future__ import annotations

import math
import os
import random
import struct
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.safety.support import DRIVING, ODD, PERIOD_NS, Watch, limits, start_of
from wmrt.core.errors import SafetyError
from wmrt.core.types import ActionSpec
from wmrt.safety import Breakers, Cause, DimLimit, Finding, Limits, Proposal, State, StateLimit

FULL = os.environ.get("WMRT_FULL") == "1"
BAD = Finding("speed", "required")
STATES = (StateLimit("speed", "m/s", 0.0, 40.0),)
NUMBERS = (0.0, -0.0, 1.0, -1.0, 0.1, 1.05, -1.1, 1.2, -7.0, 1e300, math.inf, -math.inf, math.nan)
NUMBERS += (1e-45, -1e-300, 0.5, -0.3, 0.3)


class Run:
    """Breakers driven by random calls; `log` is what a second run has to give again."""

    def __init__(self, made: Limits) -> None:
        self.limits = made
        self.breakers = Breakers(made, events=1 << 14)
        self.watch = Watch(made)
        self.now_ns = 0
        self.log: list[bytes] = []

    def step(
        self, proposal: Proposal | None, faults: list[Finding], votes: Any, fallback: Any
    ) -> None:
        self.breakers.begin(self.now_ns)
        if not self.breakers.admit(faults):
            proposal = None
        decision = self.breakers.decide(proposal, fallback, votes)
        self.keep(decision.action, decision.after)
        if decision.after in (State.OPEN, State.LATCHED) or not self.breakers.engaged or faults:
            assert decision.source == "fallback"

    def keep(self, action: tuple[float, ...], after: State) -> None:
        self.watch.see(self.now_ns, action)
        self.log.append(struct.pack(f"<{len(action)}f", *action) + after.value.encode())


def calm_action(rng: random.Random, run: Run) -> tuple[float, ...]:
    """A move that every level allows, in HALF_OPEN and on a clock that jitters too."""
    deltas = run.limits.deltas(0.3 * run.limits.period)
    return tuple(
        min(max(last + rng.uniform(-down, up), box.low), box.high)
        for last, (up, down), box in zip(run.watch.last, deltas, run.limits.boxes(1.0), strict=True)
    )


def wild_action(rng: random.Random, run: Run) -> tuple[float, ...]:
    """Moves around the limits, places around the bounds, and anything."""
    size = len(run.limits.spec)
    kind = rng.random()
    if kind < 0.6:
        scale = rng.choice((0.3, 1.0, 1.05, 1.2, 3.0))
        deltas = run.limits.deltas(run.limits.period)
        return tuple(
            last + scale * rng.uniform(-down, up)
            for last, (up, down) in zip(run.watch.last, deltas, strict=True)
        )
    if kind < 0.85:
        return tuple(rng.uniform(-1.15, 1.15) for _ in range(size))
    if kind < 0.97:
        return tuple(rng.choice(NUMBERS) for _ in range(size))
    return tuple(rng.choice(NUMBERS) for _ in range(rng.randrange(size + 2)))


def wild_proposal(rng: random.Random, run: Run) -> Proposal | None:
    kind = rng.random()
    if kind < 0.03:
        return None
    if kind < 0.06:
        return Proposal(fault=BAD)
    predicted = {"speed": rng.choice((None, 20.0, 41.0, *NUMBERS))} if kind < 0.1 else {}
    return Proposal(wild_action(rng, run), predicted, late=kind > 0.95)


def wild_fallback(rng: random.Random) -> Any:
    kind = rng.random()
    if kind < 0.7:
        return None
    if kind < 0.75:
        return lambda: 1 / 0
    goal = tuple(rng.choice(NUMBERS) for _ in range(rng.choice((1, 2, 2, 2, 3))))
    return lambda: goal


def wild_dt(rng: random.Random) -> int:
    kind = rng.random()
    if kind < 0.6:
        return PERIOD_NS
    if kind < 0.95:
        return rng.choice((0, 1, 10**6, rng.randrange(2 * PERIOD_NS), 3 * PERIOD_NS))
    return rng.choice((-1, -PERIOD_NS, -(10**12), 10**12))


def operate(rng: random.Random, run: Run, kind: int) -> None:
    """What people and programs do between two steps."""
    breakers = run.breakers
    measured = rng.choice((None, [rng.uniform(-1.2, 1.2) for _ in run.limits.spec.dims]))
    try:
        if kind in (0, 6):
            breakers.reset(measured, heal=kind == 0)
            run.watch.restart(start_of(run.limits, measured))
        elif kind == 1:
            breakers.estop(rng.random() < 0.5)
        elif kind == 2:
            breakers.disengage()
        elif kind == 3:
            breakers.begin(run.now_ns)
            run.keep(breakers.emergency(KeyError()).action, breakers.state)
        elif kind == 4:
            breakers.reset_latch("Ada")
        else:
            breakers.engage("Ada", measured)
            if measured is not None:
                run.watch.restart(start_of(run.limits, measured))
    except SafetyError as error:
        run.log.append(str(error).encode())


def storm(rng: random.Random, run: Run) -> None:
    """One step in which anything may happen."""
    run.now_ns += wild_dt(rng)
    if rng.random() < 0.03:
        operate(rng, run, rng.randrange(7))
    faults = [BAD] * rng.randrange(1, 3) if rng.random() < 0.03 else []
    votes = None
    if rng.random() < 0.3:
        near = tuple(value + rng.uniform(-0.2, 0.2) for value in run.watch.last)
        votes = [rng.choice((None, near, near, wild_action(rng, run))) for _ in range(2)]
    run.step(wild_proposal(rng, run), faults, votes, wild_fallback(rng))


def calm(rng: random.Random, run: Run, voters: int = 0) -> None:
    """One step of a good policy; with ``voters`` channels alive, 0 for no vote."""
    run.now_ns += rng.randrange(PERIOD_NS * 9 // 10, PERIOD_NS * 11 // 10)
    action = calm_action(rng, run)
    votes = [None, [action, None], [action, action]][voters]
    run.step(Proposal(action, {"speed": 20.0}), [], votes, None)


def stream(made: Limits, seed: int, steps: int) -> Run:
    """Storms, and calms in which an operator puts things right again."""
    rng = random.Random(seed)
    run = Run(made)
    while run.watch.seen < steps:
        for _ in range(rng.randrange(1, 40)):
            (storm if rng.random() < 0.3 else calm)(rng, run)
        voters = rng.randrange(3)
        for n in range(rng.randrange(80)):
            calm(rng, run, voters)
            if n == 8:
                run.breakers.estop(False)
                operate(rng, run, 4)
                operate(rng, run, 5)
    return run


MADE = {
    "driving": limits(state=STATES, latch_opens=8),
    "odd": limits(ODD, neutral=(-1.0, 0.37, 0.1), state=STATES, heal_steps=3, trip_window=0.5),
    "tight": replace(
        limits(ODD, neutral=(0.1, 0.0, -0.2)),
        dims=(
            DimLimit("valve", "bar", 1.9, 2.6, 1.1, 0.7, 0.2),
            DimLimit("wheel", "rpm", -100.0, 500.0, 4001.0, 1000.0, 400.0),
            DimLimit("arm", "deg", -3.3, 3.4, 0.2, 0.1, 0.1),
        ),
        step_periods=2.0,
    ),
    "strict": limits(
        range_tolerance=0.0, rate_tolerance=0.0, wall_tolerance=0.0, trip_limit=1, latch_opens=5
    ),
}


STEPS = 1_000_000 if FULL else 100_000


def test_random_streams(seed: int) -> None:
    reached, steps = set(), 0
    for made in MADE.values():
        run = stream(made, seed, STEPS // len(MADE))
        stats = run.breakers.stats()
        print(stats)
        steps += run.watch.seen
        assert all(stats["steps_in"].values()), "every state was visited"
        assert all(stats["trips"].values()), "every level tripped"
        reached |= {cause for cause, count in stats["counts"].items() if count}
    assert steps >= STEPS
    only_reported_by_a_controller = {"note", "channel", "deadline", "starved", "surprise"}
    assert reached | only_reported_by_a_controller == {cause.value for cause in Cause}


def test_the_same_stream_gives_the_same_bits(seed: int) -> None:
    first, second = (stream(MADE["odd"], seed, 3_000) for _ in range(2))
    assert first.log == second.log
    assert [repr(e) for e in first.breakers.events.drain()] == [
        repr(e) for e in second.breakers.events.drain()
    ]


ANY_FLOAT = st.floats() | st.sampled_from(NUMBERS)
STREAMS = st.lists(
    st.tuples(
        st.integers(-(10**9), 10**9) | st.just(PERIOD_NS),
        st.tuples(ANY_FLOAT, ANY_FLOAT, ANY_FLOAT) | st.none(),
        st.booleans(),
    ),
    max_size=30,
)


@given(STREAMS, st.sampled_from([DRIVING, ODD]))
@settings(max_examples=1_000 if FULL else 150)
def test_any_short_stream(steps: list[Any], spec: ActionSpec) -> None:
    run = Run(limits(spec))
    for dt, action, bad in steps:
        run.now_ns += dt
        cut = action and action[: len(spec)]
        run.step(Proposal(cut), [BAD] if bad and dt % 2 else [], None, None)


@given(
    st.floats(1e-3, 1e3), st.floats(1e-3, 1e3), st.floats(1e-6, 1e6), st.floats(1e-6, 1e6),
    st.floats(-1, 1), st.floats(1e-3, 10.0), st.floats(-1, 1), st.integers(0, 10**10),
)  # fmt: skip
def test_one_step_under_any_limits(
    width: float, low: float, up: float, down: float, start: float, period: float, goal: float,
    dt: int,
) -> None:  # fmt: skip
    from wmrt.core.types import ActionDim

    spec = ActionSpec((ActionDim("x", "m", low, low + width, up, down),))
    run = Run(limits(spec, period=period))
    run.breakers.reset((start,))
    run.watch.restart(start_of(run.limits, (start,)))
    for _ in range(3):
        run.now_ns += dt
        run.step(Proposal((goal,)), [], None, None)
