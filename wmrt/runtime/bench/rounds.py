"""Arms in turns, round by round, so that all of them see the same machine."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction

from wmrt.core import measure
from wmrt.core.pace import SystemTimer, Timer
from wmrt.runtime.bench.arms import Arm
from wmrt.runtime.bench.floor import SAMPLES, Floor
from wmrt.runtime.bench.model import segments_of
from wmrt.runtime.bench.record import Block, Recording, Usage, process_usage, record_block

#: A round of fewer steps has no median worth the name, one of more keeps the arms too far apart.
FEWEST, MOST = 3, 20_000
#: Steps at the start of a block that are not recorded: the arm before had the caches.
SETTLE = 3


@dataclass(frozen=True)
class Effort:
    """How much is measured.

    Args:
        rounds: blocks per arm and mode, at least 1.
        steps: recorded steps per arm and mode in all; None: as many as fit ``seconds``.
        seconds: per arm and mode, where ``steps`` is None.
        warm_up: steps before anything, which are timed only to plan the rest.
    """

    rounds: int = 10
    steps: int | None = None
    seconds: float = 10.0
    warm_up: int = 5

    def steps_a_round(self, step_ns: int) -> int:
        """Recorded steps of one block whose steps take ``step_ns`` each."""
        if self.steps is not None:
            return max(-(-self.steps // self.rounds), 1)
        fitting = int(self.seconds * 1e9 / self.rounds / max(step_ns, 1))
        return min(max(fitting, FEWEST), MOST)


@dataclass(frozen=True)
class Course:
    """One arm in one mode, and what it left behind. ``rate`` is in Hz, None for back to back."""

    arm: Arm
    rate: Fraction | None
    steps: int
    recording: Recording = field(repr=False)

    @property
    def mode(self) -> str:
        return "back-to-back" if self.rate is None else "paced"


@dataclass(frozen=True)
class Instruments:
    """What a run reads; replaced by tests."""

    floor: Floor
    timer: Timer = field(default_factory=SystemTimer)
    usage: Callable[[], Usage] = process_usage


def run_rounds(
    arms: Sequence[Arm],
    rates: Sequence[Fraction | None],
    effort: Effort,
    instruments: Instruments,
    advance: Callable[[str], None] = lambda name: None,
) -> list[Course]:
    """Warm up, then measure every arm in every mode ``effort.rounds`` times: A B A B.

    The floor is sampled before, between the rounds, and after. ``advance`` is told the name of the
    arm whose block was just measured, between blocks.
    """
    courses = [_course(arm, rate, effort, instruments.timer) for arm in arms for rate in rates]
    with no_collection():
        instruments.floor.sample("before", SAMPLES)
        for index in range(effort.rounds):
            if index:
                instruments.floor.sample("between", 1)
            for course in courses:
                block = Block(index, course.steps, SETTLE, course.rate)
                timer, usage = instruments.timer, instruments.usage
                record_block(course.arm, block, course.recording, timer, usage)
                advance(course.arm.name)
        instruments.floor.sample("after", SAMPLES)
    return courses


def _course(arm: Arm, rate: Fraction | None, effort: Effort, timer: Timer) -> Course:
    taken = []
    for _ in range(max(effort.warm_up, 1)):
        begin = timer.now_ns()
        arm.step()
        taken.append(timer.now_ns() - begin)
    step_ns = measure.median(taken)
    if rate is not None:
        step_ns = max(step_ns, 1_000_000_000 * rate.denominator // rate.numerator)
    steps = effort.steps_a_round(int(step_ns))
    names, read = segments_of(arm)
    return Course(arm, rate, steps, Recording(steps * effort.rounds, names, read))


@contextmanager
def no_collection() -> Iterator[None]:
    """No garbage collection inside: what lives is set aside first, as a control loop does it."""
    enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if enabled:
            gc.enable()
