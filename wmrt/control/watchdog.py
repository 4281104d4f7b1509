"""The policy on a thread of its own: the loop goes on at its deadline, whatever the policy does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from wmrt.control.alarm import Alarm
from wmrt.control.asking import Answer
from wmrt.control.consult import Consultant, Consulted, Late, Panel, Question, Reply
from wmrt.control.plan import Plan
from wmrt.control.worker import Bell, Worker
from wmrt.core.errors import STOPPING
from wmrt.safety import Breakers, Cause, Finding, Proposal

#: Values that cannot change under the policy's hands while the caller reuses his observation.
_FIXED = frozenset({float, int, bool, str, tuple, type(None), np.float32, np.float64})


class Watchdog(Consultant):
    """Waits for the answer until the deadline and no longer.

    An answer that comes later has advanced the policy's memory, and is not used. While the policy
    works, new observations wait in one slot, each replacing the one before. `reset` while it works
    is done before its next step.

    A policy that holds Python's interpreter lock for good stops every thread of the process; what
    cannot be trusted not to belongs into a process of its own.

    Args:
        panel, breakers, plan, deadline_ns, timer: see `Consultant`; the deadline is finite.
    """

    def __init__(
        self,
        panel: Panel,
        breakers: Breakers,
        plan: Plan,
        deadline_ns: float,
        timer: Callable[[], int],
    ) -> None:
        super().__init__(panel, breakers, plan, deadline_ns, timer)
        self._answering = _Answering(panel)
        self._worker = self._employ()
        self.interrupted = False

    def _employ(self) -> Worker[Question, Reply]:
        """The policy's thread."""
        return Worker(self._answering.reply, "wmrt-policy")

    def ask(self, state: Mapping[str, Any], started: int) -> Consulted:
        """The step's question; see `Consultant.ask`. Returns at the deadline."""
        breakers, worker = self._breakers, self._worker
        until = started + self._deadline_ns
        question = Question(breakers.step, _own(state), breakers.reference, until)
        replaced = worker.ask(question)
        reply, finished = self._wait(question, started)
        return self._found(reply, finished, replaced, self._timer() - started)

    def _found(
        self, reply: Reply | None, finished: list[Late], replaced: Question | None, took: int
    ) -> Consulted:
        """The step's question has ended so after ``took`` nanoseconds of the step."""
        breakers = self._breakers
        stopped, self.interrupted = self.interrupted, False
        for one in finished:
            if one.fault is not None:
                breakers.report(Cause.NOTE, one.fault._replace(kind=f"late {one.fault.kind}"[:80]))
        if reply is not None:
            consulted = self._judge(reply, took)
        elif stopped:
            consulted = Consulted(asked=True)
        else:
            consulted = self._late(took)
        if replaced is None and not finished:
            return consulted
        skipped = () if replaced is None else (replaced.step,)
        return consulted._replace(skipped=skipped, finished=tuple(finished))

    def _wait(self, question: Question, started: int) -> tuple[Reply | None, list[Late]]:
        """The reply to ``question`` if it comes by the deadline, and earlier ones that came."""
        worker = self._worker
        finished: list[Late] = []
        while True:
            left = self._deadline_ns - (self._timer() - started)
            told = worker.wait(left * 1e-9)
            while (done := worker.take()) is not None:
                if isinstance(done.answer, BaseException):
                    raise done.answer
                if done.question is question:
                    return done.answer, finished
                finished.append(_late(done.question, done.answer.answer))
            if self.interrupted or not told:
                return None, finished

    def clear(self) -> int | None:
        dropped = self._worker.clear()
        return None if dropped is None else dropped.step

    def reset(self) -> None:
        """A new episode; where the policy is at work, before its next step, which fails if the
        reset does. Raises what a reset that is done at once raises."""
        if not self._worker.restart():
            self._answering.restart()

    def interrupt(self) -> None:
        self.interrupted = True
        self._worker.interrupt()

    def close(self) -> None:
        self._worker.stop()


class Timed(Watchdog):
    """Asks, and does not wait.

    Args:
        panel, breakers, plan, deadline_ns, timer: see `Consultant`.

    Attributes:
        interrupted: a stop came, and no step has been decided since.
        rest: the policy's thread has its answer, and goes on with something else; see `Worker`.
    """

    alarm: Alarm | None = None

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.rest = self._worker.rest

    def _employ(self) -> Worker[Question, Reply]:
        return Worker(self._answering.reply, "wmrt-policy", _deliver)

    def wait_at(self, bell: Bell) -> None:
        """Have the policy's thread wait there; before the first question."""
        self._worker.bell = bell

    def put(
        self, state: Mapping[str, Any], started: int, settle: Callable[[Any], bool]
    ) -> Question | None:
        """Ask; ``settle`` gets the reply, in the policy's thread. The question that is replaced."""
        breakers, until = self._breakers, started + self._deadline_ns
        parts = (breakers.step, _own(state), breakers.reference, until, settle)
        return self._worker.ask(tuple.__new__(Question, parts))

    def found(self, reply: Reply | None, replaced: Question | None, started: int) -> Consulted:
        """How the step's question ended: in time, or without a reply."""
        if reply is not None and replaced is None and not self._worker.finished:
            self.interrupted = False
            return self._judge(reply, self._timer() - started)
        return self._found(reply, self._arrived(), replaced, self._timer() - started)

    def _arrived(self) -> list[Late]:
        """Answers to earlier questions; raises what asks the process to stop."""
        arrived = []
        while (done := self._worker.take()) is not None:
            if isinstance(done.answer, BaseException):
                raise done.answer
            arrived.append(_late(done.question, done.answer.answer))
        return arrived

    def interrupt(self) -> None:
        self.interrupted = True
        if self.alarm is not None:
            self.alarm.ring()

    def close(self) -> None:
        super().close()
        if self.alarm is not None:
            self.alarm.stop()


def _deliver(question: Question, reply: Reply | BaseException) -> bool:
    return question.settle is not None and question.settle(reply)


class _Answering:
    """The part that runs in the thread; it does not know the watchdog, nor whose it is."""

    def __init__(self, panel: Panel) -> None:
        self._panel = panel
        self._due = False

    def restart(self) -> None:
        """Reset; until it has succeeded, no question is answered."""
        self._due = True
        self._panel.reset()
        self._due = False

    def reply(self, question: Question, restart: bool) -> Reply:
        if restart or self._due:
            try:
                self.restart()
            except STOPPING:
                raise
            except BaseException as error:  # a policy that still lives in the last episode
                fault = Finding("policy", f"reset: {type(error).__name__}"[:80])
                return Reply(Answer(Proposal(fault=fault), (), None, 0), None, ())
        return self._panel.reply(question)


def _late(question: Question, answer: Answer) -> Late:
    return Late(question.step, answer.policy_ns, answer.proposal.fault)


def _own(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """``state`` with values that the caller cannot change any more."""
    if _FIXED.issuperset(map(type, state.values())):
        return state
    return {name: _fixed(value) for name, value in state.items()}


def _fixed(value: Any) -> Any:
    if type(value) in _FIXED:
        return value
    if type(value) is list:
        return value.copy()
    if isinstance(value, np.generic) or not hasattr(value, "__array__"):
        return value
    return np.array(value)  # of an array or a tensor
