"""Who drives: a world model behind breakers, or one of the control arms on the same seeds."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from wmrt.cli.driving.episode import Arm, Outcome
from wmrt.cli.driving.records import Records
from wmrt.control import Channel, Controller, Policy, Recorder, StepClock
from wmrt.safety import Breakers, Limits

#: Control arms, and what is said of each beside its results.
CONTROL_ARMS = {
    "random": "uniformly random actions, without breakers",
    "expert": "privileged: it plans on the simulator's true scene, which no model sees",
    "rule": "IDM and MOBIL on the state alone",
}


class RandomPolicy:
    """Uniform in the action box, from the episode's seed."""

    def __init__(self, env: Any) -> None:
        self.schema, self.actions = env.state_schema, env.action_spec
        self._generator = np.random.Generator(np.random.PCG64(0))

    def seed(self, seed: int) -> None:
        self._generator = np.random.Generator(np.random.PCG64(seed))

    def reset(self) -> None:
        """Nothing is remembered."""

    def step(self, state: Mapping[str, Any], previous_action: Any) -> Any:
        action = self._generator.uniform(-1.0, 1.0, len(self.actions)).astype(np.float32)
        return SimpleNamespace(action=action)


class ExpertPolicy:
    """The environment's privileged expert."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self.schema, self.actions = env.state_schema, env.action_spec

    def reset(self) -> None:
        """The environment resets its own expert."""

    def step(self, state: Mapping[str, Any], previous_action: Any) -> Any:
        label = self._env.expert_label()
        return SimpleNamespace(action=label.action, chunk=label.chunks[int(label.weights.argmax())])


class RulePolicy:
    """The environment's rule, which sees what a model sees."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self.schema, self.actions = env.state_schema, env.action_spec

    def reset(self) -> None:
        """Nothing is remembered."""

    def step(self, state: Mapping[str, Any], previous_action: Any) -> Any:
        return SimpleNamespace(action=self._env.rule_action(state, previous_action))


POLICIES: dict[str, Callable[[Any], Policy]] = {
    "random": RandomPolicy,
    "expert": ExpertPolicy,
    "rule": RulePolicy,
}


class BareArm:
    """A policy whose actions go to the environment as they are, clipped to the box."""

    controlled = False

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._previous = np.zeros(len(policy.actions), np.float32)

    def reset(self, seed: int) -> None:
        self._policy.reset()
        if isinstance(self._policy, RandomPolicy):
            self._policy.seed(seed)
        self._previous = np.array(self._policy.schema.neutral, np.float32)

    def act(self, state: Mapping[str, Any]) -> Outcome:
        begin = time.perf_counter_ns()
        answer = self._policy.step(state, self._previous)
        took = time.perf_counter_ns() - begin
        self._previous = np.clip(np.asarray(answer.action, np.float32), -1.0, 1.0)
        return Outcome(self._previous, took, took)


class ControlledArm:
    """A policy behind the breakers of a `Controller`.

    Every seed is a car of its own with breakers of its own: a latch outlives an episode, and one
    controller for all seeds would make a seed's result depend on those before it.
    """

    controlled = True

    def __init__(
        self,
        make: Callable[[Recorder | None], Controller],
        deadline: bool,
        records: Records | None = None,
    ) -> None:
        self._make, self._deadline, self._records = make, deadline, records
        self._controller = make(None)

    def reset(self, seed: int) -> None:
        self._controller = self._make(None if self._records is None else self._records.open(seed))
        self._controller.reset()

    def act(self, state: Mapping[str, Any]) -> Outcome:
        action = self._controller.act(state)
        last = self._controller.last
        if last is None:  # the accounting itself failed; the action is the fallback's
            return Outcome(action, None, 0, source="fallback", state="latched")
        return Outcome(
            action=action,
            step_ns=last.policy_ns,
            act_ns=last.act_ns,
            tripped=tuple(sorted(int(level) for level in last.tripped)),
            source=last.source,
            state=last.after.value,
            late=last.late if self._deadline else None,
        )


@dataclass(frozen=True)
class Guard:
    """Breakers of a run: the opinions of level 3, whether the deadline is enforced, limits that are
    not the default ones, the recordings.

    Processes that share cores would miss deadlines for reasons that are not the model's, so several
    of them drive without.
    """

    channels: tuple[Channel, ...] = ()
    deadline: bool = True
    records: Records | None = None
    limits: Limits | None = None


def make_arm(policy: Policy, env: Any, guard: Guard | None) -> Arm:
    """The policy behind breakers as ``guard`` says, or bare."""
    if guard is None:
        return BareArm(policy)
    deadline = None if guard.deadline else math.inf
    neutral = tuple(policy.schema.neutral)

    def fallback(state: Mapping[str, Any] | None, last: tuple[float, ...]) -> Sequence[float]:
        # Neutral steering in the middle of a lane change leaves the road; the rule finishes it.
        return neutral if state is None else env.rule_action(state, last)

    def make(recorder: Recorder | None) -> Controller:
        if recorder is not None:
            policy.reset()  # a recording begins with a model that remembers nothing
        clock = StepClock(env.period)
        return Controller(
            policy,
            env.period,
            deadline,
            None if guard.limits is None else Breakers(guard.limits),
            fallback=fallback,
            recorder=recorder,
            channels=guard.channels,
            clock=clock,
        )

    return ControlledArm(make, guard.deadline, guard.records)
