"""The parts of a control step, for whoever puts them together: in one thread, or in two."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from wmrt.control.account import Account, Given
from wmrt.control.consult import NOT_ASKED, Consultant, Consulted
from wmrt.control.falling_back import Asked
from wmrt.control.intake import Intake
from wmrt.control.monitor import Unwatched
from wmrt.control.plan import Plan
from wmrt.control.protocol import Outcome
from wmrt.core.clock import Clock
from wmrt.safety import Breakers, Decision, Level, State

_RANGE = Level.RANGE


class Stepping:
    """What a `Controller` is made of, and a step of it: `_open`, a question, `_decide`, `_settle`.

    One step at a time; the controller sees to that.
    """

    breakers: Breakers
    clock: Clock
    _timer: Callable[[], int]
    _fallback: Asked
    _intake: Intake
    _monitor: Unwatched
    _consultant: Consultant
    _plan: Plan
    _account: Account
    _instruction: Any
    _sent: tuple[float, ...]

    last: Outcome | None = None
    _closed = False
    # Of the step that runs: what was given and read of it, readings of clock and timer, who was
    # asked, stops before it and at its beginning, where the stop latched.
    _given: tuple[Any, Any] = (None, None)
    _state: dict[str, Any] | None = None
    _now_ns = _started = _stops = _begun = 0
    _consulted: Consulted = NOT_ASKED
    _estop = _failure = ""
    _task: object = None

    def _open(self, obs: Any, captured_ns: Any) -> Mapping[str, Any] | None:
        """A step begins; the state that the policy is to be asked about, None if it is not."""
        self.last, self._given = None, (obs, captured_ns)
        self._consulted, self._estop, self._failure = NOT_ASKED, "", ""
        self._fallback.answer = self._state = None
        self._now_ns = self._started = 0
        breakers = self.breakers
        self._stops = self._begun = breakers.stops
        self._started = self._timer()
        self._now_ns = now_ns = self.clock.now_ns()
        breakers.begin(now_ns)
        self._begun = breakers.stops
        self._plan.tick(now_ns)
        state, faults, notes = self._intake.read(obs, now_ns, captured_ns)
        self._state = state
        if state is not None and self._instruction is not None:
            self._follow(state.get(self._instruction))
        if faults or notes:
            fit = breakers.admit(faults, notes)
        else:
            fit = True
        return state if fit and not self._closed else None

    def _decide(self, consulted: Consulted) -> Decision:
        """The step's decision, after its question, if there was one."""
        self._consulted = consulted
        proposal, votes, chunk, _, _, answered, late, _, _, _, expected = consulted
        breakers, stops, monitor, fallback = self.breakers, self._stops, self._monitor, None
        if monitor.watches and self._state is not None and consulted is not NOT_ASKED:
            monitor.judge(breakers, self._state, expected)
        if self._fallback.fallback is not None:
            fallback = self._fallback.goal(monitor.trusted(self._state), breakers.reference)
        decision = breakers.decide(proposal, fallback, votes)
        if breakers.stops != stops:
            began, decided = self._begun != stops, breakers.stops != self._begun
            self._estop = "both" if began and decided else "begin" if began else "decide"
        trusted = _RANGE not in decision.tripped
        if answered and not late:
            self._plan.store(chunk if trusted else ())
        if not trusted:
            self._consultant.distrust()
        return decision

    def _settle(self, decision: Decision) -> tuple[float, ...]:
        """The step is over: count it, record it, and give its action out, float32 values."""
        account, given = self._account, None
        if account.records:
            given = Given(*self._given, self._estop, self._fallback.answer, self._failure)
        account.step(
            self.breakers.step, decision, self._consulted, self._now_ns, self._started, given
        )
        self.last = account.last
        self._sent = decision.action
        return decision.action

    def _follow(self, text: Any) -> None:
        """Another instruction voids what was planned; so does one that cannot be compared."""
        task = text if text is None or type(text) is str else object()
        if task != self._task:
            self._task = task
            self._void()

    def _void(self) -> None:
        """Nothing that was planned or answered so far is sent any more."""
        self._plan.clear()
        self._consultant.drop()

    def _failed(self, error: BaseException) -> Decision:
        """This code, the clock or the timer failed: latch and hold the last action."""
        self._failure = type(error).__name__
        try:
            return self.breakers.emergency(error)
        except Exception:  # breakers of the user's own that fail as well
            state = State.LATCHED
            return Decision(self._sent, "fallback", state, state, frozenset())

    def _tell(self, name: str, **arguments: Any) -> None:
        self._account.command(name, self._now_ns, **arguments)
