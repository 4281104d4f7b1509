"""A control loop at a fixed rate: observe, act, send."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

from wmrt.control import settings
from wmrt.control.clock import StepClock
from wmrt.control.controller import Controller
from wmrt.core.errors import STOPPING, UsageError
from wmrt.core.pace import Pacer, SystemTimer, Timer, rate_of

#: From the call to the first step, so that its tick has not passed before it is waited for.
_LEAD_NS = 1_000_000
_LOG = logging.getLogger(__name__)


class Observed(NamedTuple):
    """An observation and when it was captured; see `Controller.act`."""

    state: Any
    captured_ns: int | Mapping[str, int] | None = None


@dataclass
class LoopReport:
    """What a loop did.

    Attributes:
        steps: actions that were computed.
        skipped: cycles that were given up because a step ran over them.
        late: steps that began after their tick by more than a twentieth of the period.
        worst_late_ns: how late the latest began.
        observe_failures, send_failures, warn_failures: calls that raised.
    """

    steps: int = 0
    skipped: int = 0
    late: int = 0
    worst_late_ns: int = 0
    observe_failures: int = 0
    send_failures: int = 0
    warn_failures: int = 0


class Throttle:
    """Passes on one warning at once, and then at most one every so often, with a count.

    A log line costs more than a control step may be late: 20 of them took 4.9 ms at p99.
    """

    def __init__(self, warn: Callable[[str], object], every_ns: int, timer: Timer) -> None:
        self._warn, self._every_ns, self._timer = warn, every_ns, timer
        self._last_ns: int | None = None
        self._held = 0

    def __call__(self, text: str) -> None:
        now = self._timer.now_ns()
        if self._last_ns is not None and now - self._last_ns < self._every_ns:
            self._held += 1
            return
        more = f" ({self._held} more warnings since the last)" if self._held else ""
        self._last_ns, self._held = now, 0
        self._warn(text + more)


def run_loop(
    controller: Controller,
    observe: Callable[[], Any],
    send: Callable[[Any], object],
    *,
    steps: int | None = None,
    stop: Callable[[], bool] | None = None,
    grace: float = 0.5,
    timer: Timer | None = None,
    warn: Callable[[str], object] = _LOG.warning,
    warn_every: float = 10.0,
) -> LoopReport:
    """Run ``controller`` at its period, until ``stop()`` or for so many ``steps``.

    The schedule does not drift, and a step that runs over changes no later tick. One that ends
    after the next tick by up to ``grace`` periods is followed at once, and no cycle is lost; beyond
    that the cycles run over are skipped, counted, and age the controller's plan.

    Args:
        observe: () -> the state, or `Observed`. If it raises, the input is unfit, and the fallback
            acts.
        send: action float32[A] -> to the actuators. If it raises, that is counted and the loop goes
            on, so that the next action may get through; the actuators need a watchdog of their own.
        timer: tells the time and sleeps; default the machine's.
        warn: gets skipped cycles and failures in words, at most once every ``warn_every`` seconds.

    Raises:
        SafetyError: an argument of a wrong type, or a grace that is not 0 to 1.
        UsageError: a controller that goes by a simulator's clock, in real time.
    """
    settings.require(isinstance(controller, Controller), "controller", "a Controller", controller)
    settings.require(callable(observe), "observe", "a function () -> state", observe)
    settings.require(callable(send), "send", "a function (action)", send)
    settings.function("stop", stop, "() -> bool")
    settings.require(callable(warn), "warn", "a function (text)", warn)
    settings.has_methods("timer", timer, ("now_ns", "sleep_ns"), optional=True)
    if steps is not None:
        settings.count("steps", steps, 0)
    ok = isinstance(grace, (int, float)) and 0 <= grace <= 1
    settings.require(ok, "grace", "0 to 1 periods", grace)
    if timer is None and isinstance(controller.clock, StepClock):
        raise UsageError(
            "run_loop: the controller goes by a simulator's clock, its rate limits would not see "
            "real time pass; make it without clock=StepClock(...)"
        )
    clock: Timer = SystemTimer() if timer is None else timer
    told = Throttle(warn, round(settings.seconds("warn_every", warn_every) * 1e9), clock)
    loop = _Loop(controller, observe, send, told)
    rate = 1 / rate_of(controller.breakers.limits.period)
    pacer = Pacer(clock, rate, _LEAD_NS, Fraction(grace))
    while (steps is None or loop.report.steps < steps) and not (stop is not None and stop()):
        due, begin, skipped = pacer.wait()
        loop.begin(begin - due, skipped)
        loop.step()
    return loop.report


class _Loop:
    """One cycle after another."""

    def __init__(
        self,
        controller: Controller,
        observe: Callable[[], Any],
        send: Callable[[Any], object],
        warn: Callable[[str], object],
    ) -> None:
        self._controller, self._observe, self._send, self._warn = controller, observe, send, warn
        self._late_ns = controller.breakers.limits.period_ns // 20
        self.report = LoopReport()

    def begin(self, late_ns: int, skipped: int) -> None:
        report = self.report
        report.late += late_ns > self._late_ns
        report.worst_late_ns = max(report.worst_late_ns, late_ns)
        if skipped:
            report.skipped += skipped
            self._tell(f"{skipped} cycles skipped, {report.skipped} in all")

    def step(self) -> None:
        report = self.report
        try:
            seen = self._observe()
        except STOPPING:
            raise
        except BaseException as error:  # no input is unfit input
            report.observe_failures += 1
            self._tell(f"observe() raised {_words(error)}")
            seen = None
        if type(seen) is Observed:
            action = self._controller.act(seen.state, seen.captured_ns)
        else:
            action = self._controller.act(seen)
        report.steps += 1
        try:
            self._send(action)
        except STOPPING:
            raise
        except BaseException as error:  # the next one may get through
            report.send_failures += 1
            self._tell(f"send() raised {_words(error)}")

    def _tell(self, text: str) -> None:
        try:
            self._warn(f"control loop: {text}")
        except STOPPING:
            raise
        except BaseException:  # a full disk must not stop the loop
            self.report.warn_failures += 1


def _words(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error!s:.200}"
    except Exception:  # its own __str__ fails
        return type(error).__name__
