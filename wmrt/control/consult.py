"""The policy and the channels, asked in a step; what they say is dropped if it comes too late."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from wmrt.control.asking import Answer, ask
from wmrt.control.channels import Channels
from wmrt.control.monitor import Foresight
from wmrt.control.plan import Plan
from wmrt.control.protocol import Policy
from wmrt.safety import Breakers, Cause, Finding, Proposal

Rows = tuple[tuple[float, ...], ...]
Votes = list[tuple[float, ...] | None]


class Question(NamedTuple):
    """What the policy and the channels are asked.

    Attributes:
        step: number of the control step, from 1.
        state: what they see, read only: each gets a copy.
        previous: the action actually sent last.
        until: reading of the timer from which the reply is late.
        settle: gets the reply where it was made, and says whether it came in time to be used; None
            where somebody waits for it.
    """

    step: int
    state: Mapping[str, Any]
    previous: tuple[float, ...]
    until: float = math.inf
    settle: Callable[[Any], bool] | None = None


class Reply(NamedTuple):
    """What they said.

    Attributes:
        answer: the policy's.
        votes: the channels', None for a failed one; None when no vote is due.
        failed: why those failed.
        expected: what the policy had expected of this state; None unless a monitor asks for it.
    """

    answer: Answer
    votes: Votes | None
    failed: Sequence[Finding]
    expected: Mapping[str, Any] | None = None


class Late(NamedTuple):
    """An answer that came after its step was decided.

    Attributes:
        step: whose it was.
        policy_ns: duration of the policy's step.
        fault: why it would have been no use anyway.
    """

    step: int
    policy_ns: int
    fault: Finding | None


class Consulted(NamedTuple):
    """How the question of a step ended.

    Attributes:
        proposal: for the breakers; None when there was no question.
        votes: see `Reply`; None when late.
        chunk: the plan for the next steps; empty when there is none to rely on.
        policy_ns: duration of the policy's step; None when it is not known.
        asked, answered, late, skipped, failed: see `wmrt.control.protocol.StepInputs`.
        finished: answers to earlier questions that have come since.
        expected: see `Reply`; None when late.
    """

    proposal: Proposal | None = None
    votes: Votes | None = None
    chunk: Rows = ()
    policy_ns: int | None = None
    asked: bool = False
    answered: bool = False
    late: bool = False
    skipped: tuple[int, ...] = ()
    finished: tuple[Late, ...] = ()
    failed: tuple[Finding, ...] = ()
    expected: Mapping[str, Any] | None = None


#: The input was unfit, or the controller is closed.
NOT_ASKED = Consulted()


class Panel:
    """Those who are asked: the policy first, then the channels.

    Args:
        predicted: numeric state fields to take from the policy's prediction.
        rows: how much of its chunk to keep.
        timer: nanoseconds.
        foresight: keeps what the policy expects, for a monitor; None without one.
    """

    def __init__(
        self,
        policy: Policy,
        channels: Channels,
        predicted: Sequence[str],
        rows: int,
        timer: Callable[[], int],
        foresight: Foresight | None = None,
    ) -> None:
        self.policy, self.channels, self.foresight = policy, channels, foresight
        self._predicted, self._rows, self._timer = predicted, rows, timer

    def reply(self, question: Question) -> Reply:
        """Ask all of them; raises nothing on their account."""
        step, state, previous, until, _ = question
        foresight = self.foresight
        expected = None if foresight is None else foresight.expect(step, previous)
        answer = ask(self.policy, state, previous, self._predicted, self._rows, self._timer)
        if foresight is not None:
            foresight.keep(step, answer.proposal.action, answer.foreseen)
        if self.channels.silent:
            return tuple.__new__(Reply, (answer, None, (), expected))
        votes, failed = self.channels.ask(step, state, previous, until)
        return Reply(answer, votes, failed, expected)

    def reset(self) -> None:
        """A new episode. Raises what a policy's or channel's own reset raises."""
        if self.foresight is not None:
            self.foresight.reset()
        self.policy.reset()
        self.channels.reset()


class Consultant:
    """Asks the panel in the thread of the control loop, and judges whether the reply is in time.

    Args:
        plan: what to send instead of a late answer.
        deadline_ns: from the start of the step; `math.inf` for none.
    """

    def __init__(
        self,
        panel: Panel,
        breakers: Breakers,
        plan: Plan,
        deadline_ns: float,
        timer: Callable[[], int],
    ) -> None:
        self._panel, self._breakers, self._plan = panel, breakers, plan
        self._deadline_ns, self._timer = deadline_ns, timer

    def ask(self, state: Mapping[str, Any], started: int) -> Consulted:
        """The step's question.

        Args:
            started: reading of the timer when the step began.
        """
        breakers = self._breakers
        until = started + self._deadline_ns
        reply = self._panel.reply(Question(breakers.step, state, breakers.reference, until))
        return self._judge(reply, self._timer() - started)

    @property
    def inner(self) -> Consultant:
        """The one that asks, if this one stands before another."""
        return self

    def between(self) -> Consulted | None:
        """What to do in a step in which nobody is asked; None: ask."""
        return None

    def taken(self, consulted: Consulted) -> Consulted:
        """What to make of an answer."""
        return consulted

    def drop(self) -> None:
        """What was answered so far is void: another task, another beginning."""

    def distrust(self) -> None:
        """The breakers found the last answer out of range."""

    def clear(self) -> int | None:
        """`drop`, and drop a question that nobody has begun with; the number of its step."""
        return None

    def reset(self) -> None:
        """A new episode. Raises what a policy's or channel's own reset raises."""
        self._panel.reset()

    def interrupt(self) -> None:
        """Do not wait for the answer of the step that runs. Any thread may call it."""

    def close(self) -> None:
        """There will be no more questions."""

    def _judge(self, reply: Reply, took: int) -> Consulted:
        """A reply after ``took`` nanoseconds of the step."""
        breakers, (answer, votes, failed, expected) = self._breakers, reply
        said, chunk, note, policy_ns, _ = answer
        if note is not None:
            breakers.report(Cause.NOTE, note)
        for finding in failed:
            breakers.report(Cause.CHANNEL, finding)
        failed = tuple(failed)
        if took <= self._deadline_ns:
            parts = (said, votes, chunk, policy_ns, True, True, False, (), (), failed, expected)
            return tuple.__new__(Consulted, parts)
        proposal = None if said.fault is None else said._replace(late=True)
        return self._late(took, proposal)._replace(
            policy_ns=policy_ns, answered=True, failed=failed
        )

    def _late(self, took: int, proposal: Proposal | None = None) -> Consulted:
        """The deadline is missed: ``proposal`` if given, else the planned action, if any."""
        breakers = self._breakers
        breakers.report(Cause.DEADLINE, Finding("", "late", took, round(self._deadline_ns)))
        if proposal is None:
            planned = self._plan.action()
            if planned is None:
                breakers.report(Cause.STARVED, Finding("", "no planned action"))
            proposal = Proposal(planned, late=True)
        return Consulted(proposal, asked=True, late=True)
