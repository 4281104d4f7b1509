"""Sets up one run: environment, driver, breakers, and the account of what was set up."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wmrt.cli.driving.arms import CONTROL_ARMS, POLICIES, Guard, make_arm
from wmrt.cli.driving.environment import open_environment
from wmrt.cli.driving.episode import Arm
from wmrt.cli.driving.facts import origin_note, planner_facts
from wmrt.cli.driving.plan import Plan
from wmrt.cli.driving.records import Records
from wmrt.cli.driving.remote import is_address, service_arm
from wmrt.control import Calibration, Policy, default_limits, load_limits
from wmrt.control.planning import Planner
from wmrt.core.errors import CheckpointError, UsageError

if TYPE_CHECKING:
    from wmrt.model.checkpoint import Checkpoint
    from wmrt.runtime import WorldModel

#: Steps before the first episode, so that no figure holds what only happens once.
WARM_UP = 3
#: For a checkpoint that holds float weights; a packed one runs as it is packed.
DEFAULT_RECIPE = "nvfp4"
NO_VOTE = "breakers at levels 0 to 2: a control arm has no second opinion to vote with"


@dataclass(frozen=True)
class Account:
    """What runs. ``report`` is the model's run report, ``consensus`` that of its second opinion,
    ``planner`` the planner's settings and what it takes here."""

    levels: tuple[int, ...]
    channels: tuple[str, ...] = ()
    deadline_s: float | None = None
    recipe: str | None = None
    model_sha256: str | None = None
    resident_bytes: int | None = None
    report: dict[str, Any] | None = None
    consensus: dict[str, Any] | None = None
    planner: dict[str, Any] | None = None
    notes: tuple[str, ...] = ()


@dataclass
class Stand:
    """Everything that one process needs to drive. ``planner`` is around the model, if any is;
    ``close`` is called at the end."""

    env: Any
    arm: Arm
    account: Account
    records: Records | None = None
    planner: Planner | None = None
    close: Callable[[], object] = lambda: None


def set_up(plan: Plan) -> Stand:
    """Open the environment and build the driver.

    Raises:
        WmrtError: an environment, model, recipe or device that cannot be had; a model made for
            other states or actions than the environment's; a planner without a model or without
            breakers, or that does not fit the deadline.
    """
    if plan.planner is not None and (plan.arm != "model" or not plan.breakers):
        why = "without breakers" if plan.arm == "model" else f"{plan.arm} has no model to plan with"
        raise UsageError(f"--planner: {why}; it plans with a model's imagination, behind breakers")
    if plan.limits is not None and (plan.arm == "random" or not plan.breakers):
        what = "random has none" if plan.breakers else "--no-breakers takes them away"
        raise UsageError(f"--limits {plan.limits}: they belong to breakers, and {what}")
    if is_address(plan.model):
        return _service_arm(plan)
    env = open_environment(plan.env)
    if plan.arm != "model":
        return _control_arm(plan, env)
    return _model_arm(plan, env)


def _control_arm(plan: Plan, env: Any) -> Stand:
    if plan.device != "cpu":
        raise UsageError(
            f"--device {plan.device}: {plan.arm} has no model to put there; leave it out"
        )
    if plan.monitor:
        raise UsageError(f"--monitor: {plan.arm} has no model that expects anything; leave it out")
    guarded = plan.breakers and plan.arm != "random"
    records = _records(plan, guarded)
    guard = _guard(plan, env, records) if guarded else None
    account = Account(
        levels=(0, 1, 2) if guarded else (),
        deadline_s=env.period if guarded and plan.deadline else None,
        notes=(
            f"{plan.arm}: {CONTROL_ARMS[plan.arm]}",
            *((NO_VOTE,) if guarded else ()),
            *_guard_note(plan, guard),
        ),
    )
    return Stand(env, make_arm(POLICIES[plan.arm](env), env, guard), account, records)


def _service_arm(plan: Plan) -> Stand:
    """A service in another process drives."""
    own = {
        "--recipe": plan.recipe is not None,
        "--device": plan.device != "cpu",
        "--executor": plan.executor != "auto",
        "--no-breakers": not plan.breakers,
        "--limits": plan.limits is not None,
        "--record": plan.record is not None,
        "--planner": plan.planner is not None,
        "--consensus": plan.consensus != "auto",
        "--monitor": plan.monitor,
    }
    env, arm = service_arm(plan.env, plan.model, own)
    account = Account(levels=(0, 1, 2), deadline_s=arm.deadline, notes=arm.notes)
    return Stand(env, arm, account, close=arm.close)


def _records(plan: Plan, guarded: bool) -> Records | None:
    """Where recordings go, if they were asked for."""
    if plan.record is None:
        return None
    if not guarded:
        raise UsageError("--record records a controller, and here is none; leave the breakers on")
    return Records(Path(plan.record), _facts(plan))


def _facts(plan: Plan) -> dict[str, str]:
    """What a recording notes, for a replay to find the models again."""
    return {"env": plan.env, "model_name": plan.model, "consensus": plan.consensus}


def _guard(plan: Plan, env: Any, records: Records | None) -> Guard:
    """Breakers as the plan says, before there are channels."""
    guard = Guard(deadline=plan.deadline, records=records)
    if plan.limits is None:
        return guard
    limits = load_limits(plan.limits, env.state_schema, env.action_spec, env.period)
    return replace(guard, limits=limits)


def _guard_note(plan: Plan, guard: Guard | None) -> tuple[str, ...]:
    if guard is None:
        return () if plan.arm == "random" else ("no breakers",)
    return () if guard.limits is None else (f"limits of {plan.limits}, hash {guard.limits.hash}",)


def _model_arm(plan: Plan, env: Any) -> Stand:
    import torch

    from wmrt.runtime import WorldModel

    if plan.threads is not None:
        torch.set_num_threads(plan.threads)
    checkpoint = _checkpoint(plan, env)
    packed = checkpoint.quantization is not None
    recipe = plan.recipe
    if recipe is None and not packed:
        recipe = DEFAULT_RECIPE
    records = _records(plan, plan.breakers)
    guard = _guard(plan, env, records) if plan.breakers else None
    model = WorldModel.from_checkpoint(checkpoint, recipe=recipe, **plan.model_options)
    report = model.report()
    account = Account(
        levels=(0, 1, 2) if plan.breakers else (),
        deadline_s=env.period if plan.breakers and plan.deadline else None,
        recipe=model.recipe.name,
        model_sha256=checkpoint.weights_sha256,
        resident_bytes=report.resident_bytes,
        report=report.to_json(),
        notes=(*origin_note(checkpoint), *_guard_note(plan, guard)),
    )
    if guard is not None:
        guard, account = _voting(plan, env, checkpoint, model, guard, account)
    _warm_up(model, env)
    return _with_planner(plan, model, env, guard, account, records)


def _with_planner(
    plan: Plan,
    model: WorldModel,
    env: Any,
    guard: Guard | None,
    account: Account,
    records: Records | None,
) -> Stand:
    """The model drives, or a planner around it."""
    if plan.planner is None:
        return Stand(env, make_arm(model, env, guard), account, records)
    limits = None if guard is None else guard.limits
    if limits is None:
        limits = default_limits(env.state_schema, env.action_spec, env.period)
    planner = plan.planner.around(model, limits, account.deadline_s or math.inf)
    account = replace(account, planner=planner_facts(planner))
    return Stand(env, make_arm(planner, env, guard), account, records, planner)


def _voting(
    plan: Plan,
    env: Any,
    checkpoint: Checkpoint,
    model: WorldModel,
    guard: Guard,
    account: Account,
) -> tuple[Guard, Account]:
    """The monitor, and a vote where there is a second opinion; and the account of them."""
    from wmrt.control import standard_channels

    guard = replace(guard, calibration=_calibration(plan, model))
    reason = "as asked for" if plan.consensus == "off" else None
    if plan.consensus == "auto" and checkpoint.quantization is not None:
        reason = "a packed checkpoint has no bf16 form to vote with"
    if reason is not None:
        note = f"breakers at levels 0 to 2: {reason}"
        return guard, replace(account, notes=(*account.notes, note))
    second, recipe = _second(plan, checkpoint)
    channels = standard_channels(
        model, env.rule_action, second, recipe, every=plan.every, **plan.model_options
    )
    twin: Any = channels[0].policy
    _warm_up(twin, env)
    names = (f"model {model.recipe.name}", *(channel.name for channel in channels))
    consensus = twin.report().to_json()
    account = replace(account, levels=(0, 1, 2, 3), channels=names, consensus=consensus)
    return replace(guard, channels=channels), account


def _calibration(plan: Plan, model: WorldModel) -> Calibration | None:
    """Of the prediction monitor, if it was asked for."""
    return Calibration.load(plan.model, model.recipe.name) if plan.monitor else None


def _second(plan: Plan, checkpoint: Checkpoint) -> tuple[str | Checkpoint, str | None]:
    """The second opinion that ``--consensus`` names: a recipe of the model, or a checkpoint."""
    from wmrt.quant.recipe import RECIPES

    if plan.consensus == "auto":
        return checkpoint, None
    if plan.consensus in RECIPES:
        return checkpoint, plan.consensus
    return plan.consensus, None


def _checkpoint(plan: Plan, env: Any) -> Checkpoint:
    """The model's checkpoint, made for the environment's states and actions."""
    from wmrt.model.checkpoint import check_schema, load_checkpoint

    checkpoint = load_checkpoint(plan.model)
    try:
        check_schema(env.state_schema, checkpoint.schema)
    except CheckpointError as error:
        raise CheckpointError(f"{plan.model} cannot drive {plan.env}: {error}") from None
    if checkpoint.actions != env.action_spec:
        raise CheckpointError(
            f"{plan.model} cannot drive {plan.env}: its actions are "
            f"{checkpoint.actions.to_json()}, the environment's {env.action_spec.to_json()}"
        )
    return checkpoint


def _warm_up(policy: Policy, env: Any) -> None:
    _, info = env.reset(seed=0)
    for _ in range(WARM_UP):
        policy.step(info["state"], policy.schema.neutral)
    policy.reset()
