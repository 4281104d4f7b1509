"""The vote of a served robot, 2 of 3: its model, a second opinion, and a rule."""

from __future__ import annotations

import importlib
import inspect
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from wmrt.control import Channel, standard_channels
from wmrt.control.channels import Channels
from wmrt.core.errors import UsageError
from wmrt.model.checkpoint import load_checkpoint
from wmrt.quant.recipe import RECIPES
from wmrt.runtime.world_model import WorldModel
from wmrt.service.memories import Opinion
from wmrt.service.settings import ServeSettings

#: The rule that holds still: the action that was sent last.
HOLD = "hold"
_WARM_UP = 3


def channels_of(model: WorldModel, settings: ServeSettings) -> tuple[Channel, ...]:
    """The two channels beside ``model``, warmed up; none where no vote is asked for.

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
    try:
        inspect.signature(rule).bind({}, None)
    except ValueError:
        pass  # one of C that does not tell its parameters
    except TypeError as error:
        raise UsageError(
            f"consensus_rule {name!r}: it is called with (state, previous action float32[A]), and "
            f"does not take them: {error}"
        ) from None
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
        snapshot=locked(channel.snapshot),
        restore=locked(channel.restore),
    )


def opinions_of(channels: Sequence[Channel]) -> tuple[Opinion, ...]:
    """What they remember now; between two steps."""
    return tuple(Opinion(c.name, c.snapshot and c.snapshot()) for c in channels)


def give_back(channels: Sequence[Channel], opinions: Sequence[Opinion] | None) -> None:
    """Have them go on from what they remembered; None: they begin anew.

    Raises:
        UsageError: another set of channels, or one of another model; none has changed then.
    """
    if opinions is None:
        return
    named = [[one.name for one in kept] for kept in (opinions, channels)]
    have = [[one.snapshot is not None for one in kept] for kept in (opinions, channels)]
    if named[0] != named[1] or have[0] != have[1]:
        raise UsageError(
            f"the snapshot is of a vote with {named[0] or 'nobody'}, and this service votes with "
            f"{named[1] or 'nobody'}: set consensus as it was, or open a new session"
        )
    for channel, opinion in zip(channels, opinions, strict=True):
        if channel.restore is not None:
            channel.restore(opinion.snapshot)


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
