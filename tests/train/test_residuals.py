"""Calibration of the prediction monitor: what it reads off drives, and what it promises."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.train.toys import ACTIONS, GROUPS, HORIZON, SCHEMA, episode, episodes, network_for
from wmrt.control import Monitor
from wmrt.control.surprise import KINDS, ColumnLimits
from wmrt.core.errors import UsageError
from wmrt.model.rounding import UNKNOWN
from wmrt.model.schema import StateSchema, numeric
from wmrt.runtime import WorldModel
from wmrt.runtime.build import to_checkpoint
from wmrt.train.dataset import Episode, Meta
from wmrt.train.residuals import THIRD, calibrate, foreseen

META = Meta("toy/Toy-v0", SCHEMA, ACTIONS, 0.1, HORIZON, ("expert",), GROUPS)


def model_of(seed: int) -> WorldModel:
    """It has learned nothing but the scale of changes: enough to be off by a usual size."""
    checkpoint = to_checkpoint(network_for(episodes(6), seed), None, {})
    return WorldModel.from_checkpoint(checkpoint, recipe="bf16")


def alarms(monitor: Monitor, model: WorldModel, drive: Episode, frozen: str = "") -> int:
    """Alarms of a drive as a controller sees it; ``frozen`` stops in the middle."""
    model.reset()
    monitor.reset()
    before, expected = np.array(SCHEMA.neutral, np.float32), None
    count, state = 0, {}
    for t in range(len(drive) + 1 - int(drive.terminated)):
        stuck = {frozen: state[frozen]} if frozen and t > 10 else {}
        state = SCHEMA.decode(drive.q[t]) | stuck
        count += monitor.see(state, expected) is not None
        if t == len(drive):
            break
        model.step(state, before)
        before = drive.action[t]
        expected = model.foresee(before)
    return count


def test_what_was_foreseen_of_a_drive(seed: int) -> None:
    model = model_of(seed)
    for drive in (episode(seed, 12), episode(seed + 1, 12, terminated=True)):
        drive.q[5, 1] = UNKNOWN
        observed, guess = foreseen(model, drive)
        steps = 12 - drive.terminated  # nothing follows a crash
        assert observed.shape == guess.shape == (steps, 2)
        twin = model_of(seed)
        before = np.array(SCHEMA.neutral, np.float32)
        for t in range(steps):
            twin.step(SCHEMA.decode(drive.q[t]), before)
            before = drive.action[t]
            wanted = twin.foresee(before)
            truth = SCHEMA.decode(drive.q[t + 1])
            for i, name in enumerate(("x", "v")):
                for part, value in ((guess, wanted[name]), (observed, truth[name])):
                    unknown = value is None and math.isnan(part[t, i])
                    assert unknown or part[t, i] == pytest.approx(value, abs=1e-9)
        assert math.isnan(observed[4, 1])


@pytest.mark.parametrize("rate", [0.1, 0.25])
def test_the_monitor_alarms_as_often_as_was_promised(rate: float, seed: int) -> None:
    model, drives = model_of(seed), episodes(45, 30, first=seed)
    calibration = calibrate(model, drives, META, rate)
    monitor = Monitor(calibration)
    monitor.attach(model, 0.1)
    rest = [drive for n, drive in enumerate(drives) if n % THIRD]
    assert len(rest) == calibration.false_alarms["drives_for_threshold"] == 30
    found = [alarms(monitor, model, drive) > 0 for drive in rest]
    # By definition of the rank so many scores are above the threshold, or fewer where some equal
    # it; and with a threshold that is a little lower, that one is above too.
    above = 30 - math.ceil(31 * (1 - rate))
    lower = {
        name: ColumnLimits(own.scale, *(getattr(own, kind) * (1 - 1e-6) for kind in KINDS))
        for name, own in calibration.columns.items()
    }
    stricter = Monitor(replace(calibration, columns=lower))
    stricter.attach(model, 0.1)
    assert sum(found) <= above
    if calibration.false_alarms["threshold"] > 1.0:  # else no drive came near its limits
        assert above < sum(alarms(stricter, model, drive) > 0 for drive in rest)
    assert calibration.false_alarms["per_step"] == pytest.approx(
        rate * 30 / calibration.false_alarms["steps_for_threshold"], rel=1e-5
    )
    again = calibrate(model, drives, META, rate)
    assert again == calibration  # the same drives, the same limits


def test_what_it_records(seed: int) -> None:
    model = model_of(seed)
    made = calibrate(model, episodes(30, 20, first=7), META, 0.1)
    assert set(made.columns) == {"x", "v"}
    for limits in made.columns.values():
        assert limits.scale >= 0.01  # a unit of the last decimal place
        assert all(1 <= getattr(limits, kind) < math.inf for kind in KINDS), limits
    assert (made.recipe, made.period, made.schema_hash) == ("bf16", 0.1, model.schema.hash)
    assert made.model_sha256 == model.weights_sha256
    assert made.data == {
        "env": "toy/Toy-v0", "drivers": ["expert"], "first_seed": 7, "last_seed": 36,
    }  # fmt: skip


class Physics(WorldModel):
    """Foresees the toy's world exactly, to show what a good model finds."""

    def foresee(self, action: Any) -> dict[str, Any]:
        v = 0.9 * self.v + 0.5 * float(action[0])
        return {"x": self.x + 0.2 * v, "v": v}

    def step(self, state: Any, previous_action: Any = None, **rest: Any) -> Any:
        self.x, self.v = state["x"], state["v"]
        return super().step(state, previous_action, **rest)


@pytest.mark.parametrize("field", ["x", "v"])
def test_a_good_model_finds_a_frozen_sensor(field: str, seed: int) -> None:
    model = model_of(seed)
    model.__class__ = Physics
    calibration = calibrate(model, episodes(45, 40, first=seed), META, 0.1)
    monitor = Monitor(calibration)
    monitor.attach(model, 0.1)
    fresh = [episode(seed + 1_000 + n, 40) for n in range(20)]
    assert sum(alarms(monitor, model, drive, field) > 0 for drive in fresh) >= 18
    # The threshold is the third largest of 31 ranks: the share of whole drives above it is drawn
    # from Beta(3, 28), and more than 14 of 20 are once in a million runs (10: once in 5 000).
    assert sum(alarms(monitor, model, drive) > 0 for drive in fresh) <= 14


def test_refusals(seed: int) -> None:
    model = model_of(seed)
    with pytest.raises(UsageError, match=r"20 drives .* takes 33, so record 50 in all"):
        calibrate(model, episodes(30, 5), META, 0.03)
    with pytest.raises(UsageError, match="between 0 and 1, got 0"):
        calibrate(model, episodes(30, 5), META, 0.0)
    other = StateSchema({"x": numeric("m", -1, 1)}, neutral=(0.0,))
    with pytest.raises(UsageError, match="holds other states than the model reads"):
        calibrate(
            model, episodes(3, 5), Meta("t", other, ACTIONS, 0.1, HORIZON, ("e",), GROUPS), 0.1
        )
