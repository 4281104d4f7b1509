"""The vote of a served robot, 2 of 3: its model, a second opinion, and a rule."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from wmrt.control import Channel, standard_channels
from wmrt.control.channels import Channels
from wmrt.core.errors import UsageError
from wmrt.model.checkpoint import load_checkpoint
from wmrt.quant.recipe import RECIPES
from wmrt.runtime.world_model import WorldModel
from wmrt.service.settings import ServeSettings

#: The rule that holds still: the action that was sent last.
HOLD = "hold"
_WARM_UP = 3


def channels_of(model: WorldModel, settings: ServeSettings) -> tuple[Channel, ...]:
    """The two channels beside ``model``, warmed up; none where no vote is asked for.

    The second opinion's memory is not part of a snapshot: after a restart it begins anew, and
    differs more for a while.

    Raises:
        UsageError: a rule that is none, or no second opinion that ``auto`` could find.
        SafetyError: one that reads other states, or that could never disagree.
        CheckpointError: one that cannot be read.
    """
    if settings.consensus is None or settings.consensus_rule is None:  # the settings: both or none
        return ()
    second: Any = settings.consensus
    recipe = None
    if second == "auto" or second in RECIPES:
        recipe = None if second == "auto" else second
        second = load_checkpoint(settings.model)
        if recipe is None and second.quantization is not None:
            raise UsageError(
                f"consensus auto: {settings.model} is packed and has no bf16 form to vote with; "
                "name an earlier checkpoint"
            )
    twin, rule = standard_channels(
        model, load_rule(settings.consensus_rule), second, recipe, every=settings.consensus_every,
        device=settings.device, executor=settings.executor, threads=settings.threads,
    )  # fmt: skip
    rule = replace(rule, name=f"rule {settings.consensus_rule}")
    Channels((twin, rule), model)  # refuses what could never disagree
    state = model.schema.decode(model.schema.encode({}).q)
    assert twin.policy is not None  # a model
    for _ in range(_WARM_UP):
        twin.policy.step(state, model.schema.neutral)
    twin.policy.reset()
    return _alone(twin), rule


def load_rule(name: str) -> Callable[[dict[str, Any], Any], Any]:
    """The rule `HOLD`, or the function of ``module:function``. `UsageError` if there is none."""
    if name == HOLD:
        return lambda state, previous: previous
    module, _, function = name.partition(":")
    try:
        rule = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(
            f"consensus_rule {name!r}: {HOLD}, or module:function, a function (state, previous "
            f"action float32[A]) -> action; {error}"
        ) from None
    if not callable(rule):
        raise UsageError(f"consensus_rule {name!r}: that is a {type(rule).__name__}, no function")
    return rule  # type: ignore[no-any-return]


def _alone(channel: Channel) -> Channel:
    """One call at a time: a robot that has left may still have a late step in its thread."""
    lock = threading.Lock()

    def locked(do: Callable[..., Any] | None) -> Any:
        if do is None:
            return None

        def call(*arguments: Any) -> Any:
            with lock:
                return do(*arguments)

        return call

    return replace(
        channel,
        fn=locked(channel.fn),
        reset=locked(channel.reset),
        observe=locked(channel.observe),
    )


def described(model: WorldModel, channels: tuple[Channel, ...], settings: ServeSettings) -> Any:
    """For people: who votes, how often, and what the second opinion runs; None without a vote."""
    if not channels:
        return None
    run = channels[0].policy.report().to_json()  # type: ignore[union-attr]
    del run["layers"]
    return {
        "requested": {"second": settings.consensus, "rule": settings.consensus_rule},
        "resolved": [f"model {model.recipe.name}", *(channel.name for channel in channels)],
        "every": settings.consensus_every,
        "run": run,
    }
