"""A car in this process, driven by a service in another."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from wmrt.cli.common import console
from wmrt.cli.driving.environment import open_environment
from wmrt.cli.driving.episode import Outcome
from wmrt.core.errors import CheckpointError, DeadlineError, ServiceError, UsageError
from wmrt.core.extras import require

if TYPE_CHECKING:
    from wmrt.client import Client

#: Where the bearer token comes from: an argument would be read by everybody who may list processes.
TOKEN = "WMRT_TOKEN"
#: Seconds for a service that is only just starting.
OPENING = 60.0
#: The car's name.
ROBOT = "drive"


class RemoteArm:
    """Asks a service for every action, and goes on without it where it does not answer.

    A service by the machine's clock is asked once a period; one by steps as fast as it answers.

    Attributes:
        unanswered: steps on which the car was sent the neutral action for want of an answer.
    """

    controlled = True

    def __init__(self, client: Client, neutral: Any) -> None:
        self._client = client
        self._neutral = np.array(neutral, np.float32)
        self._paced = client.clock == "system"
        #: Seconds; None for a service by steps, which is waited for.
        self.deadline = client.period if self._paced else None
        self._next = 0.0
        self.unanswered = 0

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader has to know."""
        pace = "in real time" if self._paced else "by steps, not in real time"
        return (
            "a service drives, behind breakers of its own at levels 0 to 2, and 3 where it votes, "
            f"{pace}; a step's time here includes the way there and back",
        )

    def close(self) -> None:
        """Say good-bye: else the robot stays this process's for a while."""
        self._client.close()

    def reset(self, seed: int) -> None:
        self._client.reset(deadline=10.0)
        self._next = time.monotonic()

    def told(self) -> dict[str, Any]:
        """The service keeps its channels' and monitor's counts to itself."""
        return {"channels": {}, "monitor": None}

    def act(self, state: Mapping[str, Any]) -> Outcome:
        if self._paced:
            time.sleep(max(0.0, self._next - time.monotonic()))
            self._next = max(self._next + self._client.period, time.monotonic())
        began = time.perf_counter_ns()
        try:
            answer = self._client.act(state, deadline=self.deadline or 10.0)
        except (DeadlineError, ServiceError):
            self.unanswered += 1
            took = time.perf_counter_ns() - began
            return Outcome(self._neutral, None, took, (), "no answer", "unknown", True)
        return Outcome(
            action=answer.action,
            step_ns=answer.policy_ns,
            act_ns=answer.round_trip_ns,
            tripped=answer.tripped,
            source=answer.source,
            state=answer.breakers,
            late=answer.late,
        )


def is_address(model: str) -> bool:
    """Whether a model is named by the address of a service."""
    return model.startswith(("ws://", "wss://", "unix:"))


def require_one(model: str, jobs: int, threads: int | None, endless: bool, every: int) -> None:
    """Raise `UsageError` for several processes that would be one robot of a service, and for
    options of a drive whose plan does not say any more whether they were given."""
    if not is_address(model):
        return
    if jobs > 1:
        raise UsageError(f"--jobs {jobs}: {model} is a service, which drives one car; leave it out")
    own = {"--threads": threads is not None, "--no-deadline": endless}
    _refuse(model, {**own, "--consensus-every": every != 1})


def _refuse(address: str, own: Mapping[str, bool]) -> None:
    given = [name for name, is_given in own.items() if is_given]
    if given:
        raise UsageError(f"{', '.join(given)}: {address} is a service, which has its own")


def service_arm(env_name: str, address: str, own: Mapping[str, bool]) -> tuple[Any, RemoteArm]:
    """The environment and an arm that asks the service at ``address``.

    Args:
        own: options that a service has of its own, and whether they were given here.

    Raises:
        UsageError: one was given.
        WmrtError: see `open_environment` and `remote_arm`.
    """
    _refuse(address, own)
    env = open_environment(env_name)
    return env, remote_arm(address, env)


def remote_arm(address: str, env: Any) -> RemoteArm:
    """An arm that asks the service at ``address``.

    Raises:
        WmrtError: no service there, or one for other states, actions or periods than the
            environment's.
    """
    require("websockets", "service")
    from wmrt.client import connect
    from wmrt.model.checkpoint import check_schema
    from wmrt.model.schema import StateSchema

    told: list[str] = []

    def tell(name: str, details: Mapping[str, Any]) -> None:
        if name == "waiting" and not told:
            told.append(str(details["reason"]))
            said = f"waiting up to {OPENING:g} s for {address}: {told[0]}"
            console(stderr=True).print(said, markup=False, soft_wrap=True)

    token = os.environ.get(TOKEN)
    client = connect(address, ROBOT, token=token, opening=OPENING, on_lost="reopen", on_event=tell)
    try:
        try:
            check_schema(env.state_schema, StateSchema.from_json(client.schema))
        except CheckpointError as error:
            raise CheckpointError(f"{address} serves another robot's model: {error}") from None
        if client.actions != env.action_spec:
            raise CheckpointError(
                f"{address} serves actions {client.actions.to_json()}, the environment takes "
                f"{env.action_spec.to_json()}"
            )
        if client.period != env.period:
            raise UsageError(
                f"{address} runs at {client.period} s, the environment at {env.period} s; start "
                f"it with --period {env.period}"
            )
    except BaseException:
        client.close()
        raise
    return RemoteArm(client, env.state_schema.neutral)
