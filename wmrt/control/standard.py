"""The usual two channels beside a running model: a second opinion and an analytic rule."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wmrt.control import settings
from wmrt.control.channels import Channel
from wmrt.core.errors import SafetyError

if TYPE_CHECKING:
    from wmrt.model.checkpoint import Checkpoint
    from wmrt.runtime import WorldModel


def standard_channels(
    model: WorldModel,
    rule: Callable[[dict[str, Any], Any], Any],
    second: str | Path | Checkpoint,
    recipe: str | None = None,
    *,
    every: int = 1,
    **options: Any,
) -> tuple[Channel, Channel]:
    """Channels for ``Controller(model, channels=...)``: ``second`` under ``recipe``, and ``rule``.

    The second opinion keeps weights of its own in memory and takes a step's time per vote;
    `Controller.stats` reports both. Say ``every`` to vote less often: it then only watches between
    votes, which costs about half a step.

    Args:
        model: the one that drives.
        rule: (state, previous action float32[A]) -> action; an environment of this package brings
            it as ``rule_action``.
        second: a checkpoint, or what `WorldModel.from_pretrained` takes: that of ``model`` for a
            second recipe, or an earlier one.
        recipe: None takes what ``second`` stores if it is packed, else ``bf16``, or ``nvfp4``
            beside the same weights in bf16.
        every: both vote every so many steps.
        options: device, executor, threads, ... of the second model.

    Raises:
        SafetyError: ``second`` reads other states or gives other actions than ``model``, or is the
            same weights in the same recipe, which could never disagree (found by `Controller`).
        CheckpointError, UsageError: as `WorldModel.from_pretrained` raises them.
    """
    from wmrt.model.checkpoint import Checkpoint, load_checkpoint
    from wmrt.runtime import WorldModel

    settings.require(callable(rule), "rule", "a function (state, previous action) -> action", rule)
    opened = second if isinstance(second, Checkpoint) else load_checkpoint(second)
    differences = model.schema.differences(opened.schema)
    if differences or opened.actions != model.actions:
        raise SafetyError(
            f"second opinion {opened.path or 'given'}: made for other states or actions than the "
            f"running model: {differences[0] if differences else opened.actions.names}"
        )
    if recipe is None and opened.quantization is None:
        same = opened.weights_sha256 in (None, model.weights_sha256)
        recipe = "nvfp4" if same and model.recipe.name == "bf16" else "bf16"
    twin = WorldModel.from_checkpoint(opened, recipe=recipe, **options)
    where = "model" if opened.weights_sha256 in (None, model.weights_sha256) else "earlier model"
    name = f"{where} {twin.recipe.name}"
    return Channel.from_policy(name, twin, every), Channel("rule", rule, every)
